// The Highway bodies of narrow_linear.h, compiled once for each instruction set: conversion of
// activations, and products for processors without dot-product instructions.
#if defined(LINNET_KERNELS_NARROW_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#undef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#else
#define LINNET_KERNELS_NARROW_LINEAR_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/narrow_linear_args.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;

// ------------------------------------------------------------------------------------------
// Activations.

// Loads `used` inputs from i on and multiplies them by their factors, if given.
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
    // The bits of non-negative floats are ordered as integers. An infinity is larger than every
    // finite number, a NaN larger than infinity.
    auto most = hn::Zero(U32());
    ForVectors(in, [&](size_t i, size_t used) HWY_ATTR {
      most = hn::Max(most, hn::BitCast(U32(), hn::Abs(LoadScaled(x, factor, i, used))));
    });
    const float largest_or_not = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(U32(), most)));
    const bool finite = std::isfinite(largest_or_not);
    const float largest = finite ? largest_or_not : 0;
    // A row whose scale would be subnormal counts as zero.
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
    if (!finite) to.scale[r] = NAN;  // makes all results of the row NaN
    std::memset(row + in, 0, padded - in);
  }
}

// ------------------------------------------------------------------------------------------
// Products without a dot-product unit. A tile is a block of rows times whole panels of outputs,
// whose sums stay in registers over all inputs.

inline constexpr size_t kNarrowVectors = kPanel / hn::MaxLanes(F32());  // vectors per panel
// kNarrowRows: maximum number of rows of a tile. NarrowPanels(): number of panels of a tile of
// `rows` rows, enough to hide the latency of multiply-adds, but no more than registers can hold.
inline constexpr size_t kNarrowRows = HWY_TARGET == HWY_AVX3 ? 8 : HWY_TARGET == HWY_SCALAR ? 1 : 4;
constexpr size_t NarrowPanels(size_t rows, NarrowType type) {
  if (HWY_TARGET == HWY_SCALAR || rows > 2) return 1;
  return rows == 1 && type == NarrowType::kBf16 ? 4 : 2;
}

// Computes outputs of y from vector v of a row's sums: applies the scales (int8) and adds the
// biases. `column` is the panel's first output.
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

// A tile of kPanels panels. Its first row is `row`; its first panel is at `panel` and starts with
// output `column`.
template <size_t kPanels>
struct NarrowTile {
  static constexpr size_t kVectors = kPanels * kNarrowVectors;

  const std::byte* Panel(size_t v) const { return panel + v / kNarrowVectors * args.panel_bytes(); }
  // The weights of vector v for the inputs that begin at byte `at` of a row.
  const std::byte* Weights(size_t v, size_t at) const {
    return Panel(v) + args.header_bytes() + at * kPanel +
           v % kNarrowVectors * hn::Lanes(F32()) * sizeof(float);
  }
  const std::byte* X(size_t r) const { return args.x.data + (row + r) * args.row_bytes(); }
  HWY_INLINE void Finish(size_t r, size_t v, Vec result) const {
    FinishNarrow(args, row + r, Panel(v), column + v / kNarrowVectors * kPanel, v % kNarrowVectors,
                 result);
  }

  const NarrowArgs& args;
  size_t row, column;
  const std::byte* panel;
};

HWY_INLINE hn::Vec<I32> FourBytes(const std::byte* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return hn::Set(I32(), bytes);  // compiles to one load that fills all lanes
}

