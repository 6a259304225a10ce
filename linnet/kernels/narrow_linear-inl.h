// The Highway bodies of narrow_linear.h, compiled once for each instruction set: conversion of
// activations, and products for processors without dot-product instructions.
#if defined(LINNET_KERNELS_NARROW_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#undef LINNET_KERNELS_NARROW_LINEAR_INL_H_
#else
#define LINNET_KERNELS_NARROW_LINEAR_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/narrow_linear_args.h"
#include "linnet/kernels/prefetch_weights-inl.h"
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

// Like BFloat16Activations(), for products without a dot-product unit: the same numbers, in fp32.
void WideBFloat16Activations(size_t rows, size_t in, const float* x, size_t x_stride,
                             const float* factor, const NarrowRows& to) {
  const size_t padded = RoundUp(in, kNarrowInputs);
  auto* row = reinterpret_cast<float*>(to.data);
  for (size_t r = 0; r < rows; ++r, x += x_stride, row += padded) {
    ForVectors(in, [&](size_t i, size_t used) HWY_ATTR {
      StoreN(RoundToBFloat16(LoadScaled(x, factor, i, used)), row + i, used);
    });
    std::memset(row + in, 0, (padded - in) * sizeof(float));
  }
}

// Stores the values of a row from i on. kWide: as 16-bit integers, the second and third value of
// each group of four swapped, so that 32 bits hold what half a group of weights is multiplied by.
// Otherwise, as bytes.
template <bool kWide>
HWY_INLINE void StoreValues(hn::Vec<I32> value, size_t i, size_t used, std::byte* row) {
  using Value = std::conditional_t<kWide, int16_t, int8_t>;
  auto* to = reinterpret_cast<Value*>(row);
#if HWY_TARGET != HWY_SCALAR
  if (used == hn::Lanes(I32())) {
    const hn::Rebind<Value, F32> d;
    if (kWide) value = hn::InterleaveLower(I32(), value, hn::Shuffle1032(value));
    hn::StoreU(hn::DemoteTo(d, value), d, to + i);
    return;
  }
#endif
  HWY_ALIGN int32_t part[16];
  hn::Store(value, I32(), part);
  for (size_t n = 0; n < used; ++n) {
    const size_t at = i + n, swapped = at % 4 == 1 ? at + 1 : at % 4 == 2 ? at - 1 : at;
    to[kWide ? swapped : at] = static_cast<Value>(part[n]);
  }
}

// The nearest integers, like hn::NearestInt(), which also corrects the conversion of numbers beyond
// 32 bits. Here there are none.
HWY_INLINE hn::Vec<I32> Nearest(Vec x) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<I32>{_mm512_cvtps_epi32(x.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec<I32>{_mm256_cvtps_epi32(x.raw)};
#else
  return hn::NearestInt(x);
#endif
}

template <bool kWide>
HWY_INLINE void Int8ActivationsOf(size_t rows, size_t in, const float* x, size_t x_stride,
                                  const float* factor, const NarrowRows& to) {
  constexpr size_t kBytes = kWide ? sizeof(int16_t) : sizeof(int8_t);
  const size_t groups = in / 4 * 4 * kBytes, bytes = RoundUp(in, kNarrowInputs) * kBytes;
  std::byte* row = to.data;
  for (size_t r = 0; r < rows; ++r, x += x_stride, row += bytes) {
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
    const Vec inverse = hn::Set(F32(), none ? 0.0f : 127.0f / largest);
    auto sum = hn::Zero(I32());
    // The last group, if it is not whole, and the padding.
    if (groups < bytes) std::memset(row + groups, 0, bytes - groups);
    ForVectors(in, [&](size_t i, size_t used) HWY_ATTR {
      const auto value = Nearest(hn::Mul(LoadScaled(x, factor, i, used), inverse));
      sum = hn::Add(sum, value);
      StoreValues<kWide>(value, i, used, row);
    });
    to.offset[r] = static_cast<int32_t>(
        0u - 128u * static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(I32(), sum))));
    if (!finite) to.scale[r] = NAN;  // makes all results of the row NaN
  }
}

