#include "linnet/kernels/narrow_linear.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "linnet/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/narrow_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/narrow_linear-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(BFloat16Activations);
HWY_EXPORT(WideBFloat16Activations);
HWY_EXPORT(Int8Activations);
HWY_EXPORT(WideInt8Activations);
HWY_EXPORT(NarrowLinearBody);

namespace {

[[maybe_unused]] bool Aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 64 == 0; }

// Bytes of a row of activations without a dot-product unit, the most that any unit reads.
size_t WideRowBytes(NarrowType type, size_t in) {
  return RoundUp(in, kNarrowInputs) * 2 * NarrowBytes(type);
}

// Bytes of a row of activations as the active unit reads it.
size_t RowBytes(NarrowType type, size_t in) {
  return WideRowBytes(type, in) / (ActiveDotUnit() == DotUnit::kNone ? 1 : 2);
}

// Zeroes the packed matrix, copies the biases, and calls body(pointer to the floats after the
// panel's biases, first output, number of outputs) for each panel.
template <class Body>
void ForPanels(NarrowType type, size_t in, size_t out, const float* bias, std::byte* packed,
               const Body& body) {
  assert(Aligned(packed));
  std::memset(packed, 0, PackedNarrowSize(type, in, out));
  for (size_t o = 0; o < out; o += kPanel) {
    const size_t used = std::min(kPanel, out - o);
    auto* header = reinterpret_cast<float*>(packed + PackedNarrowSize(type, in, o));
    if (bias != nullptr) std::copy_n(bias + o, used, header);
    body(header + kPanel, o, used);
  }
}

void Multiply(const NarrowArgs& args) {
  if (args.rows == 0 || args.out == 0) return;
  switch (ActiveDotUnit()) {
    case DotUnit::kAmx:
      return NarrowLinearAmx(args);
    case DotUnit::kVnni:
      return NarrowLinearVnni(args);
    case DotUnit::kNone:
      return HWY_DYNAMIC_DISPATCH(NarrowLinearBody)(args);
  }
}

}  // namespace

void PackBf16(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
              std::byte* packed) {
  std::vector<BFloat16> row(in);
  ForPanels(NarrowType::kBf16, in, out, bias, packed, [&](float* after, size_t first, size_t used) {
    auto* to = reinterpret_cast<BFloat16*>(after);
    for (size_t o = 0; o < used; ++o) {
      Narrow(in, weight + (first + o) * weight_stride, row.data());
      for (size_t k = 0; k < in; ++k) to[(k / 2 * kPanel + o) * 2 + k % 2] = row[k];
    }
  });
}

void PackInt8(size_t in, size_t out, const int8_t* value, size_t value_stride, const float* scale,
              const float* bias, std::byte* packed) {
  assert(in <= kMostInt8Inputs);
  ForPanels(NarrowType::kInt8, in, out, bias, packed,
            [&](float* scales, size_t first, size_t used) {
              std::copy_n(scale + first, used, scales);
              auto* to = reinterpret_cast<uint8_t*>(scales + kPanel);
              for (size_t o = 0; o < used; ++o) {
                const int8_t* row = value + (first + o) * value_stride;
                for (size_t k = 0; k < in; ++k) {
                  to[(k / 4 * kPanel + o) * 4 + k % 4] = static_cast<uint8_t>(row[k] + 128);
                }
              }
            });
}

float QuantizeWeights(size_t n, const float* weight, int8_t* value) {
  float most = 0;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(weight[i]);
    most = std::max(most, std::abs(weight[i]));
  }
  float scale = most / 127.0f;
  int exponent = 0;
  const float mantissa = std::frexp(scale, &exponent);
  scale = std::ldexp(std::nearbyint(std::ldexp(mantissa, 17)), exponent - 17);
  if (!finite || scale < FLT_MIN) scale = 0;
  for (size_t i = 0; i < n; ++i) {
    const float nearest = scale == 0 ? 0.0f : std::nearbyint(weight[i] / scale);
    value[i] = static_cast<int8_t>(std::clamp(nearest, -127.0f, 127.0f));
  }
  return scale;
}

size_t NarrowRowsSize(NarrowType type, size_t rows, size_t in) {
  return rows * WideRowBytes(type, in) +
         (type == NarrowType::kInt8 ? 2 * RoundUp(rows * sizeof(float), 64) : 0);
}

NarrowRows TakeNarrowRows(NarrowType type, size_t rows, size_t in, std::byte* memory) {
  NarrowRows taken{.type = type, .data = memory};
  if (type == NarrowType::kInt8) {
    std::byte* behind = memory + rows * WideRowBytes(type, in);
    taken.scale = reinterpret_cast<float*>(behind);
    taken.offset = reinterpret_cast<int32_t*>(behind + RoundUp(rows * sizeof(float), 64));
  }
  return taken;
}

NarrowRows RowsFrom(const NarrowRows& rows, size_t first, size_t in) {
  NarrowRows from = rows;
  from.data += first * RowBytes(rows.type, in);
  if (rows.type == NarrowType::kInt8) from.scale += first, from.offset += first;
  return from;
}

void NarrowActivations(size_t rows, size_t in, const float* x, size_t x_stride, const float* factor,
                       const NarrowRows& to) {
  const bool wide = ActiveDotUnit() == DotUnit::kNone;
  if (to.type == NarrowType::kInt8) {
    wide ? HWY_DYNAMIC_DISPATCH(WideInt8Activations)(rows, in, x, x_stride, factor, to)
         : HWY_DYNAMIC_DISPATCH(Int8Activations)(rows, in, x, x_stride, factor, to);
  } else {
    wide ? HWY_DYNAMIC_DISPATCH(WideBFloat16Activations)(rows, in, x, x_stride, factor, to)
         : HWY_DYNAMIC_DISPATCH(BFloat16Activations)(rows, in, x, x_stride, factor, to);
  }
}

void NarrowLinear(size_t rows, size_t in, size_t out, const NarrowRows& x, const std::byte* packed,
                  LinearMode mode, float* y, size_t y_stride) {
  assert(Aligned(packed) && Aligned(x.data));
  const size_t bytes = RowBytes(x.type, in);
  Multiply({rows, in, out, x, packed, mode, y, y_stride, bytes, bytes});
}

void BFloat16Linear(size_t rows, size_t in, size_t out, const BFloat16* x, size_t x_stride,
                    const std::byte* packed, LinearMode mode, float* y, size_t y_stride) {
  assert(Aligned(packed) && in % kNarrowInputs == 0 && ActiveDotUnit() != DotUnit::kNone);
  auto* data = const_cast<BFloat16*>(x);  // only read
  const NarrowRows rows_of_x{.type = NarrowType::kBf16, .data = reinterpret_cast<std::byte*>(data)};
  Multiply({rows, in, out, rows_of_x, packed, mode, y, y_stride, in * sizeof(BFloat16),
            x_stride * sizeof(BFloat16)});
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
