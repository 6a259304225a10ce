#include <torch/utils.h>

#include "linnet/kernels/matmul.h"
#include "linnet/ops/fused.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

kernels::MatOperand Operand(const Tensor& x) {
  return {x.data_ptr(), kernels::MatType::kBf16, /*transposed=*/!x.is_contiguous()};
}

}  // namespace

void FusedBf16Product(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  if (!c.is_contiguous()) return FusedBf16Product(b.t(), a.t(), c.t(), accumulate);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  kernels::MatMul({size(c.size(0)), size(c.size(1)), size(a.size(1))}, Operand(a), Operand(b),
                  nullptr, {c.data_ptr(), kernels::MatType::kF32, accumulate});
}

}  // namespace linnet::ops
