// Memory layout of one sequence's state (private to linnet/runtime): the states of a stack's parts
// (its residual branches), one after the other, then those of a stem and of patches. Caches have a
// capacity in positions of the layers, which may grow; the rest has a fixed size.
#ifndef LINNET_RUNTIME_STATE_LAYOUT_H_
#define LINNET_RUNTIME_STATE_LAYOUT_H_

#include <cstddef>
#include <vector>

#include "linnet/model/patches.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"
#include "linnet/runtime/mixer.h"

namespace linnet {

struct StateLayout {
  std::vector<MixerStateSize> parts;
  // A state also keeps tokens. If keeps_tokens: all tokens, up to the capacity. In
  // encoder-decoders: the tokens of the encoder. In other models: the last `reach` tokens
  // (ModelSpec::Reach()), where the token at position p has the index p mod reach.
  size_t reach = 0;
  bool keeps_tokens = false;
  size_t source = 0;          // encoder-decoders: maximum number of encoder tokens; 0: no encoder
  size_t fold_keys = 1;       // keys per fold (LinearStepShape::RecentKeys()); 1: no mixer folds
  size_t first_capacity = 0;  // capacity of a new state
  PatchCount patches;
  // The capacity that `position` tokens need: as many positions of the layers, or tokens.
  size_t Capacity(size_t position) const {
    return keeps_tokens ? position : patches.Before(position);
  }

  // Offset of a part's state, in floats. Floats() is the size of all parts.
  size_t Begin(size_t part, size_t capacity) const {
    size_t floats = 0;
    for (size_t i = 0; i < part; ++i) floats += parts[i].Floats(capacity);
    return floats;
  }
  size_t Floats(size_t capacity) const { return Begin(parts.size(), capacity); }
  // Whether a state's size grows with the number of positions.
  bool grows() const {
    if (keeps_tokens) return true;
    for (const MixerStateSize& part : parts) {
      if (part.heads > 0) return true;
    }
    return false;
  }
  // Number of tokens kept per sequence.
  size_t Tokens(size_t capacity) const {
    return keeps_tokens ? capacity : source > 0 ? source + 1 : reach;
  }

  // Copies a sequence's floats to memory of another capacity. Of caches, copies the first `length`
  // positions only.
  void Move(const float* from, size_t from_capacity, float* to, size_t to_capacity,
            size_t length) const;
};

// Capacities are multiples of this many positions.
inline constexpr size_t kCapacityStep = 16;

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_LAYOUT_H_
