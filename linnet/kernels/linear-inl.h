// The Highway body of linear.h, compiled once for each instruction set.
//
// A tile is a few rows of x by a few panels of outputs. Its sums stay in registers over all inputs.
// With many rows, a block of two panels (32 kB at 256 inputs) stays in the first-level cache while
// all rows are multiplied by it. With one row, eight panels (four with AVX2) are read side by side
// to hide the latency of the multiply-add. Weights are prefetched: with up to kMostNearRows rows,
// further ahead in each panel and, near the end of a tile, from the panels of the next tile; with
// more rows, whole panels ahead, so that the products need not wait for memory.
#if defined(LINNET_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LINEAR_INL_H_
#undef LINNET_KERNELS_LINEAR_INL_H_
#else
#define LINNET_KERNELS_LINEAR_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "hwy/highway.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/prefetch_weights-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

struct LinearArgs {
  size_t in, out;
  const float* x;
  size_t x_stride;
  const float* packed;
  LinearMode mode;
  float* y;
  size_t y_stride;
  size_t ahead = 0;  // how far ahead to prefetch (PanelsAhead()), in floats
};

// kPanelVectors: vectors per panel. kMaxRows: maximum rows of a tile, chosen so that its sums take
// 24 of 32 registers with AVX-512, and 12 of 16 with AVX2 and in a browser.
inline constexpr size_t kPanelVectors = kPanel / hn::MaxLanes(F32());
inline constexpr size_t kMaxRows = HWY_TARGET == HWY_AVX3     ? 12
                                   : HWY_TARGET == HWY_SCALAR ? 1
                                   : HWY_TARGET == HWY_WASM   ? 3
                                                              : 6;

// Panels per tile: enough accumulators to hide the latency of multiply-adds, but no more than
// registers can hold.
constexpr size_t TilePanels(size_t rows) {
  if (HWY_TARGET == HWY_SCALAR) return 1;
  if (HWY_TARGET == HWY_WASM) return rows == 1 ? 2 : 1;
  const size_t panels = rows == 1 ? 8 : rows <= 3 ? 4 : 2;
  return HWY_TARGET == HWY_AVX3 ? panels : panels / 2;
}

// With up to kMostNearRows rows: how many cache lines ahead to prefetch, in total over the panels
// of a tile.
inline constexpr size_t kPrefetchLines = 64;

// Computes the tile at row 0 and panel 0 of `args`.
template <size_t kRows, size_t kPanels>
HWY_INLINE void LinearTile(const LinearArgs& args) {
  const F32 d;
  constexpr size_t kVectors = kPanels * kPanelVectors;
  const size_t lanes = hn::Lanes(d);
  const size_t panel_stride = PackedLinearSize(args.in, kPanel);
  const auto at = [&](size_t v) HWY_ATTR {
    return v / kPanelVectors * panel_stride + v % kPanelVectors * lanes;
  };
  const float* HWY_RESTRICT weights = args.packed;
  Vec sum[kRows * kVectors];
  Unrolled<kVectors>([&](auto v) HWY_ATTR {
    const Vec bias = hn::Load(d, weights + at(v));
    Unrolled<kRows>([&](auto r) HWY_ATTR { sum[r * kVectors + v] = bias; });
  });
  weights += kPanel;

  const float* HWY_RESTRICT x = args.x;
  const size_t x_stride = args.x_stride;
  // Adds the products of the next `inputs` inputs. Prefetches weights `ahead` floats further on.
  const auto walk = [&](size_t inputs, size_t ahead) HWY_ATTR {
    for (size_t k = 0; k < inputs; ++k, ++x, weights += kPanel) {
      Unrolled<kPanels>(
          [&](auto p) HWY_ATTR { PrefetchWeights<kRows>(weights + p * panel_stride + ahead); });
      Vec w[kVectors];
      Unrolled<kVectors>([&](auto v) HWY_ATTR { w[v] = hn::Load(d, weights + at(v)); });
      Unrolled<kRows>([&](auto r) HWY_ATTR {
        const Vec x_r = hn::Set(d, x[r * x_stride]);
        Unrolled<kVectors>([&](auto v) HWY_ATTR {
          sum[r * kVectors + v] = hn::MulAdd(x_r, w[v], sum[r * kVectors + v]);
        });
      });
    }
  };
  if constexpr (kRows <= kMostNearRows) {
    // The last steps prefetch from the next tile: each of its panels starts kPanels panels after
    // the corresponding panel of this tile.
    const size_t lead = std::min(args.in, kPrefetchLines / kPanels);
    walk(args.in - lead, lead * kPanel);
    walk(lead, lead * kPanel + (kPanels - 1) * panel_stride + kPanel);
  } else {
    walk(args.in, args.ahead);
  }

  const bool add = args.mode == LinearMode::kAdd;
  const bool whole = args.out >= kPanels * kPanel;
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    float* y = args.y + r * args.y_stride;
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      const size_t column = v * lanes;
      Vec result = sum[r * kVectors + v];
      if (HWY_LIKELY(whole)) {
        if (add) result = hn::Add(hn::LoadU(d, y + column), result);
        hn::StoreU(result, d, y + column);
      } else if (column < args.out) {
        const size_t used = std::min(lanes, args.out - column);
        if (add) result = hn::Add(LoadN(y + column, used), result);
        StoreN(result, y + column, used);
      }
    });
  });
}

