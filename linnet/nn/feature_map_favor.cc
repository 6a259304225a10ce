// Positive random features of softmax attention (Choromanski et al. 2021, FAVOR+):
//
//   phi(x) = exp(y omega - |y|^2 / 2) / sqrt(F),   y = x / D^(1/4)
//   E[phi(q) . phi(k)] = exp(q . k / sqrt(D))
//
// so weights trained with softmax attention can be used here. Exponentials are kept in range
// without factors that depend on future positions. The features of a query are divided by the
// largest of them, which cancels in the normalization. The features of keys are not scaled, because
// a common factor would depend on all keys; instead their exponents, which are at most
// |omega_f|^2 / 2, are clamped to kLargest.
#include <torch/types.h>

#include <cmath>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

constexpr double kLargest = 40;  // e^40 = 2e17: the sum of a million such features fits in fp32

class Favor : public RandomFeatureMapImpl {
 public:
  using RandomFeatureMapImpl::RandomFeatureMapImpl;

  Tensor Keys(const Tensor& k) const override {
    return Exponent(k).clamp_max(kLargest).exp() / std::sqrt(omega.size(1));
  }
  Tensor Queries(const Tensor& q) const override {
    const Tensor exponent = Exponent(q);
    return (exponent - std::get<0>(exponent.max(-1, true))).exp();
  }

 private:
  Tensor Exponent(const Tensor& x) const {
    const Tensor y = Scaled(x);
    return torch::matmul(y, omega) - y.square().sum(-1, true) / 2;
  }
};

}  // namespace

FeatureMapKind FavorFeatureMapKind() {
  return {"favor", [](const MixerSpec& spec, int64_t query_dim) -> FeatureMap {
            return std::make_shared<Favor>(query_dim,
                                           OmegaColumns(spec, static_cast<int>(query_dim)));
          }};
}

}  // namespace linnet::nn
