// Random Fourier features (Rahimi and Recht 2007) of the RBF kernel:
//
//   phi(x) = sqrt(2 / F) (cos(y omega), sin(y omega)),   y = x / D^(1/4)
//   E[phi(q) . phi(k)] = exp(-|q - k|^2 / (2 sqrt(D)))
//
// The estimate can be negative, and so can the denominator phi(q) . z. It is bounded from below by
// its standard deviation over draws of omega, |z| / sqrt(F) if no key is near. (F/2 columns are
// averaged, and each gives the product of a unit vector with its part of z.) The numerator, the
// same sum weighted with values, deviates by that much times a value. So a query that is near no
// key, for any number of keys, gets an output of random sign and of the magnitude of the values.
#include <torch/types.h>

#include <cmath>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

class Rff : public RandomFeatureMapImpl {
 public:
  using RandomFeatureMapImpl::RandomFeatureMapImpl;

  torch::Tensor Keys(const torch::Tensor& k) const override {
    const torch::Tensor angle = torch::matmul(Scaled(k), omega);
    return torch::cat({angle.cos(), angle.sin()}, -1) / std::sqrt(omega.size(1));
  }
  std::optional<double> floor() const override {
    return 1 / std::sqrt(2 * static_cast<double>(omega.size(1)));
  }
};

}  // namespace

FeatureMapKind RffFeatureMapKind() {
  return {"rff", [](const MixerSpec& spec, int64_t query_dim) -> FeatureMap {
            return std::make_shared<Rff>(query_dim,
                                         OmegaColumns(spec, static_cast<int>(query_dim)));
          }};
}

}  // namespace linnet::nn
