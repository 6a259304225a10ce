// Feature maps phi of linear attention: the similarity of a query and a key is phi(q) . phi(k).
//
//   FeatureMap map = MakeFeatureMap({.feature_map = "favor", .features = 64}, /*query_dim=*/32);
//   torch::Tensor phi_q = map->Queries(q), phi_k = map->Keys(k);      // [..., D] -> [..., F]
//   torch::Tensor out = map->Divide(phi_q_s, phi_q_z, z, eps);        // phi(q) s / (phi(q) . z)
//   RedrawFeatures(*model);                                           // all random maps of a model
//
// Here s is the sum of phi(k) v^T over the keys, and z the sum of phi(k) (equation 12 of
// Katharopoulos et al. 2020).
//
// To add a map: write feature_map_NAME.cc, which defines NAMEFeatureMapKind(); declare that
// function below; and add a line to feature_map.cc and a row to model/feature_map.cc. From outside
// the library, call RegisterFeatureMap().
#ifndef LINNET_NN_FEATURE_MAP_H_
#define LINNET_NN_FEATURE_MAP_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>

#include "linnet/model/mixer.h"
#include "linnet/ops/causal_linear.h"

namespace linnet::nn {

class FeatureMapImpl : public torch::nn::Module {
 public:
  // The features of keys: [..., D] -> [..., F]. Each position is mapped on its own, so that whole
  // sequences, steps and pieces get the same features.
  virtual torch::Tensor Keys(const torch::Tensor& k) const = 0;
  // The features of queries. A map may scale the features of each query by a factor of its own,
  // which cancels in the normalization.
  virtual torch::Tensor Queries(const torch::Tensor& q) const { return Keys(q); }

  // The lower bound that Divide() puts on the denominator phi(q) . z, as a fraction of |z|, where z
  // is the sum of the keys' features. Maps whose similarities phi(q) . phi(k) can be negative need
  // one. Other maps return nullopt, and Divide() adds eps to the denominator instead.
  virtual std::optional<double> floor() const { return std::nullopt; }
  // Returns numerator / max(denominator, floor() |z|) or, without a floor(), numerator /
  // (denominator + eps). Returns 0 if there are no keys. denominator [..., 1]; z [..., F] is used
  // only with a floor().
  torch::Tensor Divide(const torch::Tensor& numerator, const torch::Tensor& denominator,
                       const torch::Tensor& z, double eps) const;

  // The kernels' enumerator for this map, if the kernels can apply the map themselves.
  virtual std::optional<kernels::FeatureMap> fused() const { return std::nullopt; }
  // Draws new random numbers from libtorch's default generator; does nothing in deterministic maps.
  virtual void Redraw() {}
};
using FeatureMap = std::shared_ptr<FeatureMapImpl>;

// Throws InputError unless x is [..., query_dim].
void CheckFeatureInput(const torch::Tensor& x, int64_t query_dim);

// A map with a random matrix omega [D, columns], which is the buffer "omega" and is saved with the
// model. Each column is normally distributed. The columns in each block of D are orthogonal to one
// another, which lowers the variance of the estimates.
class RandomFeatureMapImpl : public FeatureMapImpl {
 public:
  RandomFeatureMapImpl(int64_t query_dim, int64_t columns);
  void Redraw() override;

 protected:
  // x / D^(1/4). The dot product of a scaled query and a scaled key is then q . k / sqrt(D), as in
  // softmax attention.
  torch::Tensor Scaled(const torch::Tensor& x) const;
  torch::Tensor omega;
};

struct FeatureMapKind {
  std::string name;
  FeatureMap (*make)(const MixerSpec& spec, int64_t query_dim);
};

// Makes the map spec.feature_map. Throws InputError if the map is unknown or if
// ValidateFeatureMap() refuses spec.features. Ignores spec.kind.
FeatureMap MakeFeatureMap(const MixerSpec& spec, int64_t query_dim);

// Registers a map, so that specs of linear mixers can name it. Throws InputError if the name is
// taken.
void RegisterFeatureMap(const FeatureMapInfo& info,
                        FeatureMap (*make)(const MixerSpec& spec, int64_t query_dim));

// Calls Redraw() on every feature map in the module.
void RedrawFeatures(torch::nn::Module& module);

// One function per file feature_map_*.cc.
FeatureMapKind EluFeatureMapKind();
FeatureMapKind ReluFeatureMapKind();
FeatureMapKind Polynomial2FeatureMapKind();
FeatureMapKind RffFeatureMapKind();
FeatureMapKind FavorFeatureMapKind();

}  // namespace linnet::nn

#endif  // LINNET_NN_FEATURE_MAP_H_
