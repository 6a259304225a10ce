#include "linnet/ops/polynomial.h"

#include <torch/utils.h>

#include <cmath>
#include <numbers>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {

using torch::Tensor;

Tensor Polynomial2(const Tensor& x) {
  if (x.dim() < 1 || x.size(-1) < 1) {
    throw InputError("polynomial features need rows of numbers; got ", x.sizes());
  }
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedPolynomial2(x);
  }
  const int64_t dim = x.size(-1);
  const Tensor pairs = torch::triu_indices(dim, dim, 1, x.options().dtype(torch::kInt64));
  const Tensor y = x * std::pow(static_cast<double>(dim), -0.25);
  return torch::cat(
      {torch::ones_like(y.narrow(-1, 0, 1)), std::numbers::sqrt2 * y, y.square(),
       std::numbers::sqrt2 * y.index_select(-1, pairs[0]) * y.index_select(-1, pairs[1])},
      -1);
}

}  // namespace linnet::ops
