#include "linnet/kernels/pixel_logistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "linnet/base/thread_pool.h"
#include "linnet/kernels/pixel_logistics_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

Floats RandomOutputs(size_t mixtures, uint64_t stream) {
  Philox rng(6, stream);
  Floats outputs;
  for (size_t i = 0; i < mixtures; ++i) outputs.push_back(rng.Normal());
  for (size_t i = 0; i < 3 * mixtures; ++i) outputs.push_back(0.8f * rng.Normal());
  for (size_t i = 0; i < 3 * mixtures; ++i) outputs.push_back(3 * rng.Uniform() - 3);
  for (size_t i = 0; i < 3 * mixtures; ++i) outputs.push_back(rng.Normal());
  return outputs;
}

LINNET_SUITE_ON_EACH_ISA(PixelLogisticsTest);

// The kernel for rows of pixels: nats against the reference, gradients against its differences.
TEST_P(PixelLogisticsTest, ValueAndGradientMatchTheReference) {
  for (size_t mixtures : {1, 2, 7, 10, 16, 17}) {
    const size_t rows = 60, width = 10 * mixtures;
    Floats outputs;
    std::vector<uint8_t> rgb;
    Philox rng(9, mixtures);
    for (size_t r = 0; r < rows; ++r) {
      const Floats row = RandomOutputs(mixtures, r);
      outputs.insert(outputs.end(), row.begin(), row.end());
      for (size_t color = 0; color < 3; ++color) {
        rgb.push_back(static_cast<uint8_t>(r % 5 == 0 ? 255 * rng.Below(2) : rng.Below(256)));
      }
    }
    Floats nats(rows + 1, 77.0f), grad(outputs.size() + 1, 77.0f), plain(rows);
    const float scale = 0.25f;
    PixelLogistics(rows, mixtures, outputs.data(), rgb.data(), {nats.data(), grad.data(), scale},
                   SerialFor);
    PixelLogistics(rows, mixtures, outputs.data(), rgb.data(), {plain.data()}, SerialFor);
    EXPECT_EQ(nats.back(), 77.0f);
    EXPECT_EQ(grad.back(), 77.0f);
    for (size_t r = 0; r < rows; ++r) {
      const std::array<uint8_t, 3> pixel = {rgb[3 * r], rgb[3 * r + 1], rgb[3 * r + 2]};
      Doubles row(outputs.begin() + static_cast<ptrdiff_t>(r * width),
                  outputs.begin() + static_cast<ptrdiff_t>((r + 1) * width));
      const double want = PixelNatsRef(mixtures, row, pixel);
      EXPECT_NEAR(nats[r], want, 1e-5 * (1 + want));
      EXPECT_EQ(nats[r], plain[r]);
      double norm = 0;
      Doubles slopes;
      for (double& x : row) {
        const double at = x, h = 1e-6;
        x = at + h;
        const double up = PixelNatsRef(mixtures, row, pixel);
        x = at - h;
        slopes.push_back((up - PixelNatsRef(mixtures, row, pixel)) / (2 * h));
        x = at;
        norm = std::max(norm, std::abs(slopes.back()));
      }
      for (size_t i = 0; i < width; ++i) {
        EXPECT_NEAR(grad[r * width + i], scale * slopes[i], 1e-4 * scale * norm + 1e-6)
            << mixtures << " mixtures, pixel " << r << ", output " << i;
      }
    }
  }
}

// Log-scales below their clamp have no gradient, and far tails have a finite one.
TEST_P(PixelLogisticsTest, ClampedScalesAndFarTails) {
  const Floats outputs = {0, 40, -30, 2, -9, -7, 1e30f, 50, -50, 0};
  const uint8_t rgb[3] = {10, 200, 255};
  float nats = 0;
  Floats grad(10);
  PixelLogistics(1, 1, outputs.data(), rgb, {&nats, grad.data()}, SerialFor);
  // Red and green: the distance to the nearer edge of the bin, over the scale exp(-7).
  const double red = 10 / 127.5 - 1, green = 200 / 127.5 - 1;
  const double distance = 40 - (red + 1.0 / 255) + (green - 1.0 / 255) - (-30 + red);
  EXPECT_NEAR(nats, distance * std::exp(7.0) + std::log(2.0), 1e-5 * nats);
  EXPECT_EQ(grad[4], 0);
  EXPECT_NEAR(grad[1], std::exp(7.0), 1);
  for (const float g : grad) EXPECT_TRUE(std::isfinite(g));
}

// A NaN in any block of outputs makes the loss NaN, so that training notices.
TEST_P(PixelLogisticsTest, NansSpread) {
  const size_t mixtures = 10;
  const uint8_t rgb[3] = {0, 200, 255};
  for (size_t i = 3; i < 10 * mixtures; i += mixtures) {
    Floats outputs = RandomOutputs(mixtures, 1);
    outputs[i] = NAN;
    float nats = 0;
    PixelLogistics(1, mixtures, outputs.data(), rgb, {&nats}, SerialFor);
    EXPECT_TRUE(std::isnan(nats)) << i;
  }
}

