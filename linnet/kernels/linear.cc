#include "linnet/kernels/linear.h"

#include <algorithm>
#include <cassert>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/linear-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LinearBody);

void PackLinear(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
                float* packed) {
  for (size_t panel = 0; panel < out; panel += kPanel) {
    const size_t used = std::min(kPanel, out - panel);
    std::fill_n(packed, kPanel, 0.0f);
    if (bias) std::copy_n(bias + panel, used, packed);
    packed += kPanel;
    for (size_t k = 0; k < in; ++k, packed += kPanel) {
      for (size_t o = 0; o < used; ++o) packed[o] = weight[(panel + o) * weight_stride + k];
      std::fill(packed + used, packed + kPanel, 0.0f);
    }
  }
}

void Linear(size_t rows, size_t in, size_t out, const float* x, size_t x_stride,
            const float* packed, LinearMode mode, float* y, size_t y_stride) {
  assert(reinterpret_cast<uintptr_t>(packed) % 64 == 0);
  HWY_DYNAMIC_DISPATCH(LinearBody)(rows, in, out, x, x_stride, packed, mode, y, y_stride);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
