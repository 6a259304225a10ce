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

namespace linnet::kernels {
namespace {

// Finishes one row's outputs of the panel that starts at output `column`, from their sums: floats
// or, for int8, 32-bit integers.
template <NarrowType kType>
LINNET_AVX512 LINNET_INLINE void Finish(const NarrowArgs& args, size_t row, const std::byte* panel,
                                        size_t column, __m512i sums) {
  const size_t used = args.out - column;
  const __m512 bias = _mm512_load_ps(panel);
  __m512 result;
  if (kType == NarrowType::kInt8) {
    const __m512i whole = _mm512_add_epi32(sums, _mm512_set1_epi32(args.x.offset[row]));
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(args.x.scale[row]),
                                       _mm512_load_ps(panel + kPanel * sizeof(float)));
    result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, bias);
  } else {
    result = _mm512_add_ps(_mm512_castsi512_ps(sums), bias);
  }
  float* y = args.y + row * args.y_stride + column;
  const auto mask = static_cast<__mmask16>(used >= kPanel ? 0xffff : (1u << used) - 1);
  if (args.mode == LinearMode::kAdd) result = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), result);
  _mm512_mask_storeu_ps(y, mask, result);
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
  const std::byte* x = args.x.data + row * bytes;
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
      __builtin_memcpy(&four, x + r * bytes + at, 4);
      const __m512i x_r = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (size_t p = 0; p < kPanels; ++p) Dot<kType>(sum[r][p], w[p], x_r);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) {
      Finish<kType>(args, row + r, panel + p * stride, column + p * kPanel, sum[r][p]);
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

// Configures the tile registers for a block of `upper` + `lower` rows; both numbers are at most 16.
// Tiles 0 and 1 hold the sums of the upper rows for two panels, tiles 2 and 3 the sums of the lower
// rows. Tile 4 holds the upper rows of x and tile 5 the lower rows; tiles 6 and 7 hold the weights
// of the two panels.
LINNET_AVX512 void Configure(size_t upper, size_t lower) {
  TileConfig config;
  const size_t rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
  for (size_t i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(std::max<size_t>(rows[i], 1));
  }
  _tile_loadconfig(&config);
}

// A macro, because the tile numbers must be immediate operands.
#define LINNET_TILE_DOT(sum, x, weights) \
  if (kType == NarrowType::kInt8) {      \
    _tile_dpbsud(sum, x, weights);       \
  } else {                               \
    _tile_dpbf16ps(sum, x, weights);     \
  }

// Computes up to 16 rows, one panel after another in memory order.
template <NarrowType kType>
LINNET_AVX512 void AmxFewRows(const NarrowArgs& args) {
  const size_t bytes = args.row_bytes, stride = args.panel_bytes();
  alignas(64) int32_t sums[16 * kPanel];
  Configure(args.rows, 0);
  const std::byte* panel = args.packed;
  for (size_t column = 0; column < args.out; column += kPanel, panel += stride) {
    const std::byte* weights = panel + args.header_bytes();
    _tile_zero(0);
    for (size_t at = 0; at < bytes; at += 64, weights += 1024) {
      for (size_t line = 0; line < 1024; line += 64) {
        _mm_prefetch(weights + kAhead + line, _MM_HINT_T0);
      }
      _tile_loadd(4, args.x.data + at, bytes);
      _tile_loadd(6, weights, 64);
      LINNET_TILE_DOT(0, 4, 6)
    }
    _tile_stored(0, sums, 64);
    for (size_t r = 0; r < args.rows; ++r) {
      Finish<kType>(args, r, panel, column, _mm512_load_si512(sums + r * kPanel));
    }
  }
}

// Computes 16 to 32 rows from `begin` on, for one panel or, if `two`, for two panels.
template <NarrowType kType>
LINNET_AVX512 void AmxTile(const NarrowArgs& args, size_t begin, size_t upper, size_t lower,
                           size_t column, const std::byte* panel, bool two) {
  const size_t bytes = args.row_bytes, stride = args.panel_bytes();
  const std::byte* x = args.x.data + begin * bytes;
  const std::byte* weights = panel + args.header_bytes();
  alignas(64) int32_t sums[4][16 * kPanel];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t at = 0; at < bytes; at += 64, weights += 1024) {
    _tile_loadd(4, x + at, bytes);
    _tile_loadd(6, weights, 64);
    LINNET_TILE_DOT(0, 4, 6)
    _tile_loadd(5, x + upper * bytes + at, bytes);
    LINNET_TILE_DOT(2, 5, 6)
    if (two) {
      _tile_loadd(7, weights + stride, 64);
      LINNET_TILE_DOT(1, 4, 7)
      LINNET_TILE_DOT(3, 5, 7)
    }
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(3, sums[3], 64);
  for (size_t p = 0; p < (two ? 2 : 1); ++p) {
    for (size_t r = 0; r < upper + lower; ++r) {
      const int32_t* from = sums[(r < upper ? 0 : 2) + p] + (r < upper ? r : r - upper) * kPanel;
      Finish<kType>(args, begin + r, panel + p * stride, column + p * kPanel,
                    _mm512_load_si512(from));
    }
  }
}

template <NarrowType kType>
LINNET_AVX512 void Amx(const NarrowArgs& args) {
  constexpr size_t kMostRows = 32;
  if (args.rows <= 16) {
    AmxFewRows<kType>(args);
  } else {
    const size_t stride = args.panel_bytes();
    const size_t blocks = (args.rows + kMostRows - 1) / kMostRows;
    size_t configured = 0;
    for (size_t column = 0; column < args.out; column += 2 * kPanel) {
      for (size_t b = 0; b < blocks; ++b) {
        const size_t begin = args.rows * b / blocks, count = args.rows * (b + 1) / blocks - begin;
        const size_t upper = (count + 1) / 2, lower = count - upper;
        if (configured != count) Configure(upper, lower);
        configured = count;
        AmxTile<kType>(args, begin, upper, lower, column, args.packed + column / kPanel * stride,
                       args.out > column + kPanel);
      }
    }
  }
  _tile_release();
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
