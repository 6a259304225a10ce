// Plain reference for bfloat16.h.
#ifndef LINNET_KERNELS_BFLOAT16_REF_H_
#define LINNET_KERNELS_BFLOAT16_REF_H_

#include <bit>
#include <cmath>

#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

inline BFloat16 NarrowRef(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline float WidenRef(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_BFLOAT16_REF_H_
