// Matrix products with weights kept in bf16 or int8: y = x W^T + b in a half or a quarter of
// linear.h's bytes, and on processors with dot products for such numbers (VNNI, AVX512-BF16, AMX) at
// two to sixteen times its speed.
//
//   for (size_t o = 0; o < out; ++o) {                            // once: a scale an output
//     scale[o] = QuantizeWeights(in, &weight[o * in], &value[o * in]);
//   }
//   AlignedBuffer<std::byte> packed(PackedNarrowSize(NarrowType::kInt8, in, out));
//   PackInt8(in, out, value.data(), in, scale.data(), bias, packed.data());
//
//   NarrowRows x = TakeNarrowRows(NarrowType::kInt8, rows, in, memory.data());     // every step
//   NarrowActivations(rows, in, h, in, /*factor=*/nullptr, x);
//   NarrowLinear(rows, in, out, x, packed.data(), LinearMode::kOverwrite, y, out);
//
// bf16: activations are rounded too, products are exact and sums fp32. int8: a weight is value *
// scale of its output; an activation value * scale of its row, the row's largest magnitude / 127;
// sums are exact integers, and y = b + sum * (scale * scale) in fp32.
//
// A row's result does not depend, to the bit, on the other rows, on how many there are, nor on how
// the outputs are cut into ranges of whole panels. int8 gives the same bits whatever the processor
// (the plain-code target aside, which rounds y once more), bf16 sums in another order on each.
//
// Packed form: panels of kPanel outputs. A panel is its biases (kPanel floats), for int8 its scales
// too, then for each 2 (bf16) or 4 (int8) inputs in turn the weights of all its outputs: 64 bytes.
// int8 weights are stored plus 128. Inputs are padded to kNarrowInputs, outputs to kPanel, with
// weights of zero. So outputs [a, out) with a a multiple of kPanel are a packed matrix of their own,
// which begins at packed + PackedNarrowSize(type, in, a).
#ifndef LINNET_KERNELS_NARROW_LINEAR_H_
#define LINNET_KERNELS_NARROW_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/linear.h"

namespace linnet::kernels {

enum class NarrowType : uint8_t { kBf16, kInt8 };

// Inputs of a packed matrix and of a row of activations are padded to this: 64 bytes of int8.
inline constexpr size_t kNarrowInputs = 64;

// The most inputs of an int8 matrix whose sums fit into 32 bits.
inline constexpr size_t kMostInt8Inputs = 1 << 16;

constexpr size_t NarrowBytes(NarrowType type) { return type == NarrowType::kBf16 ? 2 : 1; }

// Bytes of a packed matrix.
constexpr size_t PackedNarrowSize(NarrowType type, size_t in, size_t out) {
  const size_t header = (type == NarrowType::kBf16 ? 1 : 2) * kPanel * sizeof(float);
  return RoundUp(out, kPanel) / kPanel *
         (header + RoundUp(in, kNarrowInputs) * kPanel * NarrowBytes(type));
}

// weight [out, in], rows weight_stride apart (so it may be columns of a wider matrix); bias [out], or
// null for zeros; packed aligned to 64 bytes.
void PackBf16(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
              std::byte* packed);
// value [out, in] in -127 .. 127, scale [out]; in <= kMostInt8Inputs.
void PackInt8(size_t in, size_t out, const int8_t* value, size_t value_stride, const float* scale,
              const float* bias, std::byte* packed);

// One output's weights as int8: to the nearest of value * scale, value in -127 .. 127, with a scale of
// 17 significant bits, so that the products are floats, and narrowing them again gives the same values
// and scale. All zero: scale 0. A scale below every normal float, or weights that are not finite,
// give a scale of 0 too. Returns the scale.
float QuantizeWeights(size_t n, const float* weight, int8_t* value);

// Rows of narrow activations, in memory of the caller's: `data` [rows, RoundUp(in, kNarrowInputs)], for
// int8 with a scale a row, and -128 times the sum of its values, which undoes the weights' offset.
struct NarrowRows {
  NarrowType type = NarrowType::kBf16;
  std::byte* data = nullptr;  // aligned to 64 bytes
  float* scale = nullptr;
  int32_t* offset = nullptr;
};

// Bytes that TakeNarrowRows() lays out in `memory`, which is aligned to 64 bytes.
size_t NarrowRowsSize(NarrowType type, size_t rows, size_t in);
NarrowRows TakeNarrowRows(NarrowType type, size_t rows, size_t in, std::byte* memory);
// Those from row `first` on.
NarrowRows RowsFrom(const NarrowRows& rows, size_t first, size_t in);

// x [rows, in], rows x_stride floats apart, into `to`, each input times its factor [in] where there
// are any. int8: the scale is the largest magnitude / 127. Numbers that are not finite give rows that
// are of no use.
void NarrowActivations(size_t rows, size_t in, const float* x, size_t x_stride, const float* factor,
                       const NarrowRows& to);

// y [rows, out], rows y_stride floats apart, any address, not overlapping. As Linear(): exactly
// [rows, out] of it is written, and kAdd adds what is complete in itself.
void NarrowLinear(size_t rows, size_t in, size_t out, const NarrowRows& x, const std::byte* packed,
                  LinearMode mode, float* y, size_t y_stride);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_NARROW_LINEAR_H_
