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
// bf16 tensors: products of bf16, sums and states in fp32. fp32 tensors: products with 16 bits of
// mantissa (causal_product_tile.h). The tensor cores determine the order of summation within a
// chunk of 64 or 128 positions; otherwise results depend only on the inputs and on `segments`.
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
  // Number of segments per sequence, each computed by its own blocks (causal_product_tile.h), and
  // positions per segment. Packed sequences have one segment.
  unsigned segments = 1, segment_length = 0;
  size_t kept = 0, scratch = 0;  // floats
};

// Whether the kernels compute this shape: D and M multiples of 8, at most 128.
bool SupportsCausalLinear(const CausalLinearShape& shape);

// segments: 0 chooses it from `processors`, the number of the GPU's multiprocessors. packed: the
// tensors hold packed sequences, and shape.length is the number of rows of all of them.
CausalLinearPlan PlanCausalLinear(const CausalLinearShape& shape,
                                  const CausalLinearOptions& options, int processors,
                                  bool packed = false, unsigned segments = 0);

// Both throw CudaError if a launch fails. T: float, BFloat16.
template <typename T>
void CausalLinearForward(const CausalLinearPlan& plan, const CausalLinearForwardArgsOf<T>& args,
                         float* scratch, Stream stream);
template <typename T>
void CausalLinearBackward(const CausalLinearPlan& plan, const CausalLinearBackwardArgsOf<T>& args,
                          float* scratch, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CAUSAL_LINEAR_H_
