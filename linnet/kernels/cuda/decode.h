// Kernels for a step of generation on a GPU, for many sequences at the same position. They compute
// everything except the matrix products (products.h). Each Start function launches one kernel on a
// stream.
//
//   StartEmbed<BFloat16>(embed, stream);
//   products.Run(...);                              // queries, keys and values
//   StartLinearStep<BFloat16>(step, stream);
//   products.Run(...);
//   StartNorm<BFloat16>(norm, stream);  ...
//   StartSample(sample, stream);                    // draws the next token of each sequence
//
// No argument changes from step to step: the position is in device memory (DecodeControl), so one
// captured graph (graph.h) serves all steps. The first kernel of a step copies next_position and
// next_waiting to position and waiting; the last kernel sets next_position and next_waiting for the
// following step.
//
// T is the type of the matrix products' inputs and outputs: float or BFloat16. Pointers are to
// device memory, aligned to 16 bytes. d_model is a multiple of 8, at most kMaxWidth;
// batch x d_model is below 2^32.
#ifndef LINNET_KERNELS_CUDA_DECODE_H_
#define LINNET_KERNELS_CUDA_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kMaxWidth = 1024;        // maximum d_model
inline constexpr unsigned kMaxHeadWidth = 128;     // maximum F and M of a head
inline constexpr unsigned kMaxDrawMixtures = 256;  // maximum mixture components (SampleArgs)

struct DecodeControl {
  // position: the position of the token that this step reads. waiting: the number of recent keys
  // that are not yet in the sums (kernels/linear_step.h). next_position, next_waiting: the same for
  // the next step.
  uint32_t position = 0, waiting = 0;
  uint32_t next_position = 0, next_waiting = 0;
  uint32_t recent_keys = 1;             // LinearStepShape::RecentKeys()
  uint32_t known = 0;                   // tokens at positions below this are given, not drawn
  uint64_t seed = 0, first_stream = 0;  // Philox seed, and stream of sequence 0
  float temperature = 1;
  uint32_t reference_scale = 0;  // not 0: sets LogisticsSamplerOptions::reference_scale
};

// Embeds each sequence's token at the position that the step reads: e = values[token]. If `above`
// is not null, above[u] is added to e, where u is the token one image row above position + 1, or
// `vocabulary` if position + 1 is in the first row. x is e followed by positions[position],
// or the sum of e and positions[position], depending on position_begin.
struct EmbedArgs {
  DecodeControl* control = nullptr;
  unsigned batch = 0, d_model = 0;
  const int32_t* tokens = nullptr;  // [positions, batch], filled up to the position
  const float* values = nullptr;    // [vocabulary, value_width]
  unsigned value_width = 0;
  const float* above = nullptr;             // [vocabulary + 1, value_width]; null: none
  unsigned row_tokens = 0, vocabulary = 0;  // row_tokens: tokens per image row
  const float* positions = nullptr;         // [positions, position_width]
  unsigned position_width = 0;
  unsigned position_begin = 0;  // column of x where positions begin: value_width, or 0 for the sum
  float* x = nullptr;           // [batch, d_model]
  void* in = nullptr;           // T [batch, d_model], x as an input of products; may be null
};
template <typename T>
void StartEmbed(const EmbedArgs& args, Stream stream);

// Adds a residual branch to x and applies the layer norms that follow. LN is the norm with `weight`
// and `bias`, LN' the norm with `next_weight` and `next_bias`:
//   s = x + branch; y = LN(s), or LN'(LN(s)) if next_weight is not null; x = norm_first ? s : y
// y is written to `in` and to `out`.
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

// x = gelu(x) for n numbers, in the exact form with erf; n is a multiple of 8.
template <typename T>
void StartGelu(size_t n, void* x, Stream stream);

// Steps each sequence and head by one position, like LinearStep() of kernels/linear_step.h with
// FeatureMap::kElu and `normalize`. States have the layout of LinearStepShape, so they can move
// between CPU and GPU, with one exception: the sum of the waiting keys, which is stored beside z,
// is neither read nor written here. SumRecentKeys() (recent_keys.h) computes this sum when a state
// moves to the CPU.
struct DecodeStepArgs {
  const DecodeControl* control = nullptr;
  unsigned batch = 0, heads = 0, dim = 0, value_dim = 0;  // H, F, M
  float eps = 0;
  const void* in = nullptr;  // T [batch, in_stride]: queries [H, F], keys [H, F], values [H, M]
  unsigned in_stride = 0;
  float* states = nullptr;  // `hot`, then `cold` (LinearStepShape), of sequence 0
  size_t state_stride = 0;  // floats from one sequence to the next
  void* out = nullptr;      // T [batch, H, M]
};
template <typename T>
void StartLinearStep(const DecodeStepArgs& args, Stream stream);

// Draws each sequence's token at position + 1 from a mixture of logistics, unless position + 1 <
// known. The token is the byte that SampleMixtureOfLogistics() returns for the first two uniform
// numbers of Philox(seed, first_stream + sequence, position + 1). Sets next_position and
// next_waiting.
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
