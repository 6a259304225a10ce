// The Highway bodies of narrow_linear.h, compiled once for each instruction set: conversion of
// activations, and products for processors without dot-product instructions.
#if defined(LINNET_KERNELS_NARROW_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#undef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#else
#define LINNET_KERNELS_NARROW_LINEAR_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/narrow_linear_args.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;

// ------------------------------------------------------------------------------------------
// Activations.

// `used` inputs from i on, times their factors if given.
HWY_INLINE Vec LoadScaled(const float* x, const float* factor, size_t i, size_t used) {
  const Vec value = LoadN(x + i, used);
  return factor == nullptr ? value : hn::Mul(value, LoadN(factor + i, used));
}

void BFloat16Activations(size_t rows, size_t in, const float* x, size_t x_stride,
                         const float* factor, const NarrowRows& to) {
  const size_t padded = RoundUp(in, kNarrowInputs);
  auto* row = reinterpret_cast<BFloat16*>(to.data);
  for (size_t r = 0; r < rows; ++r, x += x_stride, row += padded) {
    ForVectors(in, [&](size_t i, size_t used)
                       HWY_ATTR { StoreN(LoadScaled(x, factor, i, used), row + i, used); });
    std::memset(static_cast<void*>(row + in), 0, (padded - in) * sizeof(BFloat16));
  }
}

void Int8Activations(size_t rows, size_t in, const float* x, size_t x_stride, const float* factor,
                     const NarrowRows& to) {
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  const size_t padded = RoundUp(in, kNarrowInputs), lanes = hn::Lanes(d);
  auto* row = reinterpret_cast<int8_t*>(to.data);
  for (size_t r = 0; r < rows; ++r, x += x_stride, row += padded) {
    Vec most = hn::Zero(d), not_finite = hn::Zero(d);  // 0, or NaN after infinity or NaN
    ForVectors(in, [&](size_t i, size_t used) HWY_ATTR {
      const Vec value = LoadScaled(x, factor, i, used);
      most = hn::Max(most, hn::Abs(value));
      not_finite = hn::Add(not_finite, hn::Sub(value, value));
    });
    const bool finite = hn::GetLane(hn::SumOfLanes(d, not_finite)) == 0;
    const float largest = finite ? hn::GetLane(hn::MaxOfLanes(d, most)) : 0;
    // A row too small for a normal scale counts as zero.
    const bool none = !(largest > 127 * 1.2e-38f);
    to.scale[r] = none ? 0.0f : largest / 127.0f;
    const Vec inverse = hn::Set(d, none ? 0.0f : 127.0f / largest);
    auto sum = hn::Zero(I32());
    ForVectors(in, [&](size_t i, size_t used) HWY_ATTR {
      const auto value = hn::NearestInt(hn::Mul(LoadScaled(x, factor, i, used), inverse));
      sum = hn::Add(sum, value);
      if (used == lanes) {
        hn::StoreU(hn::DemoteTo(d8, value), d8, row + i);
      } else {
        HWY_ALIGN int32_t part[16];
        hn::Store(value, I32(), part);
        for (size_t n = 0; n < used; ++n) row[i + n] = static_cast<int8_t>(part[n]);
      }
    });
    to.offset[r] = static_cast<int32_t>(
        0u - 128u * static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(I32(), sum))));
    if (!finite) to.scale[r] = NAN;  // so that no result is finite
    std::memset(row + in, 0, padded - in);
  }
}

// ------------------------------------------------------------------------------------------
// Products without a dot-product unit.

inline constexpr size_t kNarrowVectors = kPanel / hn::MaxLanes(F32());  // vectors per panel
// Rows of a tile: enough sums to hide the latency of multiply-adds, but no more than fit in
// registers.
inline constexpr size_t kNarrowRows = HWY_TARGET == HWY_AVX3 ? 8 : HWY_TARGET == HWY_SCALAR ? 1 : 4;

HWY_INLINE void FinishNarrow(const NarrowArgs& args, size_t row, const std::byte* panel,
                             size_t column, size_t v, Vec result) {
  const F32 d;
  const size_t at = v * hn::Lanes(d);
  if (column + at >= args.out) return;
  const size_t used = std::min(hn::Lanes(d), args.out - column - at);
  const float* bias = reinterpret_cast<const float*>(panel) + at;
  if (args.x.type == NarrowType::kInt8) {
    const Vec scale = hn::Mul(hn::Set(d, args.x.scale[row]), hn::Load(d, bias + kPanel));
    result = hn::MulAdd(result, scale, hn::Load(d, bias));
  } else {
    result = hn::Add(result, hn::Load(d, bias));
  }
  float* y = args.y + row * args.y_stride + column + at;
  if (args.mode == LinearMode::kAdd) result = hn::Add(LoadN(y, used), result);
  StoreN(result, y, used);
}

