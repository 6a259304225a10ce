// Causal linear attention on a GPU: the contract of kernels/causal_linear.h, on a stream.
//
//   const cuda::CausalLinearPlan plan = cuda::PlanCausalLinear(shape, options, processors);
//   float* kept = ...;     // plan.kept floats, for the backward
//   float* scratch = ...;  // plan.scratch floats
//   cuda::CausalLinearForward(plan, {.q = ..., .out = ..., .kept = kept}, scratch, stream);
//
// All pointers are to the GPU's memory, `lengths` and `offsets` too. Rows of q, k, v, out and their
// gradients are aligned to 16 bytes. Calls return before the GPU is done. Nothing is allocated.
//
// bf16 tensors: products of bf16, sums and states in fp32. fp32 tensors: products of 16 bits of
// mantissa (causal_product_tile.h). Sums within a chunk of 64 or 128 positions are added in the order
// of the tensor cores; otherwise results depend on nothing but the inputs and `segments`.
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
  // Parts of a sequence that blocks compute side by side (causal_product_tile.h).
  unsigned segments = 1, segment_length = 0;
  size_t kept = 0, scratch = 0;  // floats
};

// Whether the kernels compute this shape: D and M multiples of 8, at most 128.
bool SupportsCausalLinear(const CausalLinearShape& shape);

// processors: the GPU's multiprocessors, which decide on `segments`, unless it is given. packed:
// shape.length is then the number of rows of all sequences.
CausalLinearPlan PlanCausalLinear(const CausalLinearShape& shape,
                                  const CausalLinearOptions& options, int processors,
                                  bool packed = false, unsigned segments = 0);

// Throw CudaError if a launch fails. T: float, BFloat16.
template <typename T>
void CausalLinearForward(const CausalLinearPlan& plan, const CausalLinearForwardArgsOf<T>& args,
                         float* scratch, Stream stream);
template <typename T>
void CausalLinearBackward(const CausalLinearPlan& plan, const CausalLinearBackwardArgsOf<T>& args,
                          float* scratch, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CAUSAL_LINEAR_H_
