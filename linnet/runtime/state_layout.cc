#include "linnet/runtime/state_layout.h"

#include <algorithm>

namespace linnet {

void StateLayout::Move(const float* from, size_t from_capacity, float* to, size_t to_capacity,
                       size_t length) const {
  for (const MixerStateSize& part : parts) {
    std::copy_n(from, part.fixed, to);
    const float* source = from + part.fixed;
    float* target = to + part.fixed;
    for (size_t h = 0; h < part.heads; ++h) {
      for (const size_t width : {part.dim, part.value_dim}) {
        std::copy_n(source, length * width, target);
        source += from_capacity * width, target += to_capacity * width;
      }
    }
    from += part.Floats(from_capacity), to += part.Floats(to_capacity);
  }
}

}  // namespace linnet
