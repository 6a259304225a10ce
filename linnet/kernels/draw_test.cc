#include "linnet/kernels/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/kernels/draw_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(DrawTest);

// Weights of few significant bits: their sums are exact in any order, so that the drawn index is,
// too. About a quarter of them is zero.
std::vector<float> CoarseWeights(size_t n, Philox& rng) {
  std::vector<float> weights(n);
  for (float& weight : weights) weight = static_cast<float>(rng.Below(4) * rng.Below(8)) / 32;
  weights[rng.Below(static_cast<uint32_t>(n))] = 0.25f;
  return weights;
}

TEST_P(DrawTest, MatchesTheReference) {
  for (const size_t n : {1, 2, 3, 7, 15, 16, 17, 31, 255, 256, 257, 513, 8003}) {
    Philox rng(2, n);
    const std::vector<float> weights = CoarseWeights(n, rng);
    double sum = 0;
    for (const float weight : weights) sum += weight;
    for (int draw = 0; draw < 200; ++draw) {
      const double target = draw == 0 ? 0 : draw == 1 ? sum : rng.Uniform() * sum;
      const size_t index = DrawIndex(weights.data(), n, target);
      ASSERT_EQ(index, DrawIndexRef(weights.data(), n, target)) << n << " " << target;
      ASSERT_GT(weights[index], 0);
      const double want = SumOfHeavierRef(weights.data(), n, index);
      ASSERT_EQ(SumOfHeavier(weights.data(), n, index), want) << n << " " << index;
    }
  }
}

TEST_P(DrawTest, WeightsOfManySizes) {
  constexpr size_t kWeights = 8003;
  Philox rng(3);
  std::vector<float> weights(kWeights);
  double sum = 0;
  for (float& weight : weights) sum += weight = std::exp(20 * rng.Normal() - 20);
  for (int draw = 0; draw < 1000; ++draw) {
    const double target = rng.Uniform() * sum;
    const size_t index = DrawIndex(weights.data(), kWeights, target);
    double before = 0;
    for (size_t i = 0; i < index; ++i) before += weights[i];
    EXPECT_LE(before, target + 4e-6 * sum);
    EXPECT_GE(before + weights[index], target - 4e-6 * sum);
    const double want = SumOfHeavierRef(weights.data(), kWeights, index);
    EXPECT_NEAR(SumOfHeavier(weights.data(), kWeights, index), want, 4e-6 * want);
  }
}

}  // namespace
}  // namespace linnet::kernels