// Instances for the dispatcher, which cannot take templates.
void Int8Activations(size_t rows, size_t in, const float* x, size_t x_stride, const float* factor,
                     const NarrowRows& to) {
  Int8ActivationsOf<false>(rows, in, x, x_stride, factor, to);
}
void WideInt8Activations(size_t rows, size_t in, const float* x, size_t x_stride,
                         const float* factor, const NarrowRows& to) {
  Int8ActivationsOf<true>(rows, in, x, x_stride, factor, to);
}

// ------------------------------------------------------------------------------------------
// Products without a dot-product unit. A tile is a block of rows times whole panels of outputs,
// whose sums stay in registers over all inputs.
//
// 64 bytes of a panel's weights meet 8 bytes of a row: two fp32 numbers (bf16) or four 16-bit
// integers (int8). Both are processed in two halves. Each half takes 4 bytes of the row, which one
// load broadcasts to all lanes, and multiplies them by weights that a mask or a shift extracts.

inline constexpr size_t kNarrowVectors = kPanel / hn::MaxLanes(F32());  // vectors per panel
// Maximum number of rows of a tile, and number of panels of a tile of `rows` rows: enough to hide
// the latency of multiply-adds, but no more than registers can hold. int8 needs registers for
// products too.
constexpr size_t NarrowRowsOfTile(NarrowType type) {
  if (HWY_TARGET == HWY_SCALAR) return 1;
  if (HWY_TARGET == HWY_AVX3) return 8;
  return HWY_TARGET == HWY_AVX2 && type == NarrowType::kBf16 ? 6 : 4;
}
constexpr size_t NarrowPanels(size_t rows, NarrowType type) {
  // WebAssembly: browsers compile to 16 registers, and a panel has four vectors.
  if (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_WASM || rows > 2) return 1;
  return rows == 1 && type == NarrowType::kBf16 ? 4 : 2;
}

// bf16 products. The first half is the first input of a pair, the second half the second.
struct BFloat16Products {
  static constexpr NarrowType kType = NarrowType::kBf16;
  using Number = float;  // of the row
  using D = F32;
  using Sums = Vec;

  template <size_t kHalf>
  static HWY_INLINE Vec Weights(hn::Vec<U32> pair) {
    if constexpr (kHalf == 0) return hn::BitCast(F32(), hn::ShiftLeft<16>(pair));
    return hn::BitCast(F32(), hn::And(pair, hn::Set(U32(), 0xffff0000u)));
  }
  static HWY_INLINE Vec MulAdd(Vec sums, Vec weights, Vec input) {
    return hn::MulAdd(input, weights, sums);
  }
  static HWY_INLINE Vec Total(const NarrowArgs&, size_t, Vec sums) { return sums; }
};

// Whether the target has an instruction that adds the products of adjacent pairs of 16-bit integers
// and keeps these sums in lane order.
#define LINNET_PAIR_PRODUCTS ((HWY_ARCH_X86 || HWY_ARCH_WASM) && HWY_TARGET != HWY_SCALAR)

// int8 products, in pairs of 16-bit integers. The first half are the inputs 0 and 2 of a group of
// four, the second half the inputs 1 and 3.
struct Int8Products {
  static constexpr NarrowType kType = NarrowType::kInt8;
  using Number = int32_t;  // a pair of the row's integers
  using D = I32;
  using Sums = hn::Vec<I32>;

