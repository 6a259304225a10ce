// Arguments of the implementations of narrow_linear.h (private to linnet/kernels).
#ifndef LINNET_KERNELS_NARROW_LINEAR_ARGS_H_
#define LINNET_KERNELS_NARROW_LINEAR_ARGS_H_

#include <cstddef>

#include "linnet/kernels/narrow_linear.h"

namespace linnet::kernels {

// The arguments of NarrowLinear().
struct NarrowArgs {
  size_t rows, in, out;
  NarrowRows x;
  const std::byte* packed;
  LinearMode mode;
  float* y;
  size_t y_stride;
  size_t row_bytes;  // bytes of one row of x
  size_t x_stride;   // bytes from one row of x to the next

  // Bytes from one panel to the next.
  size_t panel_bytes() const { return PackedNarrowSize(x.type, in, kPanel); }
  // Bytes from the start of a panel to its weights.
  size_t header_bytes() const {
    return (x.type == NarrowType::kBf16 ? 1 : 2) * kPanel * sizeof(float);
  }
};

// Products for processors with VNNI and AVX512-BF16, and with AMX; in narrow_linear_avx512.cc.
void NarrowLinearVnni(const NarrowArgs& args);
void NarrowLinearAmx(const NarrowArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_NARROW_LINEAR_ARGS_H_
