// A step of generation on a GPU, for many sequences that stand at the same position: everything
// except the matrix products (products.h). Each function starts one kernel on a stream.
//
//   StartEmbed<BFloat16>(embed, stream);
//   products.Run(...);                              // queries, keys and values
//   StartLinearStep<BFloat16>(step, stream);
//   products.Run(...);
//   StartNorm<BFloat16>(norm, stream);  ...
//   StartSample(sample, stream);                    // draws the next token of each sequence
//
// No argument changes from step to step: the position is in device memory (DecodeControl), so that
// a captured graph of one step serves all of them. The first kernel of a step takes the position
// over from next_position, and the last one sets next_position.
//
// T is the type of the products' inputs: float or BFloat16. Pointers are to device memory, aligned
// to 16 bytes. d_model is a multiple of 8, at most kMaxWidth; batch x d_model is below 2^32.
#ifndef LINNET_KERNELS_CUDA_DECODE_H_
#define LINNET_KERNELS_CUDA_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kMaxWidth = 1024;     // of d_model
inline constexpr unsigned kMaxHeadWidth = 128;  // features, and values, of a head
inline constexpr unsigned kMaxDrawMixtures = 256;

struct DecodeControl {
  // Of the token that the step reads, and the number of keys that wait beside the sums
  // (kernels/linear_step.h).
  uint32_t position = 0, waiting = 0;
  uint32_t next_position = 0, next_waiting = 0;
  uint32_t recent_keys = 1;  // LinearStepShape::RecentKeys()
  uint32_t known = 0;        // tokens before this position are given, not drawn
  uint64_t seed = 0, first_stream = 0;
  float temperature = 1;
  uint32_t reference_scale = 0;
};

// x = [values[token] + above[byte above the next], positions[position]] or their sum.
struct EmbedArgs {
  DecodeControl* control = nullptr;
  unsigned batch = 0, d_model = 0;
  const int32_t* tokens = nullptr;  // [positions, batch], all that have been read
  const float* values = nullptr;    // [vocabulary, value_width]
  unsigned value_width = 0;
  const float* above = nullptr;  // [vocabulary + 1, value_width]; null: none
  unsigned row_tokens = 0, vocabulary = 0;
  const float* positions = nullptr;  // [positions, position_width]
  unsigned position_width = 0;
  unsigned position_begin = 0;  // their first column of x: 0 where they are added
  float* x = nullptr;           // [batch, d_model]
  void* in = nullptr;           // T [batch, d_model], the same; may be null
};
template <typename T>
void StartEmbed(const EmbedArgs& args, Stream stream);

// A residual branch and the layer norms after it, with LN the norm by `weight` and `bias`:
//   y = LN(x + branch); x = norm_first ? x + branch : y
// then, if next_weight is not null, y = LN'(y) too. y goes to `in` and to `out`.
struct NormArgs {
  unsigned batch = 0, d_model = 0;
  bool norm_first = false;
  float eps = 0;
  float* x = nullptr;
  const void* branch = nullptr;                    // T [batch, d_model]; may be null
  const float *weight = nullptr, *bias = nullptr;  // null: no LN
  const float *next_weight = nullptr, *next_bias = nullptr;
  void* in = nullptr;    // T [batch, d_model]; may be null
  float* out = nullptr;  // [batch, d_model]; may be null
};
template <typename T>
void StartNorm(const NormArgs& args, Stream stream);

// x = gelu(x) for n numbers, the exact form; n is a multiple of 8.
template <typename T>
void StartGelu(size_t n, void* x, Stream stream);

// The position of each sequence and head, as LinearStep() of kernels/linear_step.h, for the map
// elu and with the normalizer. States have the layout of LinearStepShape: what the CPU saved goes
// on here, and the other way round. Exception: the recent keys' part of z is neither read nor
// written, since the waiting rows contain it.
struct DecodeStepArgs {
  const DecodeControl* control = nullptr;
  unsigned batch = 0, heads = 0, dim = 0, value_dim = 0;  // H, F, M
  float eps = 0;
  const void* in = nullptr;  // T [batch, in_stride]: queries [H, F], keys [H, F], values [H, M]
  unsigned in_stride = 0;
  float* states = nullptr;  // of sequence 0: `hot`, then `cold`
  size_t state_stride = 0;  // floats
  void* out = nullptr;      // T [batch, H, M]
};
template <typename T>
void StartLinearStep(const DecodeStepArgs& args, Stream stream);

// Draws token position + 1 of each sequence from a mixture of logistics, as
// SampleMixtureOfLogistics() does with the uniform numbers of Philox(seed, first_stream + sequence,
// position + 1), unless it is known. Advances `control`.
struct SampleArgs {
  DecodeControl* control = nullptr;
  unsigned batch = 0, mixtures = 0;
  const float* outputs = nullptr;  // [batch, output_stride]
  unsigned output_stride = 0;
  int32_t* tokens = nullptr;  // [positions, batch]
};
void StartSample(const SampleArgs& args, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_DECODE_H_