  template <size_t kHalf>
  static HWY_INLINE Sums Weights(hn::Vec<U32> four) {
    const auto mask = hn::Set(U32(), 0x00ff00ffu);
    if constexpr (kHalf == 0) return hn::BitCast(D(), hn::And(four, mask));
#if LINNET_PAIR_PRODUCTS
    const hn::Repartition<uint16_t, U32> d16;
    return hn::BitCast(D(), hn::ShiftRight<8>(hn::BitCast(d16, four)));
#else
    return hn::BitCast(D(), hn::And(hn::ShiftRight<8>(four), mask));
#endif
  }
  static HWY_INLINE Sums MulAdd(Sums sums, Sums weights, Sums input) {
#if LINNET_PAIR_PRODUCTS
    const hn::Repartition<int16_t, I32> d16;
    Sums unused = hn::Zero(D());
    sums = hn::ReorderWidenMulAccumulate(D(), hn::BitCast(d16, weights), hn::BitCast(d16, input),
                                         sums, unused);
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86
    // GCC would otherwise add the products of both halves to each other first, which keeps more
    // numbers alive than there are registers.
    asm("" : "+v"(sums.raw));
#endif
    return sums;
#else
    const Sums low = hn::Mul(hn::And(weights, hn::Set(D(), 0xffff)),
                             hn::ShiftRight<16>(hn::ShiftLeft<16>(input)));
    const Sums high = hn::Mul(hn::ShiftRight<16>(weights), hn::ShiftRight<16>(input));
    return hn::Add(sums, hn::Add(low, high));
#endif
  }
  static HWY_INLINE Vec Total(const NarrowArgs& args, size_t row, Sums sums) {
    return hn::ConvertTo(F32(), hn::Add(sums, hn::Set(D(), args.x.offset[row])));
  }
};

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

// Computes a tile of kRows rows from `row` on, and of kPanels panels, the first of which is at
// `panel` and starts with output `column`. `ahead`: see PanelsAhead().
template <class Products, size_t kRows, size_t kPanels>
HWY_INLINE void NarrowTile(const NarrowArgs& args, size_t row, size_t column,
                           const std::byte* panel, size_t ahead) {
  using Number = typename Products::Number;
  using Sums = typename Products::Sums;
  constexpr size_t kVectors = kPanels * kNarrowVectors;
  const typename Products::D d;
  const size_t stride = args.panel_bytes();
  Sums sums[kRows * kVectors];
  Unrolled<kRows * kVectors>([&](auto i) HWY_ATTR { sums[i] = hn::Zero(d); });
  const std::byte* weights[kPanels];
  const std::byte* x[kRows];
  Unrolled<kPanels>([&](auto p)
                        HWY_ATTR { weights[p] = panel + p * stride + args.header_bytes(); });
  Unrolled<kRows>([&](auto r) HWY_ATTR { x[r] = args.x.data + (row + r) * args.row_bytes; });
  const auto input_at = [&](size_t r, size_t at) HWY_ATTR {
    Number number;
    std::memcpy(&number, x[r] + at, sizeof number);
    return hn::Set(d, number);  // compiles to one load that fills all lanes
  };
  const size_t distance = kRows <= kMostNearRows ? 64 * 4 * kPanel : ahead * stride;
  for (size_t at = 0, w = 0; at < args.row_bytes; at += 2 * sizeof(Number), w += 4 * kPanel) {
    const auto group = [&](auto v) HWY_ATTR {
      return hn::Load(U32(), reinterpret_cast<const uint32_t*>(weights[v / kNarrowVectors] + w) +
                                 v % kNarrowVectors * hn::Lanes(U32()));
    };
    const auto add = [&](auto r, auto v, Sums weight, Sums input) HWY_ATTR {
      Sums& s = sums[r * kVectors + v];
      s = Products::MulAdd(s, weight, input);
    };
    Unrolled<kPanels>([&](auto p) HWY_ATTR { PrefetchWeights<kRows>(weights[p] + w + distance); });
    // Keeps either the weights or the inputs in registers, whichever need fewer registers.
    if constexpr (kVectors <= kRows) {
      Unrolled<2>([&](auto half) HWY_ATTR {
        Sums weight[kVectors];
        Unrolled<kVectors>(
            [&](auto v) HWY_ATTR { weight[v] = Products::template Weights<half()>(group(v)); });
        Unrolled<kRows>([&](auto r) HWY_ATTR {
          const Sums input = input_at(r, at + half * sizeof(Number));
          Unrolled<kVectors>([&](auto v) HWY_ATTR { add(r, v, weight[v], input); });
        });
      });
    } else {
      Sums input[2 * kRows];
      Unrolled<2 * kRows>(
          [&](auto n) HWY_ATTR { input[n] = input_at(n / 2, at + n % 2 * sizeof(Number)); });
      Unrolled<kVectors>([&](auto v) HWY_ATTR {
        const auto both = group(v);
        const Sums first = Products::template Weights<0>(both);
        const Sums second = Products::template Weights<1>(both);
        Unrolled<kRows>([&](auto r) HWY_ATTR {
          add(r, v, first, input[2 * r]);
          add(r, v, second, input[2 * r + 1]);
        });
      });
    }
  }
  // A copy: clang does not always inline the function below, and arrays that it reads stay in
  // memory.
  Sums done[kRows * kVectors];
  Unrolled<kRows * kVectors>([&](auto i) HWY_ATTR { done[i] = sums[i]; });
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      constexpr size_t kPanelOf = v / kNarrowVectors;
      FinishNarrow(args, row + r, panel + kPanelOf * stride, column + kPanelOf * kPanel,
                   v % kNarrowVectors, Products::Total(args, row + r, done[r * kVectors + v]));
    });
  });
}

