// The bodies of narrow_linear.h for AVX-512's dot-product instructions and for AMX. Uses
// intrinsics, because Highway 1.0 has no such target.
#include <algorithm>
#include <cstdint>

#include "linnet/kernels/narrow_linear_args.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's <immintrin.h> triggers these warnings by reading deliberately undefined values.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#define LINNET_AVX512    \
  __attribute__((target( \
      "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,amx-tile,amx-bf16,amx-int8")))
#define LINNET_INLINE __attribute__((always_inline)) inline
#define LINNET_NOINLINE __attribute__((noinline))

namespace linnet::kernels {
namespace {

// What turns a panel's sums into outputs: biases and, for int8, scales.
struct PanelEnd {
  __m512 bias, scale;
  __mmask16 used;  // the outputs that exist
};

// Of the panel whose first output is `column`.
template <NarrowType kType>
LINNET_AVX512 LINNET_INLINE PanelEnd EndOf(const NarrowArgs& args, const std::byte* panel,
                                           size_t column) {
  const size_t used = args.out - column;
  return {.bias = _mm512_load_ps(panel),
          .scale = kType == NarrowType::kInt8 ? _mm512_load_ps(panel + kPanel * sizeof(float))
                                              : _mm512_setzero_ps(),
          .used = static_cast<__mmask16>(used >= kPanel ? 0xffff : (1u << used) - 1)};
}

// Writes one row's outputs of a panel to `y`, from their sums: floats or, for int8, integers.
template <NarrowType kType>
LINNET_AVX512 LINNET_INLINE void Finish(const NarrowRows& x, size_t row, __m512i sums,
                                        const PanelEnd& end, bool add, float* y) {
  __m512 result;
  if (kType == NarrowType::kInt8) {
    const __m512i whole = _mm512_add_epi32(sums, _mm512_set1_epi32(x.offset[row]));
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x.scale[row]), end.scale);
    result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, end.bias);
  } else {
    result = _mm512_add_ps(_mm512_castsi512_ps(sums), end.bias);
  }
  if (add) result = _mm512_add_ps(_mm512_maskz_loadu_ps(end.used, y), result);
  _mm512_mask_storeu_ps(y, end.used, result);
}

// ------------------------------------------------------------------------------------------
// AVX-512's dot-product instructions. A tile of kRows x kPanels sum vectors stays in registers over
// all inputs.

// For each of 16 outputs, adds to its sum the dot product of two (bf16) or four (int8) of its
// weights with as many values of a row of x. Written in assembly, because with the intrinsics GCC
// 12 copies the accumulators before and after each instruction.
template <NarrowType kType>
LINNET_AVX512 LINNET_INLINE void Dot(__m512i& sum, __m512i weights, __m512i x) {
  if (kType == NarrowType::kInt8) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
  } else {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
  }
}

// Prefetch distance within a panel, in bytes. With few rows, loading weights is the bottleneck.
constexpr size_t kAhead = 4096;

template <NarrowType kType, size_t kRows, size_t kPanels>
LINNET_AVX512 void VnniTile(const NarrowArgs& args, size_t row, size_t column,
                            const std::byte* panel) {
  const size_t bytes = args.row_bytes, stride = args.panel_bytes();
  const std::byte* weights = panel + args.header_bytes();
  const std::byte* x = args.x.data + row * args.x_stride;
  __m512i sum[kRows][kPanels];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) sum[r][p] = _mm512_setzero_si512();
  }
  for (size_t at = 0; at < bytes; at += 4, weights += 64) {
    __m512i w[kPanels];
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) {
      w[p] = _mm512_load_si512(weights + p * stride);
      if (kRows <= 3) _mm_prefetch(weights + p * stride + kAhead, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x + r * args.x_stride + at, 4);
      const __m512i x_r = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (size_t p = 0; p < kPanels; ++p) Dot<kType>(sum[r][p], w[p], x_r);
    }
  }
  const bool add = args.mode == LinearMode::kAdd;
#pragma GCC unroll 8
  for (size_t p = 0; p < kPanels; ++p) {
    const PanelEnd end = EndOf<kType>(args, panel + p * stride, column + p * kPanel);
    float* y = args.y + row * args.y_stride + column + p * kPanel;
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      Finish<kType>(args.x, row + r, sum[r][p], end, add, y + r * args.y_stride);
    }
  }
}

