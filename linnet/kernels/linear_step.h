// One position of causal linear attention for each sequence: the paper's recurrent form (equations
// 16-20), in few bytes a position, and with sums that stay accurate in streams without end.
//
//   LinearStepShape shape{.heads = 8, .dim = 32, .value_dim = 32, .narrow = false};
//   std::vector<float> hot(shape.heads * shape.HotFloats()), cold(shape.heads * shape.ColdFloats());
//   uint8_t recent = 0;
//   LinearStep(shape, 1, options, {q, k, v, out, hot.data(), cold.data(), 0, &recent});
//   recent = NextRecent(recent);
//
// With phi the feature map and p the position, of each head:
//
//   s_p = s_{p-1} + phi(k_p) v_p^T                 [F, M]  (eq. 18)
//   z_p = z_{p-1} + phi(k_p)                       [F]     (eq. 19)
//   out_p = phi(q_p) s_p / (phi(q_p) . z_p + eps)  [M]     (eq. 20; without `normalize`, only
//                                                          phi(q_p) s_p; 0 where the denominator is
//                                                          0, or below every normal float)
//
// s and z are not written at each position. The last keys and values, up to kRecentKeys of them, lie
// beside the sums, and are read as they are:
//
//   out_p . den = phi(q_p) s + sum_i (phi(q_p) . phi(k_i)) v_i,   i over the recent ones
//
// and when there are kRecentKeys, they are added up and folded into s and z. So a position reads a
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

inline constexpr size_t kRecentKeys = 16;

// How many keys wait, after one more.
inline uint8_t NextRecent(uint8_t recent) {
  return static_cast<uint8_t>((recent + 1u) % kRecentKeys);
}

struct LinearStepShape {
  size_t heads = 0, dim = 0, value_dim = 0;  // H, F, M
  bool narrow = false;

  // Floats of a head's state, multiples of 16: what each position reads, and what only folds do.
  //   hot:  s [F, M'], z [F'], then kRecentKeys rows of phi(k) [F'] and v [M']
  //   cold: the rests of z [F'] and s [F, M']
  // M' and F' being padded to 16. All zeros: nothing was read yet. In bf16, if narrow: s and the
  // rows; otherwise: the rest of s.
  size_t HotFloats() const { return Sums(narrow) + Padded(dim) + kRecentKeys * Row(); }
  size_t ColdFloats() const { return Padded(dim) + Sums(!narrow); }

  // Where the parts of the hot floats end, in floats; a row of keys and values.
  size_t HotSums() const { return Sums(narrow); }
  size_t Row() const { return (Padded(dim) + Padded(value_dim)) / (narrow ? 2 : 1); }
  static size_t Padded(size_t n) { return (n + 15) / 16 * 16; }

 private:
  size_t Sums(bool half) const { return Padded(dim * Padded(value_dim) / (half ? 2 : 1)); }
};

struct LinearStepArgs {
  Strided<const float> q, k, v;  // [N, 1, H, F] and [N, 1, H, M]
  Strided<float> out;            // [N, 1, H, M]
  // The state of the first head of sequence 0, the other heads' behind it, aligned to 64 bytes; and
  // how far it is to the next sequence's, a multiple of 16 floats.
  float* hot = nullptr;
  float* cold = nullptr;
  ptrdiff_t state_stride = 0;
  const uint8_t* recent = nullptr;  // by sequence: keys that wait, below kRecentKeys
  // Optional, [N]: the sequences that step; else 0, 1, 2, ...
  const size_t* sequences = nullptr;
  // Above 0: the denominator is max(phi(q_p) . z_p, floor |z_p|) instead, for features whose products
  // may be negative.
  float floor = 0;
};

// Steps `batch` sequences; it is for the caller to count: recent = NextRecent(recent). out may alias
// none of the others. F, M >= 1.
void LinearStep(const LinearStepShape& shape, size_t batch, const CausalLinearOptions& options,
                const LinearStepArgs& args);

// Folds the `recent` keys that wait in one sequence's state, of which there are none afterwards.
void LinearFold(const LinearStepShape& shape, float* hot, float* cold, size_t recent);

// The sums of one sequence in which no key waits, in fp32: s [H, F, M] and z [H, F].
void LinearSums(const LinearStepShape& shape, const float* hot, const float* cold, float* s,
                float* z);

// Adds the keys and values of `length` positions, k [length, H, F] and v [length, H, M] with their
// strides `time` and `head`, to the sums of one sequence in which no key waits.
void LinearExtend(const LinearStepShape& shape, FeatureMap feature_map, size_t length,
                  Strided<const float> k, Strided<const float> v, float* hot, float* cold);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_STEP_H_
