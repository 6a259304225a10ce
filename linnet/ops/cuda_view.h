// Converts tensors to arguments of the kernels of kernels/cuda (private to linnet/ops).
#ifndef LINNET_OPS_CUDA_VIEW_H_
#define LINNET_OPS_CUDA_VIEW_H_

#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

#include <cstdint>

#include "linnet/kernels/cuda/device.h"

namespace linnet::ops {

// The current stream of x's GPU.
inline kernels::cuda::Stream StreamOf(const torch::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

// Returns x [N, L, H, width] if its rows are dense and aligned to 16 bytes, and a contiguous copy
// otherwise.
inline torch::Tensor AlignedRows(const torch::Tensor& x) {
  constexpr uintptr_t kBytes = 16;
  const auto aligned = [](uintptr_t bytes) { return bytes % kBytes == 0; };
  bool fits = x.stride(-1) == 1 && aligned(reinterpret_cast<uintptr_t>(x.data_ptr()));
  for (int64_t axis = 0; axis < 3; ++axis) {
    fits = fits && aligned(static_cast<uintptr_t>(x.stride(axis)) * x.element_size());
  }
  return fits ? x : x.clone(torch::MemoryFormat::Contiguous);
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_CUDA_VIEW_H_
