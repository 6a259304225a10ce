#include "linnet/runtime/state_layout.h"

namespace linnet {

StateLayout::StateLayout(const ModelSpec& spec, Precision precision)
    : softmax(spec.attention.kind == "full") {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  linear = {.heads = size(spec.heads),
            .dim = size(FeatureSize(spec.attention, spec.query_dim)),
            .value_dim = size(spec.value_dim),
            .narrow = precision != Precision::kF32};
  cache = {.heads = size(spec.heads),
           .dim = size(spec.query_dim),
           .value_dim = size(spec.value_dim),
           .capacity = size(spec.max_length)};
  layer_floats =
      softmax ? cache.heads * cache.HeadFloats() : linear.HotFloats() + linear.ColdFloats();
  if (spec.attention.kind == "reformer") layer_floats = 0;
  floats = size(spec.layers) * layer_floats;
}

}  // namespace linnet
