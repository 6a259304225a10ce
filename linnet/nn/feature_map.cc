#include "linnet/nn/feature_map.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "linnet/error.h"
#include "linnet/model/registry.h"
#include "linnet/nn/mask.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

Registry<FeatureMapKind>& Maps() {
  static Registry<FeatureMapKind> maps(
      "feature map module", {EluFeatureMapKind(), ReluFeatureMapKind(), Polynomial2FeatureMapKind(),
                             RffFeatureMapKind(), FavorFeatureMapKind()});
  return maps;
}

}  // namespace

void CheckFeatureInput(const Tensor& x, int64_t query_dim) {
  if (x.dim() == 0 || x.size(-1) != query_dim) {
    throw InputError("a feature map for ", query_dim, " dimensions got ", x.sizes());
  }
}

Tensor FeatureMapImpl::Divide(const Tensor& numerator, const Tensor& denominator, const Tensor& z,
                              double eps) const {
  const std::optional<double> least = floor();
  if (!least) return DivideOrZero(numerator, denominator + eps);
  const Tensor squares = z.square().sum(-1, true);
  // For sums over no keys, z and the numerator are 0: any positive divisor gives 0.
  const Tensor length = squares.masked_fill(squares == 0, 1).sqrt();
  return numerator / torch::maximum(denominator, *least * length);
}

RandomFeatureMapImpl::RandomFeatureMapImpl(int64_t query_dim, int64_t columns) {
  omega = register_buffer("omega", torch::empty({query_dim, columns}));
  Redraw();
}

void RandomFeatureMapImpl::Redraw() {
  torch::NoGradGuard no_grad;
  const int64_t dim = omega.size(0), columns = omega.size(1);
  // Draws blocks of orthonormal directions, and scales each direction to the length of an
  // independent normal vector.
  for (int64_t begin = 0; begin < columns; begin += dim) {
    const int64_t count = std::min(dim, columns - begin);
    const auto [directions, r] = torch::linalg_qr(torch::randn({dim, dim}, torch::kFloat64));
    // The Q factor is uniformly distributed only after this sign correction.
    const Tensor signs = torch::where(r.diagonal() < 0, -1.0, 1.0).to(torch::kFloat64);
    const Tensor lengths = torch::randn({dim, dim}, torch::kFloat64).norm(2, 0);
    omega.narrow(1, begin, count).copy_((directions * (signs * lengths)).narrow(1, 0, count));
  }
}

Tensor RandomFeatureMapImpl::Scaled(const Tensor& x) const {
  CheckFeatureInput(x, omega.size(0));
  if (x.scalar_type() != omega.scalar_type() || x.device() != omega.device()) {
    throw InputError("a random feature map of ", omega.toString(), " got ", x.toString(),
                     "; move one to the other's type and device");
  }
  return x * std::pow(static_cast<double>(omega.size(0)), -0.25);
}

FeatureMap MakeFeatureMap(const MixerSpec& spec, int64_t query_dim) {
  ValidateFeatureMap(spec, query_dim, "feature map");
  return Maps().Find(spec.feature_map).make(spec, query_dim);
}

void RegisterFeatureMap(const FeatureMapInfo& info,
                        FeatureMap (*make)(const MixerSpec& spec, int64_t query_dim)) {
  AddFeatureMap(info);
  Maps().Add({info.name, make});
}

void RedrawFeatures(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& part) {
    if (auto* map = dynamic_cast<FeatureMapImpl*>(&part)) map->Redraw();
  });
}

}  // namespace linnet::nn
