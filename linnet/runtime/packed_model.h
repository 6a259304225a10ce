// A model's weights as the engine walks them (private to linnet/runtime).
//
// A layer's work is cut into at most kMaxGroups groups whatever the number of threads: groups of
// heads, and slices of d_ff. A group's two products (into the group's own heads or hidden units,
// and from them back to d_model) lie side by side in the order in which they are read, and the
// groups' shares of a layer's result are summed in the groups' order. So threads split the work
// without changing a bit, and each reads one run of memory between two barriers. Narrow matrices
// want wider groups, of a multiple of their 64 inputs, and so fewer.
#ifndef LINNET_RUNTIME_PACKED_MODEL_H_
#define LINNET_RUNTIME_PACKED_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/lsh_attention.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/runtime/features.h"
#include "linnet/runtime/model.h"
#include "linnet/runtime/state_layout.h"

namespace linnet {

inline constexpr size_t kMaxGroups = 8, kMaxNarrowGroups = 4;

// A matrix within `weights`, as kernels/linear.h or narrow_linear.h has it packed.
using PackedMatrix = const std::byte*;

// One direction of an LSTM's layer, always in f32: to the gates i, f, g and o, [h] each.
struct PackedLstm {
  PackedMatrix in = nullptr;         // of the layer's inputs, with both biases
  PackedMatrix recurrent = nullptr;  // of its own last output
};

struct PackedGroup {
  size_t begin = 0, end = 0;   // heads, or hidden units
  PackedMatrix in = nullptr;   // d_model -> q, k, v of each head in turn, or -> hidden units
  PackedMatrix out = nullptr;  // values or hidden units -> d_model; the first group adds the bias
};

struct PackedConvolution {
  const float *weight = nullptr, *bias = nullptr;  // [convolution, d_model], [d_model]
  kernels::LayerNormParameters norm{};
};

struct PackedLayer {
  PackedConvolution convolution = {};  // null without one
  std::vector<PackedGroup> attention, feed_forward;
  const float* omega = nullptr;                // [dim, columns] of a random feature map
  const float* feed_forward_factor = nullptr;  // [d_model], of its inputs; null: none
  kernels::LayerNormParameters norm1{}, norm2{};
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

  size_t QkvWidth(const PackedGroup& group) const { return (group.end - group.begin) * head_width; }

  ModelSpec spec;
  Precision precision;
  std::string path, training;
  uint64_t fingerprint = 0;
  size_t d_model, heads, dim, value_dim, d_ff, outputs, value_embedding;
  size_t head_width;                            // q, k and v of one head: 2 dim + value_dim
  size_t most_heads;                            // of a group
  size_t features;                              // F, of each head; dim where the map is fused
  const FeatureMapBody* feature_map = nullptr;  // that is not fused
  size_t omega_columns = 0;
  float floor = 0;          // LinearStepArgs::floor
  float softmax_scale = 1;  // of q . k, for softmax
  StateLayout layout;
  size_t widest;  // the largest number of columns between the two products of a group
  kernels::CausalLinearOptions attention;  // linear
  kernels::Activation activation;

  AlignedBuffer<std::byte> weights;
  std::vector<PackedLayer> layers;
  kernels::LayerNormParameters final_norm;  // null where the model has none
  PackedMatrix predictor = nullptr;

  std::vector<PackedLstm> lstm;  // each layer's forward and backward direction; then no `layers`
  PackedMatrix input_projection = nullptr;           // of speech: as the predictor, narrow or not
  AlignedBuffer<float> input_mean, input_deviation;  // of speech, [bands]; empty: none
  // Of the reformer: rounds of hashing (0: another kind), and their planes [rounds, dim, (buckets + 1) / 2].
  size_t lsh_rounds = 0;
  kernels::LshAttentionOptions lsh{};
  AlignedBuffer<float> planes;

  AlignedBuffer<float> values;     // [vocabulary, value_embedding]
  AlignedBuffer<float> positions;  // [max_length, PositionDims()]
  AlignedBuffer<float> above;      // [vocabulary + 1, value_embedding], or empty
  AlignedBuffer<float> first_value;
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

}  // namespace linnet

#endif  // LINNET_RUNTIME_PACKED_MODEL_H_
