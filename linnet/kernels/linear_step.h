// One position of causal linear attention for each sequence: the paper's recurrent form (equations
// 16-20), in few bytes a position, and with sums that stay accurate in streams without end.
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
// With phi the feature map and p the position, of each head:
//
//   s_p = s_{p-1} + phi(k_p) v_p^T                 [F, M]  (eq. 18)
//   z_p = z_{p-1} + phi(k_p)                       [F]     (eq. 19)
//   out_p = phi(q_p) s_p / (phi(q_p) . z_p + eps)  [M]     (eq. 20; without `normalize`, only
//                                                          phi(q_p) s_p; 0 where the denominator is
//                                                          0, or below every normal float)
//
// s and z are not written at each position. The last keys and values, up to RecentKeys() of them, lie
// beside the sums, and are read as they are:
//
//   out_p . den = phi(q_p) s + sum_i (phi(q_p) . phi(k_i)) v_i,   i over the recent ones
//
// and when there are as many, they are added up and folded into s and z. So a position reads a
// state, and writes a key and a value. Every sum is kept in two parts, what is read and the rest that
// did not fit into it, which together have the precision of 32 bits or more: a term that is ten
// million times smaller than the sum still counts.
//
// Narrow states keep what is read, s and the recent rows, in bf16, and the rest of s in fp32: half
// of the bytes, and the same precision of the sums.
//
// Results do not depend on the other sequences of a call. The plain twin is linear_step_ref.h.
#ifndef LINNET_KERNELS_LINEAR_STEP_H_
#define LINNET_KERNELS_LINEAR_STEP_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

struct LinearStepShape {
  size_t heads = 0, dim = 0, value_dim = 0;  // H, F, M
  bool narrow = false;

  // Keys that are folded together. More make folds rarer, and states larger: 2 kB a head at F = M =
  // 32, in either type.
  static constexpr size_t RecentKeys(bool narrow) { return narrow ? 16 : 8; }
  size_t RecentKeys() const { return RecentKeys(narrow); }
  // How many keys wait, after one more.
  uint8_t NextRecent(uint8_t recent) const {
    return static_cast<uint8_t>((recent + 1u) % RecentKeys());
  }

  // M and F are padded to this; in bfloat16, columns c and c + 16 of such a block lie side by side.
  static constexpr size_t kPad = 32;
  static size_t Padded(size_t n) { return (n + kPad - 1) / kPad * kPad; }

  // Floats of a sequence's state, multiples of 16: what each position reads, and what only folds do.
  //   hot:  s [H, F, M'], z and the recent keys' part of it [H, 2, F'], rows [RecentKeys(), H, F' + M']
  //         of phi(k) and v
  //   cold: the rests of z [H, F'] and s [H, F, M']
  // with M' and F' padded. All zeros: nothing was read yet. In bf16, if narrow: s and the rows;
  // otherwise: the rest of s.
  size_t HotFloats() const {
    return HotRows() + RecentKeys() * heads * (Padded(dim) + Padded(value_dim)) / (narrow ? 2 : 1);
  }
  size_t ColdFloats() const { return ColdSums() + Sums(!narrow); }

  // Where in them z and the rows begin, and the rest of s.
  size_t HotZ() const { return Sums(narrow); }
  size_t HotRows() const { return HotZ() + 2 * heads * Padded(dim); }
  size_t ColdSums() const { return heads * Padded(dim); }
  size_t ScratchFloats() const { return heads * Padded(dim); }

 private:
  size_t Sums(bool half) const { return heads * dim * Padded(value_dim) / (half ? 2 : 1); }
};

// Heads [begin, end) of a state.
struct HeadRange {
  size_t begin = 0, end = 0;
};

struct LinearStepArgs {
  // Of the heads [begin, end): [N, 1, end - begin, F], and M in the place of F.
  HeadRange heads;
  Strided<const float> q, k, v;
  Strided<float> out;
  // The state of sequence 0, aligned to 64 bytes, and floats to the next one's: a multiple of 16.
  float* hot = nullptr;
  float* cold = nullptr;
  ptrdiff_t state_stride = 0;
  const uint8_t* recent = nullptr;  // by sequence: keys that wait, below RecentKeys()
  // Optional, [N]: the sequences that step; else 0, 1, 2, ...
  const size_t* sequences = nullptr;
  float* scratch = nullptr;  // ScratchFloats(), aligned to 64 bytes
  // Above 0: the denominator is max(phi(q_p) . z_p, floor |z_p|) instead, for features whose products
  // may be negative.
  float floor = 0;
};

// Steps `batch` sequences; it is for the caller to count: recent = shape.NextRecent(recent). out may alias
// none of the others. F, M >= 1.
void LinearStep(const LinearStepShape& shape, size_t batch, const CausalLinearOptions& options,
                const LinearStepArgs& args);

// Folds the `recent` keys that wait in some heads of one sequence, where there are none afterwards.
void LinearFold(const LinearStepShape& shape, HeadRange heads, float* hot, float* cold,
                size_t recent);

// The sums of one sequence in which no key waits, in fp32: s [heads, F, M] and z [heads, F].
void LinearSums(const LinearStepShape& shape, HeadRange heads, const float* hot, const float* cold,
                float* s, float* z);

// Adds the keys and values of `length` positions, k [length, heads, F] and v [length, heads, M] with
// their strides `time` and `head`, to the sums of one sequence in which no key waits.
void LinearExtend(const LinearStepShape& shape, HeadRange heads, FeatureMap feature_map,
                  size_t length, Strided<const float> k, Strided<const float> v, float* hot,
                  float* cold);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_STEP_H_
