#include <torch/utils.h>

#include "linnet/kernels/adam.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/matmul.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

kernels::MatOperand Operand(const Tensor& x) {
  return {x.data_ptr(), kernels::MatType::kBf16, /*transposed=*/!x.is_contiguous()};
}

size_t Elements(const Tensor& x) { return static_cast<size_t>(x.numel()); }

}  // namespace

float FusedMuonAverage(const Tensor& gradient, const Tensor& average, double scale,
                       double momentum) {
  return kernels::MuonAverage(Elements(gradient), static_cast<float>(scale),
                              static_cast<float>(momentum), Data<float>(gradient),
                              Data<float>(average));
}

void FusedMuonStep(const Tensor& parameter, const Tensor& x, double decay, double step) {
  kernels::MuonStep(Elements(x), static_cast<float>(decay), static_cast<float>(step),
                    Data<float>(x), Data<float>(parameter));
}

Tensor FusedNarrow(const Tensor& x, double factor) {
  const Tensor narrow = torch::empty_like(x, x.options().dtype(torch::kBFloat16));
  kernels::Narrow(Elements(x), Data<float>(x), Data<kernels::BFloat16>(narrow),
                  static_cast<float>(factor));
  return narrow;
}

void FusedBf16Product(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  if (!c.is_contiguous()) return FusedBf16Product(b.t(), a.t(), c.t(), accumulate);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  kernels::MatMul({size(c.size(0)), size(c.size(1)), size(a.size(1))}, Operand(a), Operand(b),
                  nullptr, {c.data_ptr(), kernels::MatType::kF32, accumulate});
}

}  // namespace linnet::ops
