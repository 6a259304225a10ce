// A model's weights as the engine walks them (private to linnet/runtime).
//
// A layer's work is cut into at most kMaxGroups groups whatever the number of threads: groups of
// heads, and slices of d_ff. A group's two products (into the group's own heads or hidden units,
// and from them back to d_model) lie side by side in the order in which they are read, and the
// groups' shares of a layer's result are summed in the groups' order. So threads split the work
// without changing a bit, and each reads one run of memory between two barriers.
#ifndef LINNET_RUNTIME_PACKED_MODEL_H_
#define LINNET_RUNTIME_PACKED_MODEL_H_

#include <cstddef>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/runtime/engine.h"

namespace linnet {

inline constexpr size_t kMaxGroups = 8;

// Where a group's matrices (see kernels/linear.h) begin in `weights`.
struct PackedGroup {
  size_t begin = 0, end = 0;   // heads, or hidden units
  const float* in = nullptr;   // d_model -> q, k, v of each head in turn, or -> hidden units
  const float* out = nullptr;  // values or hidden units -> d_model; the first group adds the bias
};

struct PackedLayer {
  std::vector<PackedGroup> attention, feed_forward;
  kernels::LayerNormParameters norm1{}, norm2{};
};

struct Model::Packed {
  explicit Packed(const Checkpoint& checkpoint);

  size_t QkvWidth(const PackedGroup& group) const { return (group.end - group.begin) * head_width; }

  ModelSpec spec;
  std::string path, training;
  size_t d_model, heads, dim, value_dim, d_ff, outputs, value_embedding;
  size_t head_width;  // q, k and v of one head: 2 dim + value_dim
  size_t widest;      // the largest number of columns between the two products of a group
  kernels::CausalLinearOptions attention;
  kernels::Activation activation;

  AlignedBuffer<float> weights;
  std::vector<PackedLayer> layers;
  kernels::LayerNormParameters final_norm;  // null where the model has none
  const float* predictor = nullptr;

  AlignedBuffer<float> values;     // [vocabulary, value_embedding]
  AlignedBuffer<float> positions;  // [max_length, d_model - value_embedding]
  AlignedBuffer<float> above;      // [vocabulary + 1, value_embedding], or empty
  AlignedBuffer<float> first_value;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_PACKED_MODEL_H_
