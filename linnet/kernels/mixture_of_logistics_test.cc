#include "linnet/kernels/mixture_of_logistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "linnet/kernels/mixture_of_logistics_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

// Rows of outputs like a trained head's: means mostly within -1 .. 1, log-scales from below the
// clamp to 0.5.
Floats RandomOutputs(size_t rows, size_t mixtures, uint64_t stream) {
  Philox rng(5, stream);
  Floats outputs;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < mixtures; ++i) outputs.push_back(2 * rng.Normal());
    for (size_t i = 0; i < mixtures; ++i) outputs.push_back(0.8f * rng.Normal());
    for (size_t i = 0; i < mixtures; ++i)
      outputs.push_back((i == 0 ? 3.5f : 8.5f) * rng.Uniform() - (i == 0 ? 3 : 8));
  }
  return outputs;
}

std::vector<double> Row(const Floats& outputs, size_t r, size_t mixtures) {
  const auto begin = outputs.begin() + static_cast<ptrdiff_t>(r * 3 * mixtures);
  return {begin, begin + static_cast<ptrdiff_t>(3 * mixtures)};
}

LINNET_SUITE_ON_EACH_ISA(MixtureTest);

TEST_P(MixtureTest, ValueAndGradientMatchTheReference) {
  for (size_t mixtures : {1, 2, 7, 10, 16, 17, 40}) {
    const size_t rows = 120;
    const Floats outputs = RandomOutputs(rows, mixtures, mixtures);
    std::vector<uint8_t> bytes(rows);
    for (size_t r = 0; r < rows; ++r)
      bytes[r] = static_cast<uint8_t>(r < 90 ? r * 51 / 10 : r % 2 * 255);
    Floats nats(rows + 1, 77.0f), grad(outputs.size() + 1, 77.0f), plain(rows);
    const float scale = 0.25f;
    MixtureOfLogistics(rows, mixtures, outputs.data(), bytes.data(),
                       {nats.data(), grad.data(), scale}, SerialFor);
    MixtureOfLogistics(rows, mixtures, outputs.data(), bytes.data(), {plain.data()}, SerialFor);
    EXPECT_EQ(nats.back(), 77.0f);
    EXPECT_EQ(grad.back(), 77.0f);
    for (size_t r = 0; r < rows; ++r) {
      std::vector<double> row = Row(outputs, r, mixtures);
      const double want = MixtureOfLogisticsRef(row, bytes[r]);
      // At a scale of exp(-7), rounding x alone moves the exponent by 1e-4.
      EXPECT_NEAR(nats[r], want, 2e-4 * (1 + std::abs(want)));
      EXPECT_EQ(nats[r], plain[r]);
      double norm = 0;
      std::vector<double> slopes;
      for (double& x : row) {
        const double at = x, h = 1e-6;
        x = at + h;
        const double up = MixtureOfLogisticsRef(row, bytes[r]);
        x = at - h;
        slopes.push_back((up - MixtureOfLogisticsRef(row, bytes[r])) / (2 * h));
        x = at;
        norm = std::max(norm, std::abs(slopes.back()));
      }
      for (size_t i = 0; i < row.size(); ++i) {
        EXPECT_NEAR(grad[r * 3 * mixtures + i], scale * slopes[i], 1e-3 * (scale * norm + 0.01))
            << mixtures << " mixtures, row " << r << ", output " << i;
      }
    }
  }
}

TEST_P(MixtureTest, ProbabilitiesSumToOneAtAnyScale) {
  const size_t mixtures = 3;
  for (float log_scale : {-20.0f, -7.0f, -5.0f, -3.0f, 0.0f, 5.0f, 12.0f}) {
    Floats outputs;
    for (int b = 0; b < 256; ++b) {
      const float s = log_scale;
      outputs.insert(outputs.end(), {0.3f, -1, 2, -0.9999f, 0.1f, 1.5f, s, s, s});
    }
    std::vector<uint8_t> bytes(256);
    for (size_t b = 0; b < 256; ++b) bytes[b] = static_cast<uint8_t>(b);
    Floats nats(256);
    MixtureOfLogistics(256, mixtures, outputs.data(), bytes.data(), {nats.data()}, SerialFor);
    double sum = 0;
    for (float n : nats) sum += std::exp(-double{n});
    EXPECT_NEAR(sum, 1, 2e-4) << log_scale;
  }
}

