// Base of recurrences over ops/scan.h, which read more than queries, keys and values and have
// tensors of their own (private to linnet/nn): the checks and masks around one computation.
//
//   class Mine : public RecurrenceImpl {
//     explicit Mine(const MixerSpec& spec) : RecurrenceImpl(spec, Initial) {}
//     Tensor Compute(const Parts& in, const Tensor& lengths, MixerState* state) const override;
//   };
#ifndef LINNET_NN_RECURRENCE_H_
#define LINNET_NN_RECURRENCE_H_

#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "linnet/nn/mixer.h"

namespace linnet::nn {

class RecurrenceImpl : public MixerImpl {
 public:
  using Parts = std::vector<torch::Tensor>;  // in the order of MixerProjections()

  // initial: the first value of a tensor of MixerInfo::tensors.
  RecurrenceImpl(const MixerSpec& spec, torch::Tensor (*initial)(const TensorInfo& info));

  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const Mask& mask) override;
  bool cross() const override { return false; }
  bool recurrent() const override { return true; }
  // Always causal: mask.causal is not read.
  torch::Tensor Mix(const Parts& in, const Mask& mask) override;
  torch::Tensor MixPiece(const Parts& in, MixerState& state) override;
  torch::Tensor MixStep(const Parts& in, MixerState& state) override;

 protected:
  // The outputs, in the type of `in`; types narrower than fp32 are computed in fp32. lengths:
  // undefined, or int64 [N]: positions from lengths[n] on change nothing. state: null, or continued
  // from and advanced; its first tensor is the scan's state [N, H, K, V].
  virtual torch::Tensor Compute(const Parts& in, const torch::Tensor& lengths,
                                MixerState* state) const = 0;

  // x, in fp32 if its type is narrower.
  static torch::Tensor Wide(const torch::Tensor& x);
  // The columns of the projection of that name, wide; undefined if there is none.
  torch::Tensor Part(const Parts& in, const std::string& name) const;
  // The mixer's tensor of that name, wide.
  torch::Tensor Own(const std::string& name) const { return Wide(own_.at(name)); }

  const MixerSpec spec_;
  const std::vector<ProjectionInfo> projections_;
  std::map<std::string, torch::Tensor> own_;

 private:
  void CheckParts(const Parts& in) const;
  // Queries, keys and values as CheckAttention() knows them: for each head, one for each position.
  torch::Tensor Plain(const Parts& in, size_t which) const;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_RECURRENCE_H_
