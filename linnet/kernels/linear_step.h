// Causal linear attention, one position of each sequence at a time: the recurrent form of
// Katharopoulos et al. 2020 (equations 16-20). A position reads and writes few bytes, and the sums
// stay accurate over millions of positions.
//
//   LinearStepShape shape{.heads = 8, .dim = 32, .value_dim = 32, .narrow = false};
//   AlignedBuffer<float> hot(shape.HotFloats()), cold(shape.ColdFloats());
//   AlignedBuffer<float> scratch(shape.ScratchFloats());
//   uint8_t recent = 0;
//   LinearStep(shape, 1, options, {.heads = {0, 8}, .q = q, .k = k, .v = v, .out = out,
//                                  .hot = hot.data(), .cold = cold.data(), .recent = &recent,
//                                  .scratch = scratch.data()});
//   recent = shape.NextRecent(recent);
//
// With phi the feature map and p the position, for each head:
//
//   s_p = s_{p-1} + phi(k_p) v_p^T                 [F, M]  (eq. 18)
//   z_p = z_{p-1} + phi(k_p)                       [F]     (eq. 19)
//   out_p = phi(q_p) s_p / (phi(q_p) . z_p + eps)  [M]     (eq. 20)
//
// out_p = 0 if the denominator's magnitude is below FLT_MIN. Without `normalize`, there is no
// denominator: out_p = phi(q_p) s_p.
//
// s and z are not updated at every position. The phi(k) and v of the latest positions wait in rows
// beside the sums, which do not include them yet; at most RecentKeys() of them wait at a time. The
// output reads them directly. With den_p the denominator above:
//
//   den_p out_p = phi(q_p) s + sum_i (phi(q_p) . phi(k_i)) v_i,   i over the waiting positions
//
// Once RecentKeys() keys are waiting, they and their values are folded (added) into s and z. So
// most positions read the state but write only one key and one value. Each sum is stored in two
// parts: the rounded sum (the leading part), which is read at each position, and its rounding error
// (the remainder). Together they have a precision of 32 bits or more: a term ten million times
// smaller than the sum still counts.
//
// Narrow states hold the leading part of s and the waiting rows in bf16, and the remainder of s in
// fp32: a position reads half as many bytes of s, and the sums have the same precision.
//
// Results do not depend on the other sequences of a call. The reference is linear_step_ref.h.
#ifndef LINNET_KERNELS_LINEAR_STEP_H_
#define LINNET_KERNELS_LINEAR_STEP_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

struct LinearStepShape {
  size_t heads = 0, dim = 0, value_dim = 0;  // H, F, M
  bool narrow = false;                       // see "Narrow states" above

  // Number of keys that are folded together. A larger number makes folds rarer and states larger.
  // At F = M = 32, the rows take 2 kB per head, narrow or not.
  static constexpr size_t RecentKeys(bool narrow) { return narrow ? 16 : 8; }
  size_t RecentKeys() const { return RecentKeys(narrow); }
  // Number of waiting keys after one more position.
  uint8_t NextRecent(uint8_t recent) const {
    return static_cast<uint8_t>((recent + 1u) % RecentKeys());
  }

  // M and F are padded to a multiple of this. In bf16, columns c and c + 16 (c < 16) of a block of
  // kPad columns are adjacent in memory.
  static constexpr size_t kPad = 32;
  static size_t Padded(size_t n) { return (n + kPad - 1) / kPad * kPad; }

  // Sizes of a sequence's state, in floats; both are multiples of 16. Steps read `hot` at each
  // position, and `cold` only when they fold:
  //   hot:  leading part of s [H, F, M'], leading part of z and sum of the waiting keys [H, 2, F'],
  //         rows [RecentKeys(), H, F' + M'] of the waiting phi(k) and v
  //   cold: the remainders of z [H, F'] and s [H, F, M']
  // M' and F' are the padded sizes. The empty state is all zeros. If narrow, the leading part of s
  // and the rows are bf16; otherwise the remainder of s is bf16. The rest is fp32.
  size_t HotFloats() const {
    return HotRows() + RecentKeys() * heads * (Padded(dim) + Padded(value_dim)) / (narrow ? 2 : 1);
  }
  size_t ColdFloats() const { return ColdSums() + Sums(!narrow); }

  // Offsets, in floats, of z within hot, of the rows within hot, and of the remainder of s within
  // cold.
  size_t HotZ() const { return Sums(narrow); }
  size_t HotRows() const { return HotZ() + 2 * heads * Padded(dim); }
  size_t ColdSums() const { return heads * Padded(dim); }
  // Floats of LinearStepArgs::scratch.
  size_t ScratchFloats() const { return heads * Padded(dim); }

 private:
  size_t Sums(bool half) const { return heads * dim * Padded(value_dim) / (half ? 2 : 1); }
};

// Heads [begin, end) of a state.
struct HeadRange {
  size_t begin = 0, end = 0;
};

struct LinearStepArgs {
  // For the heads [begin, end): q and k [N, 1, end - begin, F], v and out [N, 1, end - begin, M].
  HeadRange heads;
  Strided<const float> q, k, v;
  Strided<float> out;
  // State of sequence 0, aligned to 64 bytes. The state of sequence n starts n * state_stride
  // floats further on; state_stride is a multiple of 16.
  float* hot = nullptr;
  float* cold = nullptr;
  ptrdiff_t state_stride = 0;
  const uint8_t* recent = nullptr;  // number of each sequence's waiting keys, < RecentKeys()
  // Optional, [N]: the sequences to step; default 0, 1, 2, ...
  const size_t* sequences = nullptr;
  float* scratch = nullptr;  // ScratchFloats(), aligned to 64 bytes
  // If > 0, the denominator is max(phi(q_p) . z_p, floor |z_p|). This is for feature maps for which
  // phi(q) . phi(k) may be negative.
  float floor = 0;
};

// Steps `batch` sequences. The caller updates recent = shape.NextRecent(recent) afterwards. out
// must not alias the other arrays. F, M >= 1.
void LinearStep(const LinearStepShape& shape, size_t batch, const CausalLinearOptions& options,
                const LinearStepArgs& args);

// Folds the `recent` waiting keys of some heads of one sequence. The caller sets `recent` to 0 once
// all heads are folded.
void LinearFold(const LinearStepShape& shape, HeadRange heads, float* hot, float* cold,
                size_t recent);

// Writes the sums of one sequence, which must have no waiting keys, in fp32: s [heads, F, M] and
// z [heads, F].
void LinearSums(const LinearStepShape& shape, HeadRange heads, const float* hot, const float* cold,
                float* s, float* z);

// Adds the keys and values of `length` positions to the sums of one sequence, which must have no
// waiting keys. k is [length, heads, F] and v [length, heads, M]; their strides `batch` are not
// used.
void LinearExtend(const LinearStepShape& shape, HeadRange heads, FeatureMap feature_map,
                  size_t length, Strided<const float> k, Strided<const float> v, float* hot,
                  float* cold);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_STEP_H_
