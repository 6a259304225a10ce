// How a sequence is cut into segments, and where what CausalLinearForward() keeps of them lies
// (private to causal_linear.cc and its bodies).
#ifndef LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_
#define LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/causal_linear.h"

namespace linnet::kernels {

constexpr size_t PadTo16(size_t n) { return (n + 15) / 16 * 16; }

// A segment's rows, as the backward has made them ready, are kept while it goes over them twice if
// there are at most this many: what a second-level cache holds.
inline constexpr size_t kKeptRows = 256;
inline constexpr size_t kMostSegments = 256;

// Tokens to a segment: a function of the length alone, so that results are too.
constexpr size_t SegmentLength(size_t length) {
  const size_t least = (length + kMostSegments - 1) / kMostSegments;
  return std::max(kKeptRows, (least + 31) / 32 * 32);
}
constexpr size_t Segments(size_t length) {
  return length == 0 ? 0 : (length + SegmentLength(length) - 1) / SegmentLength(length);
}

// First the states [states, state_size], each padded as in scratch (s, then z), then the
// denominators [rows].
struct Kept {
  size_t states, state_size, rows;

  // tokens: of all sequences.
  Kept(const CausalLinearShape& shape, size_t tokens, bool packed)
      : states(shape.heads *
               (packed ? tokens / kKeptRows + shape.batch : shape.batch * Segments(shape.length))),
        state_size(PadTo16(shape.dim) * (PadTo16(shape.value_dim) + 1)),
        rows(tokens * shape.heads) {}

  // The first segment of head 0 of sequence n; no sequence has more than its length / kKeptRows + 1.
  static size_t First(const CausalLinearShape& shape, const int64_t* offsets, size_t n) {
    if (!offsets) return n * Segments(shape.length);
    return static_cast<size_t>(offsets[n]) / kKeptRows + n;
  }
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_
