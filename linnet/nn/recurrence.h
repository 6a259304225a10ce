// Base class of recurrences over ops/scan.h (private to linnet/nn): the checks and masks around
// Compute(). These mixers read more projections than queries, keys and values, and have parameters
// of their own.
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
  using Parts = std::vector<torch::Tensor>;  // projections, in the order of MixerProjections()

  // initial(info) returns the initial value of a tensor of MixerInfo::tensors.
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
  // Returns the outputs in the type of `in`, but computes types narrower than fp32 in fp32.
  // lengths: undefined, or int64 [N]: positions lengths[n] and later do not change the state, and
  // their outputs are not used. state: null, or the state before the first position. Compute()
  // replaces it by the state after the last position. Its first tensor is the scan's state
  // [N, H, any, M].
  virtual torch::Tensor Compute(const Parts& in, const torch::Tensor& lengths,
                                MixerState* state) const = 0;

  // x, in fp32 if its type is narrower.
  static torch::Tensor Wide(const torch::Tensor& x);
  // Wide() of the projection of that name; undefined if there is none.
  torch::Tensor Part(const Parts& in, const std::string& name) const;
  // Wide() of the mixer's parameter of that name.
  torch::Tensor Own(const std::string& name) const { return Wide(own_.at(name)); }

  const MixerSpec spec_;
  const std::vector<ProjectionInfo> projections_;  // MixerProjections(spec_)
  std::map<std::string, torch::Tensor> own_;       // the mixer's parameters (MixerInfo::tensors)

 private:
  void CheckParts(const Parts& in) const;
  // Queries (which = 0), keys (1) or values (2) in the shape that CheckAttention() expects: one
  // vector per head and position. Repeats vectors that heads share. If a projection has several
  // blocks (ProjectionInfo), returns only its first block.
  torch::Tensor Plain(const Parts& in, size_t which) const;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_RECURRENCE_H_
