// Compares Orthogonalize() with a singular value decomposition in double.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "linnet/ops/orthogonalize.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// Orthogonalize() of a copy, as one matrix.
Tensor Orthogonalized(const Tensor& x, Precision precision = Precision::kFp32) {
  const Orthogonal y = Orthogonalize(x.clone(), precision);
  return y.matrix * y.scale;
}

// U [m, k] and V^T [k, n] with orthonormal columns and rows.
std::pair<Tensor, Tensor> Bases(int64_t m, int64_t n) {
  const auto [u, s, vt] = torch::linalg_svd(Random({m, n}).to(torch::kDouble), false);
  return {u, vt};
}

// The singular values that the result has in place of `values`, a [k] tensor of singular values of
// an [m, n] matrix. Checks that the result has the singular vectors of the matrix.
Tensor ValuesAfter(int64_t m, int64_t n, const Tensor& values) {
  const auto [u, vt] = Bases(m, n);
  const Tensor x = u.mm(torch::diag(values)).mm(vt);
  const Tensor y = Orthogonalized(x.to(torch::kFloat32)).to(torch::kDouble);
  const Tensor core = u.t().mm(y).mm(vt.t());
  EXPECT_LT((y - u.mm(core).mm(vt)).abs().max().item<double>(), 1e-4);
  const Tensor after = core.diagonal().clone();
  EXPECT_LT((core - torch::diag(after)).abs().max().item<double>(), 2e-3) << m << " x " << n;
  return after;
}

TEST(Orthogonalize, KeepsVectorsAndEvensValues) {
  torch::manual_seed(21);
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 9}, {7, 1}, {16, 16}, {24, 64}, {130, 33}, {128, 512}}) {
    const int64_t k = std::min(m, n);
    // From 1 down to a hundredth of s, in equal ratios.
    Tensor values = torch::logspace(0, -1.6, k, 10, torch::kDouble);
    const Tensor after = ValuesAfter(m, n, values);
    EXPECT_GT(after.min().item<double>(), 0.72) << m << " x " << n;
    EXPECT_LT(after.max().item<double>(), 1.28) << m << " x " << n;
  }
}

TEST(Orthogonalize, EqualValuesStayEqual) {
  // The values are all 1, so s is 32^(1/8).
  const Tensor after = ValuesAfter(32, 48, torch::ones({32}, torch::kDouble));
  EXPECT_LT((after - 1).abs().max().item<double>(), 0.28);
  EXPECT_LT((after - after.mean()).abs().max().item<double>(), 1e-4);
}

TEST(Orthogonalize, SmallValuesStaySmall) {
  torch::manual_seed(22);
  const Tensor values = torch::tensor({1.0, 0.5, 1e-3, 1e-6, 0.0, 0.0}, torch::kDouble);
  const Tensor after = ValuesAfter(6, 10, values);
  EXPECT_GT(after[1].item<double>(), 0.72);
  EXPECT_NEAR(after[2].item<double>(), 0.08, 0.03);
  EXPECT_LT(after.narrow(0, 3, 3).abs().max().item<double>(), 0.01);
}

TEST(Orthogonalize, IgnoresScale) {
  torch::manual_seed(23);
  const Tensor x = Random({20, 30}), y = Orthogonalized(x);
  for (const double scale : {1e-36, 1e-10, 1e30}) {
    EXPECT_LT((Orthogonalized(x * scale) - y).abs().max().item<double>(), 1e-3) << scale;
  }
  EXPECT_LT((Orthogonalized(x.t()) - y.t()).abs().max().item<double>(), 1e-3);
  EXPECT_EQ(Orthogonalized(torch::zeros({5, 3})).abs().max().item<double>(), 0);
}

// Calls body() for the forms of bf16 that this processor has.
void ForBf16Forms(const std::function<void()>& body) {
  if (HasBf16()) body();
  const PlainGuard plain;
  body();
}

TEST(Orthogonalize, Bf16IsNearFp32) {
  torch::manual_seed(24);
  ForBf16Forms([] {
    for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 9}, {7, 1}, {16, 16}, {24, 64}, {130, 33}, {128, 512}}) {
      const int64_t k = std::min(m, n);
      const auto [u, vt] = Bases(m, n);
      const Tensor values = torch::logspace(0, -1.6, k, 10, torch::kDouble);
      const Tensor x = u.mm(torch::diag(values)).mm(vt).to(torch::kFloat32);
      const Tensor y = Orthogonalized(x, Precision::kBf16);
      const Tensor after = std::get<1>(torch::linalg_svd(y, false));
      EXPECT_GT(after.min().item<double>(), 0.66) << m << " x " << n;
      EXPECT_LT(after.max().item<double>(), 1.4) << m << " x " << n;
      if (k == 1) continue;  // such a value may be anywhere between
      const Tensor off = y - Orthogonalized(x);
      EXPECT_LT((off.norm() / y.norm()).item<double>(), 0.2) << m << " x " << n;
    }
    EXPECT_EQ(Orthogonalized(torch::zeros({5, 3}), Precision::kBf16).abs().max().item<double>(), 0);
  });
}

// Of a matrix with one large singular value and few elements, rounding moves that value the most:
// errors of the elements do not cancel. The polynomials would make a value above 1 far too large.
TEST(Orthogonalize, Bf16StaysBoundedWhereRoundingIsWorst) {
  torch::manual_seed(25);
  ForBf16Forms([] {
    for (int i = 0; i < 300; ++i) {
      Tensor x = torch::zeros({16, 24});
      const int64_t used = 1 + i % 3;
      x.narrow(0, 0, used).narrow(1, 0, 1 + i / 3 % 3).copy_(Random({used, 1 + i / 3 % 3}));
      if (i % 2 == 0) x = Random({16, 1}).mm(Random({1, 24}));
      const Tensor y = Orthogonalized(x, Precision::kBf16);
      const Tensor values = std::get<1>(torch::linalg_svd(y, false));
      EXPECT_LT(values[0].item<double>(), 1.4) << i;
      EXPECT_GT(values[0].item<double>(), 0.6) << i;
    }
  });
}

}  // namespace
}  // namespace linnet::ops
