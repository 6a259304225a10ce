// bfloat16, the upper 16 bits of a float. On processors with bf16 instructions, matrix products of
// bfloat16 are at least twice as fast as those of float.
//
//   std::vector<BFloat16> narrow(x.size());
//   Narrow(x.size(), x.data(), narrow.data());
#ifndef LINNET_KERNELS_BFLOAT16_H_
#define LINNET_KERNELS_BFLOAT16_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

struct BFloat16 {
  uint16_t bits;
};

// Rounds factor * `from` [n] to the nearest bfloat16, ties to even. Keeps infinities and NaNs. The
// arrays may have any alignment.
void Narrow(size_t n, const float* from, BFloat16* to, float factor = 1);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_BFLOAT16_H_
