// A step of generation for few sequences on a GPU: two kernels a layer and one for the head, where
// decode.h has seven and the matrix products. Each kernel is a residual branch, cut into groups: a
// block reads the sums of all groups before it, adds and normalizes them, and computes one group of
// its own branch (a head, or a slice of the hidden units) for one sequence. Its weights come into
// shared memory while the kernel before it still runs.
//
//   StartFewAttend<float>({.input = {.embeds = true, ...}, ...}, stream);
//   StartFewFeedForward<float>(...);  ...
//   StartFewHead<float>(...);
//
// few_sizes.h says which models fit. Sums are fp32 throughout; only weights have the type T. Widths (F, M, d_model, d_ff) are multiples
// of 8. The same control and states as in decode.h.
#ifndef LINNET_KERNELS_CUDA_FEW_H_
#define LINNET_KERNELS_CUDA_FEW_H_

#include <cstddef>

#include "linnet/kernels/cuda/decode.h"

namespace linnet::kernels::cuda {

// The residual stream: the embedding, or s = x + bias + the sum of the groups before. With LN the
// norm by `weight` and `norm_bias`, a branch reads y = LN(s), and LN' of it if next_weight is given;
// x_next = norm_first ? s : y.
template <typename T>
struct FewInput {
  bool embeds = false;
  EmbedArgs embed = {};  // if it embeds; without x and `in`
  unsigned batch = 0, d_model = 0;
  bool norm_first = false;
  float eps = 0;
  const float* x = nullptr;     // [batch, d_model]
  const float* sums = nullptr;  // [groups, batch, d_model]
  unsigned groups = 0;
  const T* bias = nullptr;                              // [d_model]
  const float *weight = nullptr, *norm_bias = nullptr;  // null: no LN
  const float *next_weight = nullptr, *next_bias = nullptr;
  float* x_next = nullptr;  // [batch, d_model]; may be null
};

// A group is a head.
template <typename T>
struct FewAttendArgs {
  FewInput<T> input;
  DecodeStepArgs step;                                  // without `in` and `out`
  const T *project = nullptr, *project_bias = nullptr;  // [H (2 F + M), d_model], as for decode.h
  const T* merge = nullptr;                             // [d_model, H M]
  float* sums = nullptr;                                // [H, batch, d_model]
};

// A group is `slice` hidden units.
template <typename T>
struct FewFeedForwardArgs {
  FewInput<T> input;
  unsigned d_ff = 0, slice = 0;
  bool gelu = false;                          // else relu
  const T *up = nullptr, *up_bias = nullptr;  // [d_ff, d_model]
  const T* down = nullptr;                    // [d_model, d_ff]
  float* sums = nullptr;                      // [groups, batch, d_model]
};

template <typename T>
struct FewHeadArgs {
  FewInput<T> input;
  const float *weight = nullptr, *bias = nullptr;  // [outputs, d_model]
  unsigned outputs = 0;
  float* to = nullptr;  // [batch, sample.output_stride]
  SampleArgs sample;    // its `outputs` is `to`
};

template <typename T>
void StartFewAttend(const FewAttendArgs<T>& args, Stream stream);
template <typename T>
void StartFewFeedForward(const FewFeedForwardArgs<T>& args, Stream stream);
template <typename T>
void StartFewHead(const FewHeadArgs<T>& args, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_FEW_H_
