// Random Fourier features (Rahimi and Recht 2007) of the RBF kernel:
//
//   phi(x) = sqrt(2 / F) (cos(y omega), sin(y omega)),   y = x / D^(1/4)
//   E[phi(q) . phi(k)] = exp(-|q - k|^2 / (2 sqrt(D)))
//
// The estimate can be negative, and so can the denominator phi(q) . z. For a query far from all
// keys, the standard deviation of the denominator over draws of omega is |z| / sqrt(F), which
// serves as the denominator's lower bound. (The denominator is a sum over the F / 2 columns of
// omega. Each term is the dot product of z's two components for that column and a vector of length
// sqrt(2 / F) in a random direction.) The numerator is the same sum weighted by the values: its
// standard deviation is about |z| / sqrt(F) times the magnitude of the values. Hence the output for
// such a query has a random sign and about the magnitude of the values, for any number of keys.
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
