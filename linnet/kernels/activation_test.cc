#include "linnet/kernels/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "linnet/kernels/activation_ref.h"
#include "linnet/kernels/isa.h"

namespace linnet::kernels {
namespace {

class ActivationTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ForceIsa(GetParam()); }
  void TearDown() override { ForceIsa(""); }
};
INSTANTIATE_TEST_SUITE_P(Isa, ActivationTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(ActivationTest, MatchesTheReference) {
  std::vector<float> x;
  for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) * 1e-4f);
  for (float big : {50.0f, 1e4f, 1e30f, 1e-30f, 0.0f}) x.insert(x.end(), {big, -big});
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    std::vector<float> y = x;
    Activate(activation, y.size(), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = ActivationRef(activation, x[i]);
      const double off = std::abs(y[i] - want) / (1 + std::abs(want));
      if (!(off <= worst)) worst = off;
    }
    EXPECT_LT(worst, 1e-7);
  }
}

TEST_P(ActivationTest, RaggedLengthsAndOddAddresses) {
  for (size_t n = 0; n < 40; ++n) {
    for (size_t offset : {0, 1, 3}) {
      std::vector<float> x(offset + n + 1, -1.0f);
      Activate(Activation::kRelu, n, x.data() + offset);
      EXPECT_EQ(std::count(x.begin(), x.end(), 0.0f), static_cast<ptrdiff_t>(n));
      EXPECT_EQ(x.back(), -1.0f);
    }
  }
}

TEST_P(ActivationTest, KeepsInfinitiesAndNaNs) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    std::vector<float> x = {infinity, -infinity, std::nanf("")};
    Activate(activation, x.size(), x.data());
    EXPECT_EQ(x[0], infinity);
    EXPECT_NEAR(x[1], 0, 1e-30);
    EXPECT_TRUE(std::isnan(x[2]));
  }
}

}  // namespace
}  // namespace linnet::kernels