// Computes kRows rows and all panels of `args`.
template <size_t kRows>
void LinearRows(const LinearArgs& all) {
  LinearArgs args = all;
  size_t panels = (args.out + kPanel - 1) / kPanel;
  const auto tiles = [&](auto width) HWY_ATTR {
    constexpr size_t kPanels = decltype(width)::value;
    if constexpr (kPanels <= TilePanels(kRows)) {
      for (; panels >= kPanels; panels -= kPanels) {
        LinearTile<kRows, kPanels>(args);
        args.packed += PackedLinearSize(args.in, kPanels * kPanel);
        args.y += kPanels * kPanel;
        args.out -= std::min(args.out, kPanels * kPanel);
      }
    }
  };
  tiles(std::integral_constant<size_t, 8>());
  tiles(std::integral_constant<size_t, 4>());
  tiles(std::integral_constant<size_t, 2>());
  tiles(std::integral_constant<size_t, 1>());
}

template <size_t... kIndex>
constexpr std::array<void (*)(const LinearArgs&), sizeof...(kIndex)> LinearRowsTable(
    std::index_sequence<kIndex...>) {
  return {LinearRows<kIndex + 1>...};
}

void LinearBody(size_t rows, size_t in, size_t out, const float* x, size_t x_stride,
                const float* packed, LinearMode mode, float* y, size_t y_stride) {
  static constexpr auto kTable = LinearRowsTable(std::make_index_sequence<kMaxRows>());
  if (rows == 0) return;
  // Tiles have nearly equal heights: 13 rows become 6 + 7, not 12 + 1.
  const size_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const size_t block = tiles == 1 ? out : kBlockPanels * kPanel;
  for (size_t o = 0; o < out; o += block) {
    for (size_t tile = 0; tile < tiles; ++tile) {
      const size_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
      const size_t ahead = PanelsAhead(tile, tiles, TilePanels(end - begin));
      const LinearArgs args{.in = in,
                            .out = std::min(block, out - o),
                            .x = x + begin * x_stride,
                            .x_stride = x_stride,
                            .packed = packed + PackedLinearSize(in, o),
                            .mode = mode,
                            .y = y + begin * y_stride + o,
                            .y_stride = y_stride,
                            .ahead = PackedLinearSize(in, ahead * kPanel)};
      kTable[end - begin - 1](args);
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LINEAR_INL_H_
