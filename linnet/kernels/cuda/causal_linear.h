// Causal linear attention on a GPU: the contract of kernels/causal_linear.h, launched on a stream.
//
//   const cuda::CausalLinearPlan plan = cuda::PlanCausalLinear(shape, options, processors);
//   float* kept = ...;     // plan.kept floats, for the backward
//   float* scratch = ...;  // plan.scratch floats
//   cuda::CausalLinearForward(plan, {.q = ..., .out = ..., .kept = kept}, scratch, stream);
//
// All pointers are to device memory, `lengths` and `offsets` too. Rows of q, k, v, out and their
// gradients are aligned to 16 bytes. Calls return before the GPU is done. Nothing is allocated.
//
// With bf16 tensors, products are of bf16, and sums and states are fp32. With fp32 tensors,
// products have 16 bits of mantissa (causal_product_tile.h). The tensor cores determine the order
// of summation within a chunk of 64 or 128 positions; apart from that, results depend only on the
// inputs and on `segments`.
#ifndef LINNET_KERNELS_CUDA_CAUSAL_LINEAR_H_
#define LINNET_KERNELS_CUDA_CAUSAL_LINEAR_H_

#include <cstddef>

#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

struct CausalLinearPlan {
  CausalLinearShape shape;
  CausalLinearOptions options;
  bool packed = false;
  // segments: number of segments that a sequence is divided into, each computed by its own blocks
  // (causal_product_tile.h); 1 for packed sequences. segment_length: positions per segment.
  unsigned segments = 1, segment_length = 0;
  size_t kept = 0, scratch = 0;  // floats
};

// Whether the kernels support this shape: D and M are multiples of 8, at most 128.
bool SupportsCausalLinear(const CausalLinearShape& shape);

// segments = 0 chooses the number of segments from `processors`, the number of the GPU's
// multiprocessors. packed: the tensors hold packed sequences, and shape.length is the total number
// of their rows.
CausalLinearPlan PlanCausalLinear(const CausalLinearShape& shape,
                                  const CausalLinearOptions& options, int processors,
                                  bool packed = false, unsigned segments = 0);

// Forward and backward throw CudaError if a launch fails. T: float, BFloat16.
template <typename T>
void CausalLinearForward(const CausalLinearPlan& plan, const CausalLinearForwardArgsOf<T>& args,
                         float* scratch, Stream stream);
template <typename T>
void CausalLinearBackward(const CausalLinearPlan& plan, const CausalLinearBackwardArgsOf<T>& args,
                          float* scratch, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CAUSAL_LINEAR_H_
