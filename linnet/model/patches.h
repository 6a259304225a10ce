// Which positions begin a patch (PatchSpec), shared by training and the engine.
//
//   const size_t inputs = PatchesBefore(spec, spec.input.max_length);   // of the layers
//   if (BeginsPatch(spec, t)) ...         // position t predicts the first token of a patch
#ifndef LINNET_MODEL_PATCHES_H_
#define LINNET_MODEL_PATCHES_H_

#include <cstddef>

#include "linnet/spec.h"

namespace linnet {

// The token of an image that position 0 predicts. A model that reads whole pixels first reads
// kBeginPixel, and predicts pixel 0 from it.
inline int FirstPredicted(const ModelSpec& spec) { return spec.input.whole_pixels ? 0 : 1; }

inline bool BeginsPatch(const ModelSpec& spec, size_t position) {
  return (position + static_cast<size_t>(FirstPredicted(spec))) %
             static_cast<size_t>(spec.input.patch.tokens) ==
         0;
}

// Counts the positions that begin a patch.
struct PatchCount {
  size_t tokens = 1;  // PatchSpec::tokens
  size_t first = 1;   // FirstPredicted()

  // Their number before `position`: where the layers are then. Without patches: `position`.
  size_t Before(size_t position) const {
    // Tokens first .. first + position - 1 are predicted before; counts the multiples of P.
    return (position + first + tokens - 1) / tokens - first;
  }
};
inline PatchCount PatchCountOf(const ModelSpec& spec) {
  return {static_cast<size_t>(spec.input.patch.tokens), static_cast<size_t>(FirstPredicted(spec))};
}
inline size_t PatchesBefore(const ModelSpec& spec, size_t position) {
  return PatchCountOf(spec).Before(position);
}

}  // namespace linnet

#endif  // LINNET_MODEL_PATCHES_H_
