// Matrix products y = x W^T + b with weights in a narrow type, bf16 or int8. The weights take half
// or a quarter of the bytes that linear.h needs. On processors with dot-product instructions for
// these types (VNNI, AVX512-BF16, AMX), products run two to sixteen times as fast as in linear.h.
//
//   for (size_t o = 0; o < out; ++o) {                            // once; one scale per output
//     scale[o] = QuantizeWeights(in, &weight[o * in], &value[o * in]);
//   }
//   AlignedBuffer<std::byte> packed(PackedNarrowSize(NarrowType::kInt8, in, out));
//   PackInt8(in, out, value.data(), in, scale.data(), bias, packed.data());
//
//   NarrowRows x = TakeNarrowRows(NarrowType::kInt8, rows, in, memory.data());     // every step
//   NarrowActivations(rows, in, h, in, /*factor=*/nullptr, x);
//   NarrowLinear(rows, in, out, x, packed.data(), LinearMode::kOverwrite, y, out);
//
// bf16: activations are rounded to bf16 as well; the product of two numbers is exact, and sums are
// in fp32.
// int8: a weight is its int8 value * the scale of its output; an activation is its int8 value * the
// scale of its row, which is the row's largest magnitude / 127. Sums are exact integers, and
// y = b + sum * (row's scale * output's scale) in fp32.
//
// A row's result does not depend, bit for bit, on the other rows, on their number, or on how the
// outputs are split into ranges of whole panels. int8 gives the same bits on every processor
// (except on the plain-code target, which has no fused multiply-add and rounds y once more). The
// order of bf16 sums differs between instruction sets.
//
// A packed matrix consists of panels of kPanel outputs each, one after another. A panel starts with
// its biases (kPanel floats) and, for int8, its scales (kPanel floats). Then come the weights, 64
// bytes for each group of 2 (bf16) or 4 (int8) inputs: the weights of these inputs for all outputs
// of the panel. int8 weights are stored as value + 128. Inputs are padded to a multiple of
// kNarrowInputs and outputs to a multiple of kPanel, with zero bytes. If a is a multiple of kPanel,
// outputs [a, out) are a packed matrix too, at packed + PackedNarrowSize(type, in, a).
#ifndef LINNET_KERNELS_NARROW_LINEAR_H_
#define LINNET_KERNELS_NARROW_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/linear.h"

namespace linnet::kernels {

enum class NarrowType : uint8_t { kBf16, kInt8 };

// Packed matrices and rows of activations are padded to a multiple of this many inputs, which take
// 64 bytes in int8.
inline constexpr size_t kNarrowInputs = 64;

// Maximum inputs of an int8 matrix, so that its sums fit into 32 bits.
inline constexpr size_t kMostInt8Inputs = 1 << 16;

constexpr size_t NarrowBytes(NarrowType type) { return type == NarrowType::kBf16 ? 2 : 1; }

// Bytes of a packed matrix.
constexpr size_t PackedNarrowSize(NarrowType type, size_t in, size_t out) {
  const size_t header = (type == NarrowType::kBf16 ? 1 : 2) * kPanel * sizeof(float);
  return RoundUp(out, kPanel) / kPanel *
         (header + RoundUp(in, kNarrowInputs) * kPanel * NarrowBytes(type));
}

// weight [out, in], with rows weight_stride floats apart (so it may be columns of a wider matrix);
// bias [out], or null for zeros; packed is aligned to 64 bytes.
void PackBf16(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
              std::byte* packed);
// value [out, in] in -127 .. 127, scale [out]; in <= kMostInt8Inputs.
void PackInt8(size_t in, size_t out, const int8_t* value, size_t value_stride, const float* scale,
              const float* bias, std::byte* packed);

// Quantizes one output's weights to int8: the nearest value * scale, with value in -127 .. 127. The
// scale has 17 significant bits, so that value * scale is an exact float, and quantizing these
// products again gives the same values and scale. Returns the scale, or 0 if all weights are zero,
// the scale would be subnormal, or a weight is not finite.
float QuantizeWeights(size_t n, const float* weight, int8_t* value);

// Rows of narrow activations, in the caller's memory: `data` [rows, RoundUp(in, kNarrowInputs)], in
// the form that the active dot-product unit reads (isa.h). Without a unit, the same numbers are
// stored in a type twice as wide: bf16 numbers as fp32, int8 as 16-bit integers. Memory is reserved
// for the wider form.
// int8 rows also have a `scale` and an `offset`. The offset is -128 times the sum of the row's
// values; it cancels the 128 added to each weight.
struct NarrowRows {
  NarrowType type = NarrowType::kBf16;
  std::byte* data = nullptr;  // aligned to 64 bytes
  float* scale = nullptr;
  int32_t* offset = nullptr;
};

// Bytes of memory that TakeNarrowRows() needs, whichever unit is active when the rows are written.
size_t NarrowRowsSize(NarrowType type, size_t rows, size_t in);
// Lays out rows in `memory`, which must be aligned to 64 bytes.
NarrowRows TakeNarrowRows(NarrowType type, size_t rows, size_t in, std::byte* memory);
// The rows from `first` on.
NarrowRows RowsFrom(const NarrowRows& rows, size_t first, size_t in);

// Converts x [rows, in], rows x_stride floats apart, into `to`. First multiplies each input by its
// `factor` [in], unless `factor` is null. int8: a row's scale is its largest magnitude / 127; a row
// that contains infinity or NaN gives NaN results.
void NarrowActivations(size_t rows, size_t in, const float* x, size_t x_stride, const float* factor,
                       const NarrowRows& to);

// y [rows, out], rows y_stride floats apart, any alignment, not overlapping x. As in Linear(),
// writes exactly [rows, out] of y, and kAdd adds the completed product.
void NarrowLinear(size_t rows, size_t in, size_t out, const NarrowRows& x, const std::byte* packed,
                  LinearMode mode, float* y, size_t y_stride);

// The product of rows of bf16 numbers, x_stride apart, which may overlap. `in` is a multiple of
// kNarrowInputs. Only with a dot-product unit: ActiveDotUnit() is not kNone.
void BFloat16Linear(size_t rows, size_t in, size_t out, const BFloat16* x, size_t x_stride,
                    const std::byte* packed, LinearMode mode, float* y, size_t y_stride);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_NARROW_LINEAR_H_
