// Building blocks of the attention kernels that work on blocks of queries and keys
// (softmax_attention-inl.h, lsh_attention-inl.h).
//
// A tile is a piece of a matrix product a b: kRows rows of one or two vectors of sums. It stays in
// registers until its sums are complete. Each kernel chooses its kRows. Step k loads one or two
// vectors of row k of `b`. For each row of the tile, it multiplies these vectors by one element of
// `a`, broadcast over the lanes, and adds the products to the tile's row.
//
// A panel holds kTileWidth columns of a matrix: its rows are kTileWidth floats wide and contiguous.
// Row k of a transposed panel holds dimension k of kTileWidth adjacent keys.
#if defined(LINNET_KERNELS_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_ATTENTION_TILES_INL_H_
#undef LINNET_KERNELS_ATTENTION_TILES_INL_H_
#else
#define LINNET_KERNELS_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "linnet/base/aligned.h"
#include "linnet/kernels/strided.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

inline constexpr size_t kTileLanes = hn::MaxLanes(F32());
inline constexpr size_t kTileWidth = 2 * kTileLanes;

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
// Score of a masked key, and initial value of a maximum.
inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

// n rounded up to a multiple of kTileWidth.
constexpr size_t TileWidths(size_t n) { return RoundUp(n, kTileWidth); }

// Replaces each x[i] <= 126 by 2^x[i]. The result is 0 for x[i] <= -127, and NaN for NaN. The
// relative error is at most about 2e-7 while the result is normal. One evaluation is a long
// dependency chain, so kCount evaluations run side by side to keep the multipliers busy.
template <size_t kCount>
HWY_INLINE void Exp2(Vec (&x)[kCount]) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  Vec shifted[kCount], p[kCount];
  const auto each = [](auto step) HWY_ATTR { Unrolled<kCount>(step); };
  const auto horner = [&](float coefficient) HWY_ATTR {
    const Vec c = hn::Set(d, coefficient);
    each([&](auto i) HWY_ATTR { p[i] = hn::MulAdd(p[i], x[i], c); });
  };
  each([&](auto i) HWY_ATTR { x[i] = AtLeast(x[i], hn::Set(d, -127.0f)); });
  // Adding 1.5 * 2^23 leaves the integer nearest to x in the lowest bits of the sum.
  const Vec magic = hn::Set(d, 12582912.0f);
  each([&](auto i) HWY_ATTR { shifted[i] = hn::Add(x[i], magic); });
  each([&](auto i) HWY_ATTR { x[i] = hn::Sub(x[i], hn::Sub(shifted[i], magic)); });
  // p is the minimax polynomial of degree 5 for 2^x over [-1/2, 1/2] with p(0) = 1. Its relative
  // error is 9.2e-8 before its coefficients are rounded to float. Because p(0) = 1, adding the
  // exponent below gives all zero bits for x = -127.
  each([&](auto i) HWY_ATTR { p[i] = hn::Set(d, 0x1.5bba28p-10f); });
  horner(0x1.3cea9p-7f);
  horner(0x1.c6b752p-5f);
  horner(0x1.ebf9bcp-3f);
  horner(0x1.62e42ap-1f);
  horner(1.0f);
  each([&](auto i) HWY_ATTR {
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted[i]));
    x[i] = hn::BitCast(d, hn::Add(hn::BitCast(di, p[i]), exponent));
  });
}

// sum[r] += sum_k a[r, k] b[k]; each sum is kVectors vectors wide. Rows of `a` are kAcross floats
// apart, and columns of `a` are kAlong floats apart.
template <size_t kRows, size_t kVectors, size_t kAcross, size_t kAlong>
HWY_INLINE void MulAddTile(size_t count, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                           Vec (&sum)[kRows * kVectors]) {
  const F32 d;
  for (size_t k = 0; k < count; ++k, a += kAlong, b += kTileWidth) {
    Vec b_k[kVectors];
    Unrolled<kVectors>([&](auto v) HWY_ATTR { b_k[v] = hn::Load(d, b + v * kTileLanes); });
    Unrolled<kRows>([&](auto r) HWY_ATTR {
      const Vec a_r = hn::Set(d, a[r * kAcross]);
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        sum[r * kVectors + v] = hn::MulAdd(a_r, b_k[v], sum[r * kVectors + v]);
      });
    });
  }
}

