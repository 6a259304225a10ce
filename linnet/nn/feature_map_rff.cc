// Random Fourier features (Rahimi and Recht 2007) of the RBF kernel:
//
//   phi(x) = sqrt(2 / F) (cos(y omega), sin(y omega)),   y = x / D^(1/4)
//   E[phi(q) . phi(k)] = exp(-|q - k|^2 / (2 sqrt(D)))
//
// The estimate can be negative, and so can the sum over keys that divides: it is held at kFloor or
// above. (One key at the query itself is worth 1; a sum below kFloor says that nothing is near.)
#include <torch/types.h>

#include <cmath>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

constexpr double kFloor = 1e-2;

class Rff : public RandomFeatureMapImpl {
 public:
  using RandomFeatureMapImpl::RandomFeatureMapImpl;

  torch::Tensor Keys(const torch::Tensor& k) const override {
    const torch::Tensor angle = torch::matmul(Scaled(k), omega);
    return torch::cat({angle.cos(), angle.sin()}, -1) / std::sqrt(omega.size(1));
  }
  std::optional<double> floor() const override { return kFloor; }
};

}  // namespace

const FeatureMapKind kRffFeatureMap = {
    "rff", [](const AttentionSpec& spec, int64_t query_dim) -> FeatureMap {
      return std::make_shared<Rff>(query_dim, OmegaColumns(spec, static_cast<int>(query_dim)));
    }};

}  // namespace linnet::nn
