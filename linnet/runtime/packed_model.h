// A model's weights in the order in which the engine reads them (private to linnet/runtime).
//
// A stack is a list of parts, each a residual branch with a layer norm before or after. A part's
// work is split into at most kMaxGroups groups, whatever the number of threads: groups of heads, or
// slices of d_ff. The matrices of a group (from d_model to its heads or hidden units, and back to
// d_model) lie next to each other in reading order, and the groups' contributions to a part's
// result are summed in group order. So the results do not depend on the number of threads, bit for
// bit, and each thread reads one contiguous range of memory between two barriers. In narrow models
// (bf16 and int8) a group's width is a multiple of 64 (kernels::kNarrowInputs), so there are fewer
// groups.
#ifndef LINNET_RUNTIME_PACKED_MODEL_H_
#define LINNET_RUNTIME_PACKED_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/hidden.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/model.h"
#include "linnet/model/checkpoint.h"
#include "linnet/runtime/mixer.h"
#include "linnet/runtime/state_layout.h"

namespace linnet {

inline constexpr size_t kMaxGroups = 8, kMaxNarrowGroups = 4;

// A matrix within Model::Packed::weights, packed as in kernels/linear.h or narrow_linear.h.
using PackedMatrix = const std::byte*;

// A matrix that multiplies the layer's input.
struct PackedProduct {
  size_t width = 0;  // columns
  PackedMatrix matrix = nullptr;
  const float* shift = nullptr;  // [d_model], a token shift of the input; null: none
};

struct PackedGroup {
  size_t begin = 0, end = 0;  // heads, or hidden units
  // Total columns of the products in `in`, and of the columns of an earlier layer that the mixer
  // reads too (MixerInput::carried).
  size_t in_width = 0;
  // For heads: the products that map d_model to the inputs of the mixer. The columns of a product
  // are those of the first head, then of the next. For hidden units: one product, d_model -> hidden
  // units (if gated, all gates come first).
  std::vector<PackedProduct> in = {};
  size_t memory_width = 0;        // cross attention: columns of `memory`
  PackedMatrix memory = nullptr;  // d_model of the memory -> each head's keys and values
  PackedMatrix out = nullptr;     // values or hidden units -> d_model; the first group has the bias
};

enum class PartKind : uint8_t { kConvolution, kMixer, kCross, kFeedForward };

// A residual branch and its layer norm.
struct PackedPart {
  PartKind kind = PartKind::kFeedForward;
  kernels::LayerNormParameters norm{};
  const float* factor =
      nullptr;  // [d_model], input factors of an int8 feed-forward block; null: none
  std::vector<PackedGroup> groups;      // empty for a convolution
  std::shared_ptr<RuntimeMixer> mixer;  // kMixer and kCross
  bool one_norm = false;  // the heads of all groups are normalized together (MixerCall::squares)
  size_t values = 0;      // input width of `out` per head (M) or per hidden unit (1)
  const float *convolution_weight = nullptr, *convolution_bias = nullptr;  // [width, d], [d]
  size_t state = SIZE_MAX;  // index in StateLayout::parts; SIZE_MAX: no state
  // Number of floats at the beginning of the part's state that keep the last row of its input, for
  // token shifts; 0: the part has no token shift.
  size_t shift_floats = 0;

  size_t count() const { return groups.empty() ? 1 : groups.size(); }
};

struct PackedStack {
  std::vector<PackedPart> parts;
  kernels::LayerNormParameters final_norm{};  // null: none
  bool causal = true;
};

// One direction of an LSTM layer. Both matrices map to the gates i, f, g and o, [h] each.
struct PackedLstm {
  PackedMatrix in = nullptr;         // from the layer's inputs; includes both biases
  PackedMatrix recurrent = nullptr;  // from its own previous output
};

// The causal stem of images (StemSpec).
struct PackedStem {
  struct Color {
    size_t bytes = 0;                 // inputs of `features`
    PackedMatrix features = nullptr;  // in f32: bytes -> channels
    PackedMatrix output = nullptr;    // features -> embedding_width
  };
  std::vector<Color> colors;  // empty: the model has no stem
  size_t channels = 0;
  size_t window = 0;        // input width of `output`: positions of the window, times `channels`
  size_t state = SIZE_MAX;  // index in StateLayout::parts; SIZE_MAX: no state
};

// Patches of images (PatchSpec).
struct PackedPatch {
  size_t tokens = 1, width = 0, d_ff = 0, convolution = 0;
  PackedMatrix in = nullptr, out = nullptr;                                // A and B
  const float *convolution_weight = nullptr, *convolution_bias = nullptr;  // c and d
  PackedMatrix linear1 = nullptr, linear2 = nullptr;                       // W1 and W2
  const float* factor = nullptr;                  // [width], of linear1 in int8; null: none
  kernels::LayerNormParameters norm1{}, norm2{};  // before linear1, and of the head's input
  // Index in StateLayout::parts; SIZE_MAX: no state. The state holds the last P embeddings u, u[n]
  // at index (n + P - 1) mod P, and then the P rows of B y + b of the last patch.
  size_t state = SIZE_MAX;