// Like MulAddTile(), but starts from the sums load(r, v) and passes results to store(r, v, sum).
template <size_t kRows, size_t kVectors, size_t kAcross, size_t kAlong, class LoadSum,
          class StoreSum>
HWY_INLINE void SumTile(size_t count, const float* a, const float* b, LoadSum load,
                        StoreSum store) {
  Vec sum[kRows * kVectors];
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>([&](auto v) HWY_ATTR { sum[r * kVectors + v] = load(r, v); });
  });
  MulAddTile<kRows, kVectors, kAcross, kAlong>(count, a, b, sum);
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>([&](auto v) HWY_ATTR { store(r, v, sum[r * kVectors + v]); });
  });
}

// to[r, j] = a_r . b_j for kRows rows of `a` and for the first kVectors vectors of keys j of a
// transposed panel `b`. `a` is stored in panels, a_panel floats apart. Rows of `to` are kStride
// floats apart.
template <size_t kRows, size_t kVectors, size_t kStride>
HWY_INLINE void DotTile(size_t dim, const float* a, size_t a_panel, const float* b,
                        float* HWY_RESTRICT to) {
  const F32 d;
  Vec sum[kRows * kVectors];
  Unrolled<kRows * kVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  for (size_t k = 0; k < dim; k += kTileWidth) {
    MulAddTile<kRows, kVectors, kTileWidth, 1>(std::min(kTileWidth, dim - k), a, b, sum);
    a += a_panel;
    b += kTileWidth * kTileWidth;
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      hn::Store(sum[r * kVectors + v], d, to + r * kStride + v * kTileLanes);
    });
  });
}

// Calls body(first column, number of vectors) for each panel of a row of `columns` floats. The
// number of vectors, 1 or 2, is a compile-time constant.
template <class Body>
HWY_INLINE void ForPanels(size_t columns, Body body) {
  for (size_t c = 0; c < columns; c += kTileWidth) {
    if (columns - c > kTileLanes) {
      body(c, std::integral_constant<size_t, 2>());
    } else {
      body(c, std::integral_constant<size_t, 1>());
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Transposes 4 x 4 floats into a transposed panel: row i of `to` receives element i of r0, r1, r2
// and r3.
using Four = hn::CappedTag<float, 4>;
HWY_INLINE void StoreTransposed(hn::Vec<Four> r0, hn::Vec<Four> r1, hn::Vec<Four> r2,
                                hn::Vec<Four> r3, float* HWY_RESTRICT to) {
  const Four d;
  const auto even_low = hn::InterleaveLower(d, r0, r2), even_high = hn::InterleaveUpper(d, r0, r2);
  const auto odd_low = hn::InterleaveLower(d, r1, r3), odd_high = hn::InterleaveUpper(d, r1, r3);
  hn::Store(hn::InterleaveLower(d, even_low, odd_low), d, to);
  hn::Store(hn::InterleaveUpper(d, even_low, odd_low), d, to + kTileWidth);
  hn::Store(hn::InterleaveLower(d, even_high, odd_high), d, to + 2 * kTileWidth);
  hn::Store(hn::InterleaveUpper(d, even_high, odd_high), d, to + 3 * kTileWidth);
}
#endif

// Rows of one head of one sequence.
template <typename T>
struct AttentionRows {
  T* first;
  ptrdiff_t stride;

  AttentionRows(const Strided<T>& x, size_t n, size_t h)
      : first(x.data ? x.At(n, 0, h) : nullptr), stride(x.time) {}  // null if x has no data
  T* At(size_t row) const { return first + static_cast<ptrdiff_t>(row) * stride; }
};

// Hands out consecutive pieces of a slot's scratch (strided.h), each aligned to a cache line. With
// null scratch, Take() returns null and only counts the floats.
class SlotPieces {
 public:
  explicit SlotPieces(float* scratch) : begin_(NextCacheLine(scratch)) {}
  template <typename T = float>
  T* Take(size_t n) {
    static_assert(sizeof(T) == sizeof(float));
    const size_t at = taken_;
    taken_ += RoundUp(n, 16);
    return begin_ ? reinterpret_cast<T*>(begin_ + at) : nullptr;
  }
  // Size of a scratch, in floats, that can hold all pieces taken so far, whatever its alignment.
  size_t Needed() const { return taken_ + 16; }

 private:
  float* begin_;
  size_t taken_ = 0;
};

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_ATTENTION_TILES_INL_H_