// Far tails stay finite, with a gradient that points back to the byte.
TEST_P(MixtureTest, FarTailsHaveGradients) {
  const Floats outputs = {0.0f, 40.0f, -7.0f};
  const uint8_t byte = 10;
  Floats nats(1), grad(3);
  MixtureOfLogistics(1, 1, outputs.data(), &byte, {nats.data(), grad.data()}, SerialFor);
  EXPECT_NEAR(nats[0], (40 - (10 / 127.5 - 1) - 1 / 255.0) * std::exp(7.0), 1);
  EXPECT_EQ(grad[0], 0);
  EXPECT_NEAR(grad[1], std::exp(7.0), 1);
  const Floats extreme = {0.0f, 0.0f, 1e30f};
  MixtureOfLogistics(1, 1, extreme.data(), &byte, {nats.data(), grad.data()}, SerialFor);
  for (float x : {nats[0], grad[0], grad[1], grad[2]}) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(MixtureTest, NansSpread) {
  for (const uint8_t byte : {uint8_t{0}, uint8_t{100}, uint8_t{255}}) {
    for (size_t i = 1; i < 30; i += 10) {
      Floats outputs = RandomOutputs(1, 10, 1);
      outputs[i] = NAN;
      float nats = 0;
      MixtureOfLogistics(1, 10, outputs.data(), &byte, {&nats}, SerialFor);
      EXPECT_TRUE(std::isnan(nats)) << i;
    }
  }
}

TEST_P(MixtureTest, RowsDoNotDependOnOtherRowsOrThreads) {
  const size_t rows = 37, mixtures = 10;
  const Floats outputs = RandomOutputs(rows, mixtures, 1);
  std::vector<uint8_t> bytes(rows);
  for (size_t r = 0; r < rows; ++r) bytes[r] = static_cast<uint8_t>(r * 7);
  const auto run = [&](ParallelFor parallel_for) {
    Floats nats(rows), grad(outputs.size());
    MixtureOfLogistics(rows, mixtures, outputs.data(), bytes.data(), {nats.data(), grad.data()},
                       parallel_for);
    nats.insert(nats.end(), grad.begin(), grad.end());
    return nats;
  };
  const Floats all = run(SerialFor);
  EXPECT_EQ(all, run([](size_t count, RangeBody body) {
              for (size_t i = count; i-- > 0;) body(i, i + 1);
            }));
}

// Compares the sampler with P: over many draws, the counts of the bytes must agree with their
// probabilities.
TEST(MixtureSampler, FollowsTheDensity) {
  for (size_t mixtures : {1, 4, 10}) {
    const Floats outputs = RandomOutputs(1, mixtures, 20 + mixtures);
    std::array<double, 256> expected{}, counted{};
    for (size_t b = 0; b < 256; ++b) {
      expected[b] =
          std::exp(-MixtureOfLogisticsRef(Row(outputs, 0, mixtures), static_cast<uint8_t>(b)));
    }
    const int draws = 400000;
    Philox rng(1, mixtures);
    for (int i = 0; i < draws; ++i) {
      const float u = rng.Uniform(), v = rng.Uniform();
      counted[SampleMixtureOfLogistics(mixtures, outputs.data(), u, v, {})] += 1;
    }
    // Pearson's statistic over the bytes with a sufficient expected count; the others are pooled.
    double statistic = 0, cells = 0, rare_expected = 0, rare_counted = 0;
    const auto add = [&](double count, double want) {
      statistic += (count - want) * (count - want) / want;
      cells += 1;
    };
    for (size_t b = 0; b < 256; ++b) {
      const double want = draws * expected[b];
      if (want >= 10) {
        add(counted[b], want);
      } else {
        rare_expected += want;
        rare_counted += counted[b];
      }
    }
    if (rare_expected >= 10) add(rare_counted, rare_expected);
    // The statistic has mean cells - 1 and variance 2 (cells - 1). The tolerance is five standard
    // deviations.
    EXPECT_LT(statistic, cells + 5 * std::sqrt(2 * cells)) << mixtures;
  }
}

TEST(MixtureSampler, Options) {
  // Two components: one at byte 51 (x = -0.6), which is more likely, and one at byte 204 (x = 0.6).
  const Floats outputs = {1.0f, 0.0f, -0.6f, 0.6f, -3.0f, -3.0f};
  const auto sample = [&](float u, float v, LogisticsSamplerOptions options) {
    return int{SampleMixtureOfLogistics(2, outputs.data(), u, v, options)};
  };
  EXPECT_EQ(sample(0.7f, 0.5f, {}), 51);
  EXPECT_EQ(sample(0.8f, 0.5f, {}), 204);
  EXPECT_EQ(sample(0.9f, 0.9f, {.temperature = 0.01f}), 51);  // the mode
  // exp(-3) is 0.0498 and elu(-3) + 1.0001 is 0.0499: 6.348 and 6.361 bytes per unit of log-odds.
  const float far = 1 - 0x1p-20f;
  EXPECT_EQ(sample(0.1f, far, {}), std::lround(51 + 127.5 * std::exp(-3) * std::log(1 / 0x1p-20)));
  EXPECT_EQ(sample(0.1f, far, {.reference_scale = true}),
            std::lround(51 + 127.5 * (std::exp(-3) + 1e-4) * std::log(1 / 0x1p-20)));
  const Floats broken(6, std::nanf(""));
  EXPECT_EQ(SampleMixtureOfLogistics(2, broken.data(), 0.5f, 0.5f, {}), 0);
}

}  // namespace
}  // namespace linnet::kernels
