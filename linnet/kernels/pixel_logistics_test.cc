#include "linnet/kernels/pixel_logistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

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
