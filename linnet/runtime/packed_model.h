// A model's weights as the engine walks them (private to linnet/runtime).
//
// A stack is a list of parts: x takes what each part makes of it, with a layer norm before or after. A
// part's work is cut into at most kMaxGroups groups whatever the number of threads: groups of heads, and
// slices of d_ff. A group's two products (into the group's own heads or hidden units, and from them back
// to d_model) lie side by side in the order in which they are read, and the groups' shares of a part's
// result are summed in the groups' order. So threads split the work without changing a bit, and each
// reads one run of memory between two barriers. Narrow matrices want wider groups, of a multiple of
// their 64 inputs, and so fewer.
#ifndef LINNET_RUNTIME_PACKED_MODEL_H_
#define LINNET_RUNTIME_PACKED_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/runtime/mixer.h"
#include "linnet/runtime/model.h"
#include "linnet/runtime/state_layout.h"

namespace linnet {

inline constexpr size_t kMaxGroups = 8, kMaxNarrowGroups = 4;

// A matrix within `weights`, as kernels/linear.h or narrow_linear.h has it packed.
using PackedMatrix = const std::byte*;

struct PackedGroup {
  size_t begin = 0, end = 0;      // heads, or hidden units
  size_t in_width = 0;            // columns of `in`
  PackedMatrix in = nullptr;      // d_model -> each head's projections in turn, or -> hidden units
  size_t memory_width = 0;        // cross attention: of `memory`
  PackedMatrix memory = nullptr;  // d_model of a memory -> each head's keys and values
  PackedMatrix out = nullptr;  // values or hidden units -> d_model; the first group adds the bias
};

enum class PartKind : uint8_t { kConvolution, kMixer, kCross, kFeedForward };

// x + f(x), and a norm.
struct PackedPart {
  PartKind kind = PartKind::kFeedForward;
  kernels::LayerNormParameters norm{};
  const float* factor =
      nullptr;  // [d_model], of the inputs of an int8 feed-forward block; null: none
  std::vector<PackedGroup> groups;      // none of a convolution
  std::shared_ptr<RuntimeMixer> mixer;  // kMixer and kCross
  size_t values = 0;                    // columns of a head, or of a hidden unit: 1
  const float *convolution_weight = nullptr, *convolution_bias = nullptr;  // [width, d], [d]
  size_t state = SIZE_MAX;  // index in StateLayout::parts; SIZE_MAX: it keeps nothing

  size_t count() const { return groups.empty() ? 1 : groups.size(); }
};

struct PackedStack {
  std::vector<PackedPart> parts;
  kernels::LayerNormParameters final_norm{};  // null where there is none
  bool causal = true;
};

// One direction of an LSTM's layer: to the gates i, f, g and o, [h] each.
struct PackedLstm {
  PackedMatrix in = nullptr;         // of the layer's inputs, with both biases
  PackedMatrix recurrent = nullptr;  // of its own last output
};

struct Model::Packed {
  Packed(const Checkpoint& checkpoint, Precision precision);

  bool narrow() const { return precision != Precision::kF32; }
  Precision predictor_precision() const { return PredictorPrecision(spec, precision); }
  static kernels::NarrowType NarrowTypeOf(Precision precision) {
    return precision == Precision::kInt8 ? kernels::NarrowType::kInt8 : kernels::NarrowType::kBf16;
  }
  static size_t MatrixBytes(Precision precision, size_t in, size_t out) {
    return precision == Precision::kF32
               ? kernels::PackedLinearSize(in, out) * sizeof(float)
               : kernels::PackedNarrowSize(NarrowTypeOf(precision), in, out);
  }
  // Whether it is an RNN: every layer has a state. (What is none reads whole sequences.)
  bool steps() const { return steps_; }

  ModelSpec spec;
  Precision precision;
  std::string path, training;
  uint64_t fingerprint = 0;
  size_t d_model, d_ff, outputs, value_embedding;
  size_t position_dims;
  // Whether positions go on behind the table: it is the formula's.
  bool endless_positions = true;
  size_t widest = 0;  // the largest number of columns between the two products of a group
  kernels::Activation activation;
  std::shared_ptr<const StateLayout> layout;

  AlignedBuffer<std::byte> weights;
  PackedStack stack;    // that predicts
  PackedStack encoder;  // of an encoder-decoder; else without parts
  std::vector<PackedLstm>
      lstm;  // each layer's forward and backward direction; then `stack` is empty
  PackedMatrix predictor = nullptr;
  PackedMatrix input_projection = nullptr;           // of frames: as the predictor, narrow or not
  AlignedBuffer<float> input_mean, input_deviation;  // of frames, [bands]; empty: none

  AlignedBuffer<float> values;     // [vocabulary, value_embedding]
  AlignedBuffer<float> positions;  // [max_length, position_dims]
  AlignedBuffer<float> above;      // [vocabulary + 1, value_embedding], or empty
  AlignedBuffer<float> first_value;

 private:
  void Cut(const Checkpoint& checkpoint);
  void ReadTables(const Checkpoint& checkpoint);

  bool steps_ = true;
};

// y = x W^T + b of rows of floats, which a narrow matrix wants rounded first: into `narrow`, of
// NarrowRowsSize() bytes; null in f32.
inline void Multiply(Precision precision, size_t rows, size_t in, size_t out, const float* x,
                     size_t x_stride, PackedMatrix matrix, kernels::LinearMode mode, float* y,
                     size_t y_stride, std::byte* narrow) {
  if (precision == Precision::kF32) {
    return kernels::Linear(rows, in, out, x, x_stride, reinterpret_cast<const float*>(matrix), mode,
                           y, y_stride);
  }
  const kernels::NarrowRows rounded =
      kernels::TakeNarrowRows(Model::Packed::NarrowTypeOf(precision), rows, in, narrow);
  kernels::NarrowActivations(rows, in, x, x_stride, nullptr, rounded);
  kernels::NarrowLinear(rows, in, out, rounded, matrix, mode, y, y_stride);
}

// The layout of such a model's states, known before its weights are.
std::shared_ptr<const StateLayout> MakeStateLayout(const ModelSpec& spec, Precision precision);

}  // namespace linnet

#endif  // LINNET_RUNTIME_PACKED_MODEL_H_
