#include <torch/utils.h>

#include <algorithm>
#include <atomic>

#include "linnet/kernels/adam.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/matmul.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

kernels::MatOperand Operand(const Tensor& x) {
  return {x.data_ptr(), kernels::MatType::kBf16, /*transposed=*/!x.is_contiguous()};
}

// Divides the elements of x among the threads: calls body(begin, size).
template <class Body>
void ForPieces(const Tensor& x, const Body& body) {
  constexpr size_t kPiece = 1 << 16;
  const auto size = static_cast<size_t>(x.numel());
  AtParallelFor((size + kPiece - 1) / kPiece, [&](size_t first, size_t last) {
    const size_t begin = first * kPiece;
    body(begin, std::min(last * kPiece, size) - begin);
  });
}

}  // namespace

float FusedMuonAverage(const Tensor& gradient, const Tensor& average, double scale,
                       double momentum) {
  std::atomic<float> largest = 0;
  ForPieces(gradient, [&](size_t begin, size_t size) {
    const float most =
        kernels::MuonAverage(size, static_cast<float>(scale), static_cast<float>(momentum),
                             Data<float>(gradient) + begin, Data<float>(average) + begin);
    float before = largest;
    while (before < most && !largest.compare_exchange_weak(before, most)) {
    }
  });
  return largest;
}

void FusedMuonStep(const Tensor& parameter, const Tensor& x, double decay, double step) {
  ForPieces(x, [&](size_t begin, size_t size) {
    kernels::MuonStep(size, static_cast<float>(decay), static_cast<float>(step),
                      Data<float>(x) + begin, Data<float>(parameter) + begin);
  });
}

Tensor FusedNarrow(const Tensor& x, double factor) {
  const Tensor narrow = torch::empty_like(x, x.options().dtype(torch::kBFloat16));
  ForPieces(x, [&](size_t begin, size_t size) {
    kernels::Narrow(size, Data<float>(x) + begin, Data<kernels::BFloat16>(narrow) + begin,
                    static_cast<float>(factor));
  });
  return narrow;
}

void FusedBf16Product(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  if (!c.is_contiguous()) return FusedBf16Product(b.t(), a.t(), c.t(), accumulate);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  kernels::MatMul({size(c.size(0)), size(c.size(1)), size(a.size(1))}, Operand(a), Operand(b),
                  nullptr, {c.data_ptr(), kernels::MatType::kF32, accumulate});
}

}  // namespace linnet::ops
