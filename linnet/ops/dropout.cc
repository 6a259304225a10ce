#include "linnet/ops/dropout.h"

#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {

torch::Tensor Dropout(const torch::Tensor& x, double p) {
  if constexpr (kHasFused) {
    constexpr int64_t kMost = int64_t{1} << 32;  // limit of the kernel's indices
    if (Fused(x) && p < 1 && x.numel() < kMost) return FusedDropout(x, p);
  }
  return torch::dropout(x, p, /*train=*/true);
}

}  // namespace linnet::ops
