// Row-wise operations on a GPU, computed by the kernels of kernels/cuda/training_rows.h.
#include <c10/cuda/CUDAGuard.h>
#include <torch/utils.h>

#include "linnet/kernels/cuda/training_rows.h"
#include "linnet/ops/cuda.h"
#include "linnet/ops/cuda_view.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Floats(at::IntArrayRef sizes, const Tensor& like) {
  return torch::empty(sizes, like.options().dtype(torch::kFloat32));
}

bool Aligned(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0; }

unsigned Size(const Tensor& x, int64_t axis) { return static_cast<unsigned>(x.size(axis)); }

}  // namespace

bool CudaAddNormTakes(const Tensor& x, const std::vector<Tensor>& others) {
  const auto fits = [](const Tensor& one) {
    return !one.defined() || (one.scalar_type() == torch::kFloat32 && one.is_contiguous() &&
                              one.is_cuda() && Aligned(one));
  };
  bool all = fits(x) && x.numel() > 0 && x.size(1) % 4 == 0 &&
             x.size(1) <= kernels::cuda::kMaxTrainingWidth && !PlainGuard::asked();
  for (const Tensor& one : others) all = all && fits(one);
  return all;
}

std::pair<Tensor, Tensor> CudaAddNorm(const Tensor& x, const Tensor& bias, const Tensor& residual,
                                      const Norm& norm) {
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor out, stats;
  if (norm.defined()) out = torch::empty_like(x), stats = Floats({x.size(0), 2}, x);
  const auto data = [](const Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; };
  kernels::cuda::StartAddNorm({.rows = Size(x, 0),
                               .width = Size(x, 1),
                               .x = data(x),
                               .bias = data(bias),
                               .residual = data(residual),
                               .weight = data(norm.weight),
                               .offset = data(norm.bias),
                               .eps = static_cast<float>(norm.eps),
                               .out = data(out),
                               .stats = data(stats)},
                              StreamOf(x));
  return {out, stats};
}

CudaAddNormGradients CudaAddNormBackward(const Tensor& grad_in, const Tensor& x,
                                         const Tensor& stats, const Tensor& weight) {
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor grad = grad_in.contiguous();
  if (!Aligned(grad)) grad = grad.clone();
  const unsigned rows = Size(x, 0), width = Size(x, 1);
  // The fields are x, narrow and sums. `sums` holds the gradients of the norm's weight, the norm's
  // bias, and the bias that CudaAddNorm() added.
  CudaAddNormGradients result{torch::empty_like(x),
                              torch::empty(x.sizes(), x.options().dtype(torch::kBFloat16)),
                              Floats({3, x.size(1)}, x)};
  const Tensor partial =
      Floats({static_cast<int64_t>(kernels::cuda::AddNormGradPartial(rows, width))}, x);
  kernels::cuda::StartAddNormGrad(
      {.rows = rows,
       .width = width,
       .x = x.data_ptr<float>(),
       .stats = stats.data_ptr<float>(),
       .weight = weight.data_ptr<float>(),
       .grad_out = grad.data_ptr<float>(),
       .grad_x = result.x.data_ptr<float>(),
       .grad_x_narrow = static_cast<kernels::BFloat16*>(result.narrow.data_ptr()),
       .sums = result.sums.data_ptr<float>(),
       .partial = partial.data_ptr<float>()},
      StreamOf(x));
  return result;
}

bool CudaColumnSumsTakes(const Tensor& x) {
  return CudaAttention(x) && x.stride(1) == 1 && x.stride(0) % 4 == 0 && x.size(1) % 4 == 0 &&
         Aligned(x);
}

Tensor CudaColumnSums(const Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const unsigned rows = Size(x, 0), width = Size(x, 1);
  const Tensor sums = Floats({x.size(1)}, x);
  const Tensor partial =
      Floats({static_cast<int64_t>(kernels::cuda::ColumnSumsPartial(rows, width))}, x);
  ForElement(x, [&](auto element) {
    using T = decltype(element);
    kernels::cuda::StartColumnSums<T>({.rows = rows,
                                       .width = width,
                                       .stride = static_cast<size_t>(x.stride(0)),
                                       .x = static_cast<const T*>(x.data_ptr()),
                                       .sums = sums.data_ptr<float>(),
                                       .partial = partial.data_ptr<float>()},
                                      StreamOf(x));
  });
  return sums;
}

}  // namespace linnet::ops
