// Dropout with a mask that is computed from a seed and the index of each element. The backward
// computes the same mask again, so none is stored.
//
//   Dropout(seed, 0.1f, 0, n, x, out);
#ifndef LINNET_KERNELS_DROPOUT_H_
#define LINNET_KERNELS_DROPOUT_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

// For i < n < 2^32: out[i] = 0 with probability p, else x[i] / (1 - p). 0 <= p < 1. out may be x.
// Whether x[i] is kept depends only on p, the seed and (first + i) modulo 2^32.
void Dropout(uint64_t seed, float p, size_t first, size_t n, const float* x, float* out);

// For tests: whether Dropout() keeps the element of index i, that is, x[i - first].
inline bool DropoutKeeps(uint64_t seed, float p, uint32_t i) {
  // Two rounds of multiply and shift, with constants from Wellons' search for low-bias hashes.
  uint32_t h = i ^ static_cast<uint32_t>(seed);
  h = (h ^ (h >> 16)) * 0x21f0aaadu;
  h ^= static_cast<uint32_t>(seed >> 32);
  h = (h ^ (h >> 15)) * 0x735a2d97u;
  h ^= h >> 15;
  return (h >> 8) >= static_cast<uint32_t>(p * 0x1p24f);
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DROPOUT_H_
