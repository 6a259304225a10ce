// Feature maps phi of linear attention: the similarity of a query and a key is phi(q) . phi(k).
//
//   FeatureMap map = MakeFeatureMap({.feature_map = "favor", .features = 64}, /*query_dim=*/32);
//   torch::Tensor phi_q = map->Queries(q), phi_k = map->Keys(k);      // [..., D] -> [..., F]
//   torch::Tensor out = map->Divide(phi_q_s, phi_q_z, z, eps);        // eq. 12
//   RedrawFeatures(*model);                                           // every random map in it
//
// A new map is a file feature_map_NAME.cc that defines its FeatureMapKind, a line in feature_map.cc,
// and a row in model/feature_map.cc; from outside the library, one call of RegisterFeatureMap.
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
  // [..., D] -> [..., F], position by position: no key or query looks at another, so that the batch
  // form, the recurrent one and any piece of a sequence see the same numbers.
  virtual torch::Tensor Keys(const torch::Tensor& k) const = 0;
  // May scale each query by a number of its own, which the normaliser takes out again.
  virtual torch::Tensor Queries(const torch::Tensor& q) const { return Keys(q); }

  // The least denominator, as a share of |z|, for maps whose phi(q) . z can be zero or negative
  // where the similarity that it estimates is not. None: phi >= 0, and eps is added.
  virtual std::optional<double> floor() const { return std::nullopt; }
  // numerator / denominator with this map's guard; 0 where nothing has been seen. denominator
  // [..., 1]; z [..., F], the sum of the features of the keys seen, is read where there is a floor().
  torch::Tensor Divide(const torch::Tensor& numerator, const torch::Tensor& denominator,
                       const torch::Tensor& z, double eps) const;

  // The kernel that has this map fused into it, if there is one.
  virtual std::optional<kernels::FeatureMap> fused() const { return std::nullopt; }
  // Draws new random numbers from libtorch's default generator; nothing where none are drawn.
  virtual void Redraw() {}
};
using FeatureMap = std::shared_ptr<FeatureMapImpl>;

// Throws InputError unless x is [..., query_dim].
void CheckFeatureInput(const torch::Tensor& x, int64_t query_dim);

// A map of omega [D, columns], drawn from the normal distribution: a buffer of that name, saved with
// the model. Columns are orthogonal in blocks of D, which lowers the variance.
class RandomFeatureMapImpl : public FeatureMapImpl {
 public:
  RandomFeatureMapImpl(int64_t query_dim, int64_t columns);
  void Redraw() override;

 protected:
  // x / D^(1/4), so that products of two are those of softmax attention, q k / sqrt(D).
  torch::Tensor Scaled(const torch::Tensor& x) const;
  torch::Tensor omega;
};

struct FeatureMapKind {
  std::string name;
  FeatureMap (*make)(const MixerSpec& spec, int64_t query_dim);
};

// Throws InputError for an unknown map and for features that Validate() refuses; the spec's kind is
// not looked at.
FeatureMap MakeFeatureMap(const MixerSpec& spec, int64_t query_dim);

// Adds a map, for every linear mixer and for model descriptions. Throws InputError where the name
// is taken.
void RegisterFeatureMap(const FeatureMapInfo& info,
                        FeatureMap (*make)(const MixerSpec& spec, int64_t query_dim));

// Draws every random map within the module anew, from libtorch's default generator.
void RedrawFeatures(torch::nn::Module& module);

// Rows of feature_map_*.cc, a file each.
FeatureMapKind EluFeatureMapKind();
FeatureMapKind ReluFeatureMapKind();
FeatureMapKind Polynomial2FeatureMapKind();
FeatureMapKind RffFeatureMapKind();
FeatureMapKind FavorFeatureMapKind();

}  // namespace linnet::nn

#endif  // LINNET_NN_FEATURE_MAP_H_