// Computes a bf16 tile. For each pair of inputs, adds the product of the first input, then the
// product of the second.
template <size_t kRows, size_t kPanels>
HWY_INLINE void BFloat16Tile(const NarrowTile<kPanels>& tile) {
  constexpr size_t kVectors = NarrowTile<kPanels>::kVectors;
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto first = [](auto pair) HWY_ATTR { return hn::BitCast(F32(), hn::ShiftLeft<16>(pair)); };
  const auto upper = hn::Set(du, 0xffff0000u);
  const auto second = [&](auto pair) HWY_ATTR { return hn::BitCast(F32(), hn::And(pair, upper)); };
  Vec sum[kRows * kVectors];
  Unrolled<kRows * kVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  const std::byte *weights[kVectors], *x[kRows];
  Unrolled<kVectors>([&](auto v) HWY_ATTR { weights[v] = tile.Weights(v, 0); });
  Unrolled<kRows>([&](auto r) HWY_ATTR { x[r] = tile.X(r); });
  const auto add = [&](auto r, auto v, Vec x1, Vec w1, Vec x2, Vec w2) HWY_ATTR {
    Vec& s = sum[r * kVectors + v];
    s = hn::MulAdd(x2, w2, hn::MulAdd(x1, w1, s));
  };
  const size_t bytes = tile.args.row_bytes();
  for (size_t at = 0, w = 0; at < bytes; at += 4, w += 4 * kPanel) {
    const auto weight = [&](auto v) HWY_ATTR {
      return hn::Load(du, reinterpret_cast<const uint32_t*>(weights[v] + w));
    };
    const auto input = [&](auto r) HWY_ATTR { return hn::BitCast(du, FourBytes(x[r] + at)); };
    Unrolled<kPanels>(
        [&](auto p) HWY_ATTR { hwy::Prefetch(weights[p * kNarrowVectors] + w + 64 * 4 * kPanel); });
    // Keeps either the weights or the inputs in registers, whichever need fewer registers.
    if constexpr (kVectors <= kRows) {
      Vec w1[kVectors], w2[kVectors];
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        const auto pair = weight(v);
        w1[v] = first(pair), w2[v] = second(pair);
      });
      Unrolled<kRows>([&](auto r) HWY_ATTR {
        const auto pair = input(r);
        const Vec x1 = first(pair), x2 = second(pair);
        Unrolled<kVectors>([&](auto v) HWY_ATTR { add(r, v, x1, w1[v], x2, w2[v]); });
      });
    } else {
      Vec x1[kRows], x2[kRows];
      Unrolled<kRows>([&](auto r) HWY_ATTR {
        const auto pair = input(r);
        x1[r] = first(pair), x2[r] = second(pair);
      });
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        const auto pair = weight(v);
        const Vec w1 = first(pair), w2 = second(pair);
        Unrolled<kRows>([&](auto r) HWY_ATTR { add(r, v, x1[r], w1, x2[r], w2); });
      });
    }
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>([&](auto v) HWY_ATTR { tile.Finish(r, v, sum[r * kVectors + v]); });
  });
}

// Returns, for each output (lane), sum + the dot product of its four unsigned weights with four
// values of a row.
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

// Whether the target has an instruction that adds the products of adjacent pairs of 16-bit integers
// and keeps these sums in lane order.
#define LINNET_PAIR_PRODUCTS ((HWY_ARCH_X86 || HWY_ARCH_WASM) && HWY_TARGET != HWY_SCALAR)

#if LINNET_PAIR_PRODUCTS
// Like DotOfFour(), but in 16-bit integers, adding two products per instruction: first those of
// bytes 0 and 2, then those of bytes 1 and 3.
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

