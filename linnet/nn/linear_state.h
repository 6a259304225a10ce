// Base class of 'linear' and 'causal-linear' attention: their parameters, and the recurrent form,
// whose state has a constant size (private to linnet/nn).
#ifndef LINNET_NN_LINEAR_STATE_H_
#define LINNET_NN_LINEAR_STATE_H_

#include "linnet/nn/feature_map.h"
#include "linnet/nn/mixer.h"

namespace linnet::nn {

class LinearStateAttention : public MixerImpl {
 public:
  explicit LinearStateAttention(const MixerSpec& spec);

  bool recurrent() const override { return true; }
  // state.tensors are s [N, H, F, M] and z [N, H, F]: sums of phi(k) v^T and of phi(k).
  void Remember(const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& lengths,
                MixerState& state) override;
  // phi(q) s / (phi(q) . z + eps); if the map has a floor(), see FeatureMapImpl::Divide().
  torch::Tensor Recall(const torch::Tensor& q, const MixerState& state) override;

 protected:
  int64_t query_dim_;
  float eps_;
  FeatureMap map_;

 private:
  std::string kind_;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_LINEAR_STATE_H_