// bf16: adds the product of the first input of each pair, then that of the second.
template <size_t kRows>
HWY_INLINE void BFloat16Tile(const NarrowArgs& args, size_t row, size_t column,
                             const std::byte* panel) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const size_t lanes = hn::Lanes(d), bytes = args.row_bytes();
  const auto* weights = reinterpret_cast<const uint32_t*>(panel + args.header_bytes());
  const std::byte* x = args.x.data + row * bytes;
  Vec sum[kRows * kNarrowVectors];
  Unrolled<kRows * kNarrowVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  const auto upper = hn::Set(du, 0xffff0000u);
  for (size_t at = 0; at < bytes; at += 4, weights += kPanel) {
    hwy::Prefetch(weights + 64 * kPanel);
    Vec even[kNarrowVectors], odd[kNarrowVectors];
    Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
      const auto pair = hn::Load(du, weights + v * lanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(pair));
      odd[v] = hn::BitCast(d, hn::And(pair, upper));
    });
    Unrolled<kRows>([&](auto r) HWY_ATTR {
      uint32_t pair;
      std::memcpy(&pair, x + r * bytes + at, 4);
      const Vec x_even = hn::BitCast(d, hn::Set(du, pair << 16));
      const Vec x_odd = hn::BitCast(d, hn::Set(du, pair & 0xffff0000u));
      Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
        Vec& s = sum[r * kNarrowVectors + v];
        s = hn::MulAdd(x_odd, odd[v], hn::MulAdd(x_even, even[v], s));
      });
    });
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
      FinishNarrow(args, row + r, panel, column, v, sum[r * kNarrowVectors + v]);
    });
  });
}

// sum + the products of each output's four unsigned weights with four values of a row.
HWY_INLINE hn::Vec<I32> DotOfFour(hn::Vec<I32> sum, hn::Vec<I32> four, const int8_t* x) {
  const I32 d;
  const auto weight = [&](auto shift) HWY_ATTR {
    const hn::RebindToUnsigned<I32> du;
    return hn::BitCast(d,
                       hn::And(hn::ShiftRight<shift()>(hn::BitCast(du, four)), hn::Set(du, 255)));
  };
  sum = hn::Add(sum, hn::Mul(weight(std::integral_constant<int, 0>()), hn::Set(d, x[0])));
  sum = hn::Add(sum, hn::Mul(weight(std::integral_constant<int, 8>()), hn::Set(d, x[1])));
  sum = hn::Add(sum, hn::Mul(weight(std::integral_constant<int, 16>()), hn::Set(d, x[2])));
  return hn::Add(sum, hn::Mul(weight(std::integral_constant<int, 24>()), hn::Set(d, x[3])));
}

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
// The same with x86's 16-bit pair products: bytes 0 and 2, then 1 and 3.
HWY_INLINE hn::Vec<I32> DotOfPairs(hn::Vec<I32> sum, hn::Vec<I32> four, hn::Vec<I32> x02,
                                   hn::Vec<I32> x13) {
  const hn::Repartition<int16_t, I32> d16;
  const hn::Repartition<uint16_t, I32> du16;
  const auto w = hn::BitCast(du16, four);
  const auto w02 = hn::BitCast(d16, hn::And(w, hn::Set(du16, 255)));
  const auto w13 = hn::BitCast(d16, hn::ShiftRight<8>(w));
  auto unused = hn::Zero(I32());
  sum = hn::ReorderWidenMulAccumulate(I32(), w02, hn::BitCast(d16, x02), sum, unused);
  return hn::ReorderWidenMulAccumulate(I32(), w13, hn::BitCast(d16, x13), sum, unused);
}
#endif

template <size_t kRows>
HWY_INLINE void Int8Tile(const NarrowArgs& args, size_t row, size_t column,
                         const std::byte* panel) {
  const I32 d;
  const size_t lanes = hn::Lanes(d), bytes = args.row_bytes();
  const auto* weights = reinterpret_cast<const int32_t*>(panel + args.header_bytes());
  const auto* x = reinterpret_cast<const int8_t*>(args.x.data) + row * bytes;
  hn::Vec<I32> sum[kRows * kNarrowVectors];
  Unrolled<kRows * kNarrowVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  for (size_t at = 0; at < bytes; at += 4, weights += kPanel) {
    hwy::Prefetch(weights + 64 * kPanel);
    hn::Vec<I32> four[kNarrowVectors];
    Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR { four[v] = hn::Load(d, weights + v * lanes); });
    Unrolled<kRows>([&](auto r) HWY_ATTR {
      const int8_t* x_r = x + r * bytes + at;
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
      const auto pair = [](int8_t low, int8_t high) {
        return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(int16_t{low})) |
                                    static_cast<uint32_t>(static_cast<uint16_t>(int16_t{high}))
                                        << 16);
      };
      const auto x02 = hn::Set(d, pair(x_r[0], x_r[2])), x13 = hn::Set(d, pair(x_r[1], x_r[3]));
      Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
        hn::Vec<I32>& s = sum[r * kNarrowVectors + v];
        s = DotOfPairs(s, four[v], x02, x13);
      });
#else
      Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
        hn::Vec<I32>& s = sum[r * kNarrowVectors + v];
        s = DotOfFour(s, four[v], x_r);
      });
#endif
    });
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kNarrowVectors>([&](auto v) HWY_ATTR {
      const auto whole = hn::Add(sum[r * kNarrowVectors + v], hn::Set(d, args.x.offset[row + r]));
      FinishNarrow(args, row + r, panel, column, v, hn::ConvertTo(F32(), whole));
    });
  });
}

void NarrowLinearBody(const NarrowArgs& args) {
  const bool int8 = args.x.type == NarrowType::kInt8;
  const size_t stride = args.panel_bytes();
  const std::byte* panel = args.packed;
  for (size_t column = 0; column < args.out; column += kPanel, panel += stride) {
    size_t row = 0;
    for (; row + kNarrowRows <= args.rows; row += kNarrowRows) {
      int8 ? Int8Tile<kNarrowRows>(args, row, column, panel)
           : BFloat16Tile<kNarrowRows>(args, row, column, panel);
    }
    for (; row < args.rows; ++row) {
      int8 ? Int8Tile<1>(args, row, column, panel) : BFloat16Tile<1>(args, row, column, panel);
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_NARROW_LINEAR_INL_H_
