// Reference for narrow_linear.h: numbers after rounding to bf16 or int8, in double precision. The
// test multiplies them.
#ifndef LINNET_KERNELS_NARROW_LINEAR_REF_H_
#define LINNET_KERNELS_NARROW_LINEAR_REF_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace linnet::kernels {

// The nearest bfloat16, ties to even; x is not NaN.
inline double RoundedToBFloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

// A row of n numbers after rounding to int8: value * scale, where scale is the largest
// magnitude / 127.
inline std::vector<double> Int8RowRef(size_t n, const float* x) {
  float most = 0;
  for (size_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  std::vector<double> row(n);
  for (size_t i = 0; most > 0 && i < n; ++i) {
    row[i] = std::nearbyint(x[i] * (127.0f / most)) * (most / 127.0f);
  }
  return row;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_NARROW_LINEAR_REF_H_
