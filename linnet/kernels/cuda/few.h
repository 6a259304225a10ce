// A step of generation for few sequences on a GPU. It takes two kernels per layer and one for the
// model's head; decode.h with its matrix products takes seven or eight per layer. The two kernels
// of a layer compute its two residual branches: attention and feed-forward. A branch is divided
// into groups: heads, or slices of the hidden units. A block first adds up all groups of the
// previous branch and normalizes the result, then computes one group of its own branch for one
// sequence. It copies its weights to shared memory while the previous kernel still runs.
//
//   StartFewAttend<float>({.input = {.embeds = true, ...}, ...}, stream);
//   StartFewFeedForward<float>(...);  ...
//   StartFewHead<float>(...);
//
// few_sizes.h determines which models fit. Activations and sums are fp32; the layers' weights have
// the type T. Widths (F, M, d_model, d_ff) are multiples of 8. DecodeControl and the states are
// those of decode.h.
#ifndef LINNET_KERNELS_CUDA_FEW_H_
#define LINNET_KERNELS_CUDA_FEW_H_

#include <cstddef>

#include "linnet/kernels/cuda/decode.h"

namespace linnet::kernels::cuda {

// How a kernel computes its input. The residual stream s is the embedding, or x + bias + the sum of
// `sums` over the groups of the previous branch. LN is the norm with `weight` and `norm_bias`, LN'
// the norm with `next_weight` and `next_bias`. The kernel reads y = LN(s), or LN'(LN(s)) if
// next_weight is not null. x_next receives norm_first ? s : y.
template <typename T>
struct FewInput {
  bool embeds = false;
  EmbedArgs embed = {};  // if `embeds`; x and `in` are not used
  unsigned batch = 0, d_model = 0;
  bool norm_first = false;
  float eps = 0;
  const float* x = nullptr;     // [batch, d_model]
  const float* sums = nullptr;  // [groups, batch, d_model]: the previous branch
  unsigned groups = 0;
  const T* bias = nullptr;                              // [d_model]
  const float *weight = nullptr, *norm_bias = nullptr;  // null: no LN
  const float *next_weight = nullptr, *next_bias = nullptr;
  float* x_next = nullptr;  // [batch, d_model]; may be null
};

// The attention branch. A group is a head.
template <typename T>
struct FewAttendArgs {
  FewInput<T> input;
  DecodeStepArgs step;                                  // `in` and `out` are not used
  const T *project = nullptr, *project_bias = nullptr;  // [H (2 F + M), d_model]: rows of q, k, v
  const T* merge = nullptr;                             // [d_model, H M]: output projection
  float* sums = nullptr;                                // [H, batch, d_model]
};

// The feed-forward branch. A group is `slice` hidden units.
template <typename T>
struct FewFeedForwardArgs {
  FewInput<T> input;
  unsigned d_ff = 0, slice = 0;
  bool gelu = false;                          // otherwise relu
  const T *up = nullptr, *up_bias = nullptr;  // [d_ff, d_model]
  const T* down = nullptr;                    // [d_model, d_ff]
  float* sums = nullptr;                      // [groups, batch, d_model]
};

// The model's head (its output layer), then the sampler.
template <typename T>
struct FewHeadArgs {
  FewInput<T> input;
  const float *weight = nullptr, *bias = nullptr;  // [outputs, d_model]
  unsigned outputs = 0;
  float* to = nullptr;  // [batch, sample.output_stride]
  SampleArgs sample;    // sample.outputs must be `to`
};

template <typename T>
void StartFewAttend(const FewAttendArgs<T>& args, Stream stream);
template <typename T>
void StartFewFeedForward(const FewFeedForwardArgs<T>& args, Stream stream);
template <typename T>
void StartFewHead(const FewHeadArgs<T>& args, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_FEW_H_
