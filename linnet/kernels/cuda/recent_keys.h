// Completes states that move from a GPU to the CPU. A state stores recent keys that are not in z
// yet. On the CPU, it also stores the sum of these keys, beside z (linear_step.h); on a GPU, this
// sum is not kept.
#ifndef LINNET_KERNELS_CUDA_RECENT_KEYS_H_
#define LINNET_KERNELS_CUDA_RECENT_KEYS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "linnet/kernels/linear_step.h"

namespace linnet::kernels::cuda {

// Writes the sum of the `waiting` recent keys of each head to one sequence's state.
inline void SumRecentKeys(const LinearStepShape& shape, size_t waiting, float* hot) {
  const size_t pad = LinearStepShape::kPad, half = pad / 2;
  const size_t fp = LinearStepShape::Padded(shape.dim);
  const size_t width = fp + LinearStepShape::Padded(shape.value_dim);
  const float* rows = hot + shape.HotRows();
  const auto key = [&](size_t row, size_t f) {
    if (!shape.narrow) return rows[row + f];
    // In bf16, columns c and c + 16 of a block of kPad columns are adjacent in memory.
    uint16_t bits;
    std::memcpy(&bits,
                reinterpret_cast<const std::byte*>(rows) +
                    2 * (row + f / pad * pad + f % half * 2 + f / half % 2),
                sizeof(bits));
    return std::bit_cast<float>(uint32_t{bits} << 16);
  };
  for (size_t h = 0; h < shape.heads; ++h) {
    float* recent = hot + shape.HotZ() + (2 * h + 1) * fp;
    std::fill_n(recent, fp, 0.0f);
    for (size_t i = 0; i < waiting; ++i) {
      for (size_t f = 0; f < fp; ++f) recent[f] += key((i * shape.heads + h) * width, f);
    }
  }
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_RECENT_KEYS_H_