template <NarrowType kType, size_t kPanels>
LINNET_AVX512 void VnniRows(const NarrowArgs& args, size_t begin, size_t end, size_t column,
                            const std::byte* panel) {
  switch (end - begin) {
    case 1:
      return VnniTile<kType, 1, kPanels>(args, begin, column, panel);
    case 2:
      return VnniTile<kType, 2, kPanels>(args, begin, column, panel);
    case 3:
      return VnniTile<kType, 3, kPanels>(args, begin, column, panel);
    case 4:
      return VnniTile<kType, 4, kPanels>(args, begin, column, panel);
    case 5:
      return VnniTile<kType, 5, kPanels>(args, begin, column, panel);
    default:
      return VnniTile<kType, 6, kPanels>(args, begin, column, panel);
  }
}

template <NarrowType kType>
LINNET_AVX512 void Vnni(const NarrowArgs& args) {
  constexpr size_t kMostRows = 6;
  const size_t panels = (args.out + kPanel - 1) / kPanel, stride = args.panel_bytes();
  const size_t tiles = (args.rows + kMostRows - 1) / kMostRows;
  for (size_t p = 0; p < panels;) {
    const size_t count = panels - p >= 4 ? 4 : 1;
    for (size_t tile = 0; tile < tiles; ++tile) {
      const size_t begin = args.rows * tile / tiles, end = args.rows * (tile + 1) / tiles;
      const auto rows = count == 4 ? VnniRows<kType, 4> : VnniRows<kType, 1>;
      rows(args, begin, end, p * kPanel, args.packed + p * stride);
    }
    p += count;
  }
}

// ------------------------------------------------------------------------------------------
// AMX: tile registers of 16 rows of 64 bytes, and an instruction that multiplies two of them.

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Configures the tile registers. Tiles 0 to 3 hold sums: of up to 16 rows for four panels, or of
// `upper` and `lower` rows for two. Tile 4 holds the upper rows of x and tile 5 the lower rows;
// tiles 6 and 7 hold weights.
LINNET_AVX512 void Configure(size_t upper, size_t lower) {
  TileConfig config;
  const size_t rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  for (size_t i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(rows[i]);
  }
  // GCC 12's intrinsic declares that it reads eight of the 64 bytes. Without this line, GCC may
  // leave the others unwritten.
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}

// A macro, because the tile numbers must be immediate operands.
#define LINNET_TILE_DOT(sum, x, weights) \
  if (kType == NarrowType::kInt8) {      \
    _tile_dpbsud(sum, x, weights);       \
  } else {                               \
    _tile_dpbf16ps(sum, x, weights);     \
  }

// Computes up to 16 rows, one panel after another in memory order. With so few rows the product
// waits for its weights, so they are prefetched.
template <NarrowType kType, bool kAdd>
LINNET_AVX512 void AmxFewRows(const NarrowArgs& args) {
  const size_t bytes = args.row_bytes, stride = args.panel_bytes();
  alignas(64) int32_t sums[16 * kPanel];
  Configure(args.rows, args.rows);
  const std::byte* panel = args.packed;
  for (size_t column = 0; column < args.out; column += kPanel, panel += stride) {
    const std::byte* weights = panel + args.header_bytes();
    _tile_zero(0);
    for (size_t at = 0; at < bytes; at += 64, weights += 1024) {
      for (size_t line = 0; line < 1024; line += 64) {
        _mm_prefetch(weights + kAhead + line, _MM_HINT_T0);
      }
      _tile_loadd(4, args.x.data + at, args.x_stride);
      _tile_loadd(6, weights, 64);
      LINNET_TILE_DOT(0, 4, 6)
    }
    _tile_stored(0, sums, 64);
    const PanelEnd end = EndOf<kType>(args, panel, column);
    float* y = args.y + column;
    for (size_t r = 0; r < args.rows; ++r, y += args.y_stride) {
      Finish<kType>(args.x, r, _mm512_load_si512(sums + r * kPanel), end, kAdd, y);
    }
  }
}

// The product in blocks of rows and kPanels panels. The sums of a block are turned into outputs
// while the next block is computed, a few rows after each step through the inputs; otherwise the
// tile unit would wait for that work.
template <NarrowType kType, bool kAdd, size_t kPanels>
class AmxBlocks {
 public:
  explicit AmxBlocks(const NarrowArgs& args) : args_(args), stride_(args.panel_bytes()) {}