  size_t floats() const { return tokens * width; }
};

struct LINNET_HIDDEN Model::Packed {
  Packed(const Checkpoint& checkpoint, Precision precision);

  bool narrow() const { return precision != Precision::kF32; }
  bool gated() const { return spec.stack.feed_forward == FeedForwardKind::kGated; }
  bool shifted() const { return spec.stack.feed_forward == FeedForwardKind::kShifted; }
  Precision predictor_precision() const { return PredictorPrecision(spec, precision); }
  static kernels::NarrowType NarrowTypeOf(Precision precision) {
    return precision == Precision::kInt8 ? kernels::NarrowType::kInt8 : kernels::NarrowType::kBf16;
  }
  static size_t MatrixBytes(Precision precision, size_t in, size_t out) {
    return precision == Precision::kF32
               ? kernels::PackedLinearSize(in, out) * sizeof(float)
               : kernels::PackedNarrowSize(NarrowTypeOf(precision), in, out);
  }
  // Whether the model runs as an RNN, because every layer has a state. Other models read whole
  // sequences.
  bool steps() const { return steps_; }

  ModelSpec spec;
  Precision precision;
  std::string path, training;
  uint64_t fingerprint = 0;
  size_t d_model, d_ff, outputs, value_embedding;
  size_t embedding_width;  // ModelSpec::EmbeddingWidth()
  size_t position_dims;
  // Whether positions continue past the table, by the sine formula.
  bool endless_positions = true;
  size_t widest = 0;    // the largest in_width or memory_width of a group
  size_t carried = 0;   // maximum number of columns that a layer carries to later ones
  bool shifts = false;  // some part has a token shift
  kernels::Activation activation;
  std::shared_ptr<const StateLayout> layout;

  AlignedBuffer<std::byte> weights;
  PackedStack stack;    // before the predictor: the decoder, or the only stack
  PackedStack encoder;  // of an encoder-decoder; otherwise has no parts
  std::vector<PackedLstm>
      lstm;  // per layer: forward, then backward direction; if present, `stack` is empty
  kernels::LayerNormParameters embedding_norm{};  // null: none
  PackedStem stem;
  PackedPatch patch;
  PackedMatrix predictor = nullptr;
  PackedMatrix input_projection = nullptr;           // of frames; in the predictor's precision
  AlignedBuffer<float> input_mean, input_deviation;  // of frames, [bands]; empty: none

  AlignedBuffer<float> values;       // value_embedding.weight, or predictor.weight if it is tied
  AlignedBuffer<float> positions;    // [max_length, position_dims]
  AlignedBuffer<float> above;        // above_embedding.weight, or empty
  AlignedBuffer<float> first_value;  // distribution of an image's first byte, or empty

 private:
  void Cut(const Checkpoint& checkpoint);
  void ReadTables(const Checkpoint& checkpoint);

  bool steps_ = true;
};

// y = x W^T + b, or y += x W^T + b, for rows of floats. If the matrix is narrow, the rows are first
// multiplied by `factor` [in], unless it is null, and rounded into `narrow` (NarrowRowsSize()
// bytes; null in f32).
inline void Multiply(Precision precision, size_t rows, size_t in, size_t out, const float* x,
                     size_t x_stride, PackedMatrix matrix, kernels::LinearMode mode, float* y,
                     size_t y_stride, std::byte* narrow, const float* factor = nullptr) {
  if (precision == Precision::kF32) {
    return kernels::Linear(rows, in, out, x, x_stride, reinterpret_cast<const float*>(matrix), mode,
                           y, y_stride);
  }
  const kernels::NarrowRows rounded =
      kernels::TakeNarrowRows(Model::Packed::NarrowTypeOf(precision), rows, in, narrow);
  kernels::NarrowActivations(rows, in, x, x_stride, factor, rounded);
  kernels::NarrowLinear(rows, in, out, rounded, matrix, mode, y, y_stride);
}

// The state layout of models with this spec; needs no weights.
std::shared_ptr<const StateLayout> MakeStateLayout(const ModelSpec& spec, Precision precision);

}  // namespace linnet

#endif  // LINNET_RUNTIME_PACKED_MODEL_H_
