// Gated recurrences on a GPU: the contract of kernels/scan.h, launched on a stream.
//
//   const cuda::ScanPlan plan = cuda::PlanScan(shape, options);
//   float* kept = ...;     // plan.kept floats, which the forward writes for the backward
//   float* scratch = ...;  // plan.scratch floats, for the backward
//   cuda::ScanForward(plan, {.in = ..., .out = ..., .kept = kept}, stream);
//
// Differences from kernels/scan.h: there is no normalizer; D and M are multiples of 4, at most 128;
// rows of tensors are aligned to 16 bytes, except rows of one number; of the gradients, those of q,
// k, v and of all inputs that the options use are required; `kept` and `scratch` have other sizes.
// All pointers are to device memory, `lengths` and `offsets` too. Calls return before the GPU is
// done. Nothing is allocated.
//
// The kernels compute in fp32, position by position (scan_tile.h), so the time of a call grows with
// the length even if the GPU is otherwise idle. Results depend on the inputs only, and a sequence
// in two pieces gives the bits of the whole sequence.
#ifndef LINNET_KERNELS_CUDA_SCAN_H_
#define LINNET_KERNELS_CUDA_SCAN_H_

#include <cstddef>

#include "linnet/kernels/cuda/device.h"
#include "linnet/kernels/scan.h"

namespace linnet::kernels::cuda {

struct ScanPlan {
  ScanShape shape;
  ScanOptions options;
  bool packed = false;           // the tensors hold packed sequences of shape.length rows in all
  size_t kept = 0, scratch = 0;  // floats
};

// Whether the kernels support this shape and these options.
bool SupportsScan(const ScanShape& shape, const ScanOptions& options);

ScanPlan PlanScan(const ScanShape& shape, const ScanOptions& options, bool packed = false);

// Both throw CudaError if a launch fails. args.kept may be null in the forward if no backward
// follows.
void ScanForward(const ScanPlan& plan, const ScanForwardArgs& args, Stream stream);
void ScanBackward(const ScanPlan& plan, const ScanBackwardArgs& args, float* scratch,
                  Stream stream);

// The scan by channel, whose contract is that of kernels/scan.h.
void ChannelScanForward(const ChannelScanShape& shape, const ChannelScanArgs& args, Stream stream);
void ChannelScanBackward(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                         Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_SCAN_H_
