// Which models the kernels of few.h can step, and how they divide a feed-forward branch into groups
// (slices of its hidden units).
#ifndef LINNET_KERNELS_CUDA_FEW_SIZES_H_
#define LINNET_KERNELS_CUDA_FEW_SIZES_H_

#include "linnet/kernels/cuda/few_tile.h"

namespace linnet::kernels::cuda {

// Hidden units per group: 64, or fewer in wide models, so that a group's weights take at most 66 KB
// of shared memory and other blocks can share the multiprocessor.
template <typename T>
unsigned FewSlice(unsigned d_model) {
  constexpr unsigned kMostBytes = 66 * 1024;
  unsigned slice = 64;
  while (slice > 8 && FewFeedForwardShared<T>(slice, d_model) > kMostBytes + kFewWeights) {
    slice /= 2;
  }
  return slice;
}
// Number of groups of a feed-forward branch.
template <typename T>
unsigned FewSlices(unsigned d_model, unsigned d_ff) {
  return (d_ff + FewSlice<T>(d_model) - 1) / FewSlice<T>(d_model);
}

struct FewShape {
  unsigned dim = 0, value_dim = 0, d_model = 0, d_ff = 0, outputs = 0, mixtures = 0;
};

// Whether few.h can step a model of these sizes: widths must be multiples of 8 within the limits of
// the kernels, and each group must fit into shared memory.
template <typename T>
bool FewRuns(const FewShape& shape) {
  constexpr unsigned kSharedBytes = 160 * 1024;  // per block; sm_80, sm_90 and sm_100 allow more
  const unsigned f = shape.dim, m = shape.value_dim, d = shape.d_model;
  return f % 8 == 0 && m % 8 == 0 && d % 8 == 0 && shape.d_ff % 8 == 0 && d <= kMaxWidth &&
         f <= kMaxHeadWidth && 2 * f + 2 * m <= kFewInner && 8 * shape.mixtures <= 4 * kFewInner &&
         FewAttendShared<T>(f, m, PaddedWidth(f), d) <= kSharedBytes &&
         FewFeedForwardShared<T>(FewSlice<T>(d), d) <= kSharedBytes &&
         FewHeadShared(shape.outputs, d) <= kSharedBytes;
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_FEW_SIZES_H_
