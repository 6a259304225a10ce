// Segments of a sequence, and the layout of the buffer `kept` that CausalLinearForward() writes
// (private to causal_linear.cc and causal_linear-inl.h).
#ifndef LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_
#define LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/causal_linear.h"

namespace linnet::kernels {

constexpr size_t PadTo16(size_t n) { return (n + 15) / 16 * 16; }

// The backward passes over each segment twice. If the segment has at most this many rows, their
// padded copies stay in scratch between the passes. They fit in a second-level cache.
inline constexpr size_t kKeptRows = 256;
inline constexpr size_t kMostSegments = 256;

// Number of tokens per segment of a sequence. It depends only on the sequence's length, so that
// results do not depend on other sequences or on threads.
constexpr size_t SegmentLength(size_t length) {
  const size_t least = (length + kMostSegments - 1) / kMostSegments;
  return std::max(kKeptRows, (least + 31) / 32 * 32);
}
constexpr size_t Segments(size_t length) {
  return length == 0 ? 0 : (length + SegmentLength(length) - 1) / SegmentLength(length);
}

// Number of parts into which a sequence is split. It exceeds one only if there are too few heads to
// occupy the threads. Each part is a run of whole segments. The number depends on the shape only:
// splitting changes the order of sums, and results must not depend on the threads.
constexpr size_t Parts(const CausalLinearShape& shape, bool packed) {
  if (packed || shape.batch * shape.heads > 2) return 1;
  return std::clamp<size_t>(Segments(shape.length), 1, 8);
}

// A part: the segments first .. last - 1. In the forward, `state` is the state before these
// segments; in the backward, it holds the sums over the positions after them. It has the layout of
// a state in Kept. If it is null, the kernel starts from the state in its arguments.
struct Part {
  size_t first, last;
  const float* state = nullptr;

  Part(size_t length, size_t part, size_t parts, const float* state)
      : first(Segments(length) * part / parts),
        last(Segments(length) * (part + 1) / parts),
        state(state) {}
};

// Layout of `kept`: the states [states, state_size], then the denominators [rows]. A state is s in
// strips (sweep-inl.h), then z, with D and M padded to multiples of 16.
struct Kept {
  size_t states, state_size, rows;

  // `tokens` is the total over all sequences.
  Kept(const CausalLinearShape& shape, size_t tokens, bool packed)
      : states(shape.heads *
               (packed ? tokens / kKeptRows + shape.batch : shape.batch * Segments(shape.length))),
        state_size(StateSize(shape)),
        rows(tokens * shape.heads) {}

  static size_t StateSize(const CausalLinearShape& shape) {
    return PadTo16(shape.dim) * (PadTo16(shape.value_dim) + 1);
  }

  // Number of states reserved per head for the sequences before n. A sequence has at most
  // length / kKeptRows + 1 segments, each of which keeps one state.
  static size_t First(const CausalLinearShape& shape, const int64_t* offsets, size_t n) {
    if (!offsets) return n * Segments(shape.length);
    return static_cast<size_t>(offsets[n]) / kKeptRows + n;
  }
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_KEPT_H_