// Computes rows [row, row + kRows) and outputs [column, end); column is a multiple of kPanel.
template <class Products, size_t kRows>
HWY_NOINLINE void NarrowRowsOf(const NarrowArgs& args, size_t row, size_t column, size_t end,
                               size_t ahead) {
  const size_t stride = args.panel_bytes();
  const auto tiles = [&](auto width) HWY_ATTR {
    constexpr size_t kPanels = decltype(width)::value;
    for (; column + (kPanels - 1) * kPanel < end; column += kPanels * kPanel) {
      NarrowTile<Products, kRows, kPanels>(args, row, column,
                                           args.packed + column / kPanel * stride, ahead);
    }
  };
  tiles(std::integral_constant<size_t, NarrowPanels(kRows, Products::kType)>());
  tiles(std::integral_constant<size_t, 1>());
}

template <class Products>
HWY_INLINE void NarrowLinearOf(const NarrowArgs& args) {
  // Tiles have nearly equal heights. The weights of two panels (48 KiB at 768 inputs in bf16) stay
  // in the caches near the core while all rows are multiplied by them.
  constexpr size_t kMostRows = NarrowRowsOfTile(Products::kType);
  const size_t tiles = (args.rows + kMostRows - 1) / kMostRows;
  const size_t block = tiles == 1 ? args.out : kBlockPanels * kPanel;
  for (size_t column = 0; column < args.out; column += block) {
    for (size_t tile = 0; tile < tiles; ++tile) {
      const size_t begin = args.rows * tile / tiles, end = args.rows * (tile + 1) / tiles;
      const size_t ahead = PanelsAhead(tile, tiles, NarrowPanels(end - begin, Products::kType));
      Unrolled<kMostRows>([&](auto before) HWY_ATTR {
        constexpr size_t kRows = before + 1;
        if (end - begin == kRows) {
          NarrowRowsOf<Products, kRows>(args, begin, column, std::min(column + block, args.out),
                                        ahead);
        }
      });
    }
  }
}

void NarrowLinearBody(const NarrowArgs& args) {
  if (args.x.type == NarrowType::kInt8) {
    NarrowLinearOf<Int8Products>(args);
  } else {
    NarrowLinearOf<BFloat16Products>(args);
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_NARROW_LINEAR_INL_H_