template <size_t kRows, size_t kPanels>
HWY_INLINE void Int8Tile(const NarrowTile<kPanels>& tile) {
  constexpr size_t kVectors = NarrowTile<kPanels>::kVectors;
  const I32 d;
  hn::Vec<I32> sum[kRows * kVectors];
  Unrolled<kRows * kVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  const std::byte *weights[kVectors], *x[kRows];
  Unrolled<kVectors>([&](auto v) HWY_ATTR { weights[v] = tile.Weights(v, 0); });
  Unrolled<kRows>([&](auto r) HWY_ATTR { x[r] = tile.X(r); });
  const size_t bytes = tile.args.row_bytes();
  for (size_t at = 0, w = 0; at < bytes; at += 4, w += 4 * kPanel) {
    Unrolled<kPanels>(
        [&](auto p) HWY_ATTR { hwy::Prefetch(weights[p * kNarrowVectors] + w + 64 * 4 * kPanel); });
    hn::Vec<I32> four[kVectors];
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      four[v] = hn::Load(d, reinterpret_cast<const int32_t*>(weights[v] + w));
    });
    Unrolled<kRows>([&](auto r) HWY_ATTR {
#if LINNET_PAIR_PRODUCTS
      const hn::Repartition<int16_t, I32> d16;
      const auto x_all = hn::BitCast(d16, FourBytes(x[r] + at));
      const auto x02 = hn::BitCast(d, hn::ShiftRight<8>(hn::ShiftLeft<8>(x_all)));
      const auto x13 = hn::BitCast(d, hn::ShiftRight<8>(x_all));
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        hn::Vec<I32>& s = sum[r * kVectors + v];
        s = DotOfPairs(s, four[v], x02, x13);
      });
#else
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        hn::Vec<I32>& s = sum[r * kVectors + v];
        s = DotOfFour(s, four[v], reinterpret_cast<const int8_t*>(x[r] + at));
      });
#endif
    });
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    const auto offset = hn::Set(d, tile.args.x.offset[tile.row + r]);
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      tile.Finish(r, v, hn::ConvertTo(F32(), hn::Add(sum[r * kVectors + v], offset)));
    });
  });
}

// Computes rows [row, row + kRows) and outputs [column, end); column is a multiple of kPanel.
template <size_t kRows>
void NarrowRowsBody(const NarrowArgs& args, size_t row, size_t column, size_t end) {
  const size_t stride = args.panel_bytes();
  const auto tiles = [&](auto width, auto body) HWY_ATTR {
    constexpr size_t kPanels = decltype(width)::value;
    for (; column + (kPanels - 1) * kPanel < end; column += kPanels * kPanel) {
      body(NarrowTile<kPanels>{args, row, column, args.packed + column / kPanel * stride});
    }
  };
  constexpr std::integral_constant<size_t, 1> kOne;
  if (args.x.type == NarrowType::kInt8) {
    const auto body = [](const auto& tile) HWY_ATTR { Int8Tile<kRows>(tile); };
    tiles(std::integral_constant<size_t, NarrowPanels(kRows, NarrowType::kInt8)>(), body);
    tiles(kOne, body);
  } else {
    const auto body = [](const auto& tile) HWY_ATTR { BFloat16Tile<kRows>(tile); };
    tiles(std::integral_constant<size_t, NarrowPanels(kRows, NarrowType::kBf16)>(), body);
    tiles(kOne, body);
  }
}

template <size_t... kIndex>
constexpr std::array<void (*)(const NarrowArgs&, size_t, size_t, size_t), sizeof...(kIndex)>
NarrowRowsTable(std::index_sequence<kIndex...>) {
  return {NarrowRowsBody<kIndex + 1>...};
}

void NarrowLinearBody(const NarrowArgs& args) {
  static constexpr auto kTable = NarrowRowsTable(std::make_index_sequence<kNarrowRows>());
  // Tiles have nearly equal heights. The weights of two panels (48 KiB at 768 inputs in bf16) stay
  // in the caches near the core while all rows are multiplied by them.
  const size_t tiles = (args.rows + kNarrowRows - 1) / kNarrowRows;
  const size_t block = tiles == 1 ? args.out : 2 * kPanel;
  for (size_t column = 0; column < args.out; column += block) {
    for (size_t tile = 0; tile < tiles; ++tile) {
      const size_t begin = args.rows * tile / tiles, end = args.rows * (tile + 1) / tiles;
      kTable[end - begin - 1](args, begin, column, std::min(column + block, args.out));
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_NARROW_LINEAR_INL_H_