  // Computes up to 16 rows for the four panels from output `column` on.
  LINNET_AVX512 LINNET_NOINLINE void OneTileOfRows(size_t column) {
    static_assert(kPanels == 4);
    const std::byte* x = args_.x.data;
    const std::byte* weights[kPanels];
    Weights(column, weights);
    const size_t bytes = args_.row_bytes, x_stride = args_.x_stride;
    Rows rows = unfinished_;
    const size_t part = RowsAStep(rows);
    Clear();
    for (size_t at = 0, w = 0; at < bytes; at += 64, w += kTileBytes) {
      _tile_loadd(4, x + at, x_stride);
      _tile_loadd(6, weights[0] + w, 64);
      LINNET_TILE_DOT(0, 4, 6)
      _tile_loadd(7, weights[1] + w, 64);
      LINNET_TILE_DOT(1, 4, 7)
      _tile_loadd(6, weights[2] + w, 64);
      LINNET_TILE_DOT(2, 4, 6)
      _tile_loadd(7, weights[3] + w, 64);
      LINNET_TILE_DOT(3, 4, 7)
      FinishRows(part, rows);
    }
    FinishRows(rows.end, rows);  // none, unless the product has no inputs
    _tile_stored(0, sums_, kSumStride);
    _tile_stored(1, sums_ + kPanel, kSumStride);
    _tile_stored(2, sums_ + 2 * kPanel, kSumStride);
    _tile_stored(3, sums_ + 3 * kPanel, kSumStride);
    SetUnfinished(0, args_.rows, column);
  }

  // Computes `upper` + `lower` rows from `begin` on, both at most 16, for two panels.
  LINNET_AVX512 LINNET_NOINLINE void TwoTilesOfRows(size_t begin, size_t upper, size_t lower,
                                                    size_t column) {
    static_assert(kPanels == 2);
    const size_t bytes = args_.row_bytes, x_stride = args_.x_stride;
    const std::byte *x = args_.x.data + begin * x_stride, *x_lower = x + upper * x_stride;
    const std::byte* weights[kPanels];
    Weights(column, weights);
    Rows rows = unfinished_;
    const size_t part = RowsAStep(rows);
    Clear();
    for (size_t at = 0, w = 0; at < bytes; at += 64, w += kTileBytes) {
      _tile_loadd(4, x + at, x_stride);
      _tile_loadd(6, weights[0] + w, 64);
      LINNET_TILE_DOT(0, 4, 6)
      _tile_loadd(5, x_lower + at, x_stride);
      LINNET_TILE_DOT(2, 5, 6)
      _tile_loadd(7, weights[1] + w, 64);
      LINNET_TILE_DOT(1, 4, 7)
      LINNET_TILE_DOT(3, 5, 7)
      FinishRows(part, rows);
    }
    FinishRows(rows.end, rows);  // none, unless the product has no inputs
    int32_t* lower_sums = sums_ + upper * kPanels * kPanel;
    _tile_stored(0, sums_, kSumStride);
    _tile_stored(2, lower_sums, kSumStride);
    _tile_stored(1, sums_ + kPanel, kSumStride);
    _tile_stored(3, lower_sums + kPanel, kSumStride);
    SetUnfinished(begin, begin + upper + lower, column);
  }

  // Finishes the rows of the last block.
  LINNET_AVX512 void FinishLast() { FinishRows(unfinished_.end, unfinished_); }

 private:
  static constexpr size_t kTileBytes = 1024;
  static constexpr size_t kSumStride = kPanels * kPanel * sizeof(int32_t);

  // Rows of a block that have their sums, but no outputs yet.
  struct Rows {
    size_t begin = 0, end = 0;
    const int32_t* sums = nullptr;
    float* y = nullptr;
    size_t y_stride = 0;
    NarrowRows x;
    PanelEnd panels[kPanels];
  };

  // Finishes up to `count` rows. `rows` should be a local variable: members would be read again
  // after each vector that is stored.
  LINNET_AVX512 LINNET_INLINE static void FinishRows(size_t count, Rows& rows) {
    const size_t end = std::min(rows.begin + count, rows.end);
    for (; rows.begin < end; ++rows.begin) {
#pragma GCC unroll 4
      for (size_t p = 0; p < kPanels; ++p) {
        Finish<kType>(rows.x, rows.begin, _mm512_load_si512(rows.sums), rows.panels[p], kAdd,
                      rows.y + p * kPanel);
        rows.sums += kPanel;
      }
      rows.y += rows.y_stride;
    }
  }

