// Where a sequence's past lies in memory (private to linnet/runtime): what each part of a stack keeps, one
// behind the other. Caches have room for a number of positions that may grow; all else has one size.
#ifndef LINNET_RUNTIME_STATE_LAYOUT_H_
#define LINNET_RUNTIME_STATE_LAYOUT_H_

#include <cstddef>
#include <vector>

#include "linnet/model/precision.h"
#include "linnet/model/spec.h"
#include "linnet/runtime/mixer.h"

namespace linnet {

struct StateLayout {
  std::vector<MixerStateSize> parts;
  // Tokens kept beside: the last `reach`, of position p at p mod reach; or of models that read everything
  // again, or up to the separator, all of them, as many as `capacity`.
  size_t reach = 0;
  bool keeps_tokens = false;
  size_t source = 0;          // encoder-decoders: tokens of a first part at most; 0: no encoder
  size_t fold_keys = 1;       // LinearStepShape::RecentKeys(), where a mixer folds
  size_t first_capacity = 0;  // of a new state

  // Floats in front of a part, and of all of them.
  size_t Begin(size_t part, size_t capacity) const {
    size_t floats = 0;
    for (size_t i = 0; i < part; ++i) floats += parts[i].Floats(capacity);
    return floats;
  }
  size_t Floats(size_t capacity) const { return Begin(parts.size(), capacity); }
  // Whether it needs more room the more is read.
  bool grows() const {
    if (keeps_tokens) return true;
    for (const MixerStateSize& part : parts) {
      if (part.heads > 0) return true;
    }
    return false;
  }
  // Tokens kept of a sequence.
  size_t Tokens(size_t capacity) const {
    return keeps_tokens ? capacity : source > 0 ? source + 1 : reach;
  }

  // Moves a sequence's floats to a place with room for other positions; `length` of them are kept.
  void Move(const float* from, size_t from_capacity, float* to, size_t to_capacity,
            size_t length) const;
};

// Room for positions is made in steps of this many.
inline constexpr size_t kCapacityStep = 16;

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_LAYOUT_H_