TEST_P(PixelLogisticsTest, RowsDoNotDependOnOtherRowsOrThreads) {
  const size_t mixtures = 10, rows = 33, width = 10 * mixtures;
  Floats outputs;
  std::vector<uint8_t> rgb;
  for (size_t r = 0; r < rows; ++r) {
    const Floats row = RandomOutputs(mixtures, r);
    outputs.insert(outputs.end(), row.begin(), row.end());
    for (size_t color = 0; color < 3; ++color) rgb.push_back(static_cast<uint8_t>(r * 7 + color));
  }
  Floats nats(rows), grad(outputs.size()), many(rows), many_grad(outputs.size());
  PixelLogistics(rows, mixtures, outputs.data(), rgb.data(), {nats.data(), grad.data()}, SerialFor);
  ThreadPool pool(3);
  PixelLogistics(rows, mixtures, outputs.data(), rgb.data(), {many.data(), many_grad.data()},
                 [&](size_t count, RangeBody body) { pool.For(count, body); });
  EXPECT_EQ(nats, many);
  EXPECT_EQ(grad, many_grad);
  float alone = 0;
  Floats alone_grad(width);
  PixelLogistics(1, mixtures, outputs.data() + 5 * width, rgb.data() + 15,
                 {&alone, alone_grad.data()}, SerialFor);
  EXPECT_EQ(alone, nats[5]);
  EXPECT_EQ(alone_grad, Floats(grad.begin() + 5 * static_cast<ptrdiff_t>(width),
                               grad.begin() + 6 * static_cast<ptrdiff_t>(width)));
}

double P(size_t mixtures, const Floats& outputs, const std::array<uint8_t, 3>& rgb, size_t color) {
  float nats[3];
  PixelNats(mixtures, outputs.data(), rgb.data(), nats);
  return std::exp(-double{nats[color]});
}

TEST(PixelLogistics, FollowsTheDefinition) {
  for (size_t mixtures : {1, 3, 10}) {
    for (uint64_t stream = 0; stream < 50; ++stream) {
      const Floats outputs = RandomOutputs(mixtures, stream);
      Philox rng(7, stream);
      std::array<uint8_t, 3> rgb;
      for (uint8_t& byte : rgb) {
        byte = static_cast<uint8_t>(stream % 5 == 0 ? 255 * rng.Below(2) : rng.Below(256));
      }
      float nats[3];
      PixelNats(mixtures, outputs.data(), rgb.data(), nats);
      const double want = PixelNatsRef(mixtures, outputs, rgb);
      EXPECT_NEAR(nats[0] + nats[1] + nats[2], want, 1e-5 * (1 + want));
    }
  }
}

TEST(PixelLogistics, ProbabilitiesOfAColorSumToOne) {
  const size_t mixtures = 4;
  const Floats outputs = RandomOutputs(mixtures, 3);
  for (size_t color = 0; color < 3; ++color) {
    double sum = 0;
    for (int byte = 0; byte < 256; ++byte) {
      std::array<uint8_t, 3> rgb = {40, 220, 7};
      rgb[color] = static_cast<uint8_t>(byte);
      sum += P(mixtures, outputs, rgb, color);
    }
    EXPECT_NEAR(sum, 1, 1e-5) << color;
  }
}

// Draws many pixels, and compares the frequency of each color's upper half, given the halves of the
// colors before it, with the probability.
TEST(PixelLogistics, SamplesHaveTheirProbabilities) {
  const size_t mixtures = 3;
  Floats outputs = RandomOutputs(mixtures, 11);
  for (size_t i = 4 * mixtures; i < 7 * mixtures; ++i) outputs[i] -= 2;  // fewer likely pixels
  double expected[2][2][2] = {};
  for (int r = 0; r < 256; r += 1) {
    const double p_red = P(mixtures, outputs, {static_cast<uint8_t>(r), 0, 0}, 0);
    for (int g = 0; g < 256; g += 1) {
      const std::array<uint8_t, 3> rg = {static_cast<uint8_t>(r), static_cast<uint8_t>(g), 0};
      const double p = p_red * P(mixtures, outputs, rg, 1);
      if (p < 1e-8) continue;
      double blue = 0;  // P(blue < 128)
      for (int b = 0; b < 128; b += 1) {
        blue += P(mixtures, outputs, {rg[0], rg[1], static_cast<uint8_t>(b)}, 2);
      }
      expected[r / 128][g / 128][0] += p * blue;
      expected[r / 128][g / 128][1] += p * (1 - blue);
    }
  }
  constexpr int kDraws = 40'000;
  double counted[2][2][2] = {};
  for (int i = 0; i < kDraws; ++i) {
    Philox rng(8, static_cast<uint64_t>(i));
    std::array<float, 4> uniform;
    for (float& u : uniform) u = rng.Uniform();
    std::array<uint8_t, 3> rgb;
    SamplePixel(mixtures, outputs.data(), uniform, {}, rgb.data());
    ++counted[rgb[0] / 128][rgb[1] / 128][rgb[2] / 128];
  }
  for (int i = 0; i < 8; ++i) {
    const double p = expected[i >> 2][i >> 1 & 1][i & 1];
    const double deviation = std::sqrt(p * (1 - p) / kDraws);
    EXPECT_NEAR(counted[i >> 2][i >> 1 & 1][i & 1] / kDraws, p, 5 * deviation + 1e-4) << i;
  }
}

// Near temperature 0 the colors are the means of the likeliest component.
TEST(PixelLogistics, LowTemperaturesDrawMeans) {
  // Two components: logits, means, log-scales, coefficients.
  const Floats outputs = {0, 5, 9, 0.5f, 9, -0.25f, 9, 0, 0, 0, 0, 0, 0, 0, 9, 30, 9, -30, 9, 0};
  std::array<uint8_t, 3> rgb;
  SamplePixel(2, outputs.data(), {0.4f, 0.9f, 0.1f, 0.9f}, {.temperature = 1e-6f}, rgb.data());
  const double red = rgb[0] / 127.5 - 1;
  EXPECT_EQ(rgb[0], 191);                                          // 0.5
  EXPECT_EQ(rgb[1], std::floor((-0.25 + red + 1) * 127.5 + 0.5));  // tanh(30) = 1
  EXPECT_EQ(rgb[2], std::floor((0 - red + 1) * 127.5 + 0.5));
}

}  // namespace
}  // namespace linnet::kernels