  // How many rows to finish in each step through the inputs.
  uint32_t RowsAStep(const Rows& rows) const {
    const auto steps = std::max(1u, static_cast<uint32_t>(args_.row_bytes / 64));
    return (static_cast<uint32_t>(rows.end - rows.begin) + steps - 1) / steps;
  }

  // The panel that starts at output `column`. Beyond the matrix it is the last panel, which is then
  // computed again for nothing, so that every block has kPanels panels.
  const std::byte* PanelAt(size_t column) const {
    return args_.packed + std::min(column, args_.out - 1) / kPanel * stride_;
  }

  void Weights(size_t column, const std::byte** weights) const {
    for (size_t p = 0; p < kPanels; ++p) {
      weights[p] = PanelAt(column + p * kPanel) + args_.header_bytes();
    }
  }

  LINNET_AVX512 LINNET_INLINE static void Clear() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // The sums of rows begin .. end are in sums_.
  LINNET_AVX512 LINNET_INLINE void SetUnfinished(size_t begin, size_t end, size_t column) {
    unfinished_.begin = begin;
    unfinished_.end = end;
    unfinished_.sums = sums_;
    unfinished_.y = args_.y + begin * args_.y_stride + column;
    unfinished_.y_stride = args_.y_stride;
    unfinished_.x = args_.x;
    for (size_t p = 0; p < kPanels; ++p, column += kPanel) {
      unfinished_.panels[p] = EndOf<kType>(args_, PanelAt(column), std::min(column, args_.out));
    }
  }

  const NarrowArgs& args_;
  const size_t stride_;
  Rows unfinished_;
  alignas(64) int32_t sums_[1024];
};

template <NarrowType kType, bool kAdd>
LINNET_AVX512 void Amx(const NarrowArgs& args) {
  constexpr size_t kTileRows = 16;
  constexpr size_t kFewRows = 8;  // measured: above, AmxBlocks is faster
  // Weights that are multiplied by all rows before the next ones are read, so that they come from
  // the second-level cache.
  constexpr size_t kChunkBytes = 256 * 1024;
  if (args.rows <= kFewRows) {
    AmxFewRows<kType, kAdd>(args);
    _tile_release();
    return;
  }
  if (args.rows <= kTileRows) {
    Configure(args.rows, args.rows);
    AmxBlocks<kType, kAdd, 4> blocks(args);
    for (size_t column = 0; column < args.out; column += 4 * kPanel) {
      blocks.OneTileOfRows(column);
    }
    blocks.FinishLast();
    _tile_release();
    return;
  }
  AmxBlocks<kType, kAdd, 2> blocks(args);
  const size_t tall = (args.rows + 2 * kTileRows - 1) / (2 * kTileRows);
  const size_t chunk = std::max<size_t>(1, kChunkBytes / (2 * args.panel_bytes())) * 2 * kPanel;
  size_t configured = 0;
  for (size_t first = 0; first < args.out; first += chunk) {
    const size_t last = std::min(first + chunk, args.out);
    for (size_t b = 0; b < tall; ++b) {
      const size_t begin = args.rows * b / tall, count = args.rows * (b + 1) / tall - begin;
      const size_t upper = (count + 1) / 2, lower = count - upper;
      if (configured != count) Configure(upper, lower);
      configured = count;
      for (size_t column = first; column < last; column += 2 * kPanel) {
        blocks.TwoTilesOfRows(begin, upper, lower, column);
      }
    }
  }
  blocks.FinishLast();
  _tile_release();
}

template <NarrowType kType>
void Amx(const NarrowArgs& args) {
  args.mode == LinearMode::kAdd ? Amx<kType, true>(args) : Amx<kType, false>(args);
}

}  // namespace

void NarrowLinearVnni(const NarrowArgs& args) {
  args.x.type == NarrowType::kInt8 ? Vnni<NarrowType::kInt8>(args) : Vnni<NarrowType::kBf16>(args);
}

void NarrowLinearAmx(const NarrowArgs& args) {
  args.x.type == NarrowType::kInt8 ? Amx<NarrowType::kInt8>(args) : Amx<NarrowType::kBf16>(args);
}

}  // namespace linnet::kernels

#else

namespace linnet::kernels {

void NarrowLinearVnni(const NarrowArgs&) {}  // never called: the only unit here is kNone
void NarrowLinearAmx(const NarrowArgs&) {}

}  // namespace linnet::kernels

#endif
