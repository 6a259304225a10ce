// Base class of the mixers with a cache of all past keys and values (private to linnet/nn).
#ifndef LINNET_NN_CACHED_ATTENTION_H_
#define LINNET_NN_CACHED_ATTENTION_H_

#include <torch/types.h>

#include "linnet/nn/mixer.h"

namespace linnet::nn {

// Implements the recurrent forms over a cache of keys and values; subclasses implement Attend().
// readers: the number of consecutive query heads that share one key-value head.
class CachedAttention : public MixerImpl {
 public:
  CachedAttention(const char* kind, int64_t query_dim, int64_t readers = 1)
      : kind_(kind), query_dim_(query_dim), readers_(readers) {}

  bool recurrent() const override { return true; }
  void Remember(const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& lengths,
                MixerState& state) override;
  torch::Tensor Recall(const torch::Tensor& q, const MixerState& state) override;
  torch::Tensor Piece(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                      MixerState& state) override;

 protected:
  // q [N, L, H, D], k [N, S, G, D], v [N, S, G, M] -> [N, L, H, M], with G = H / readers. `hidden`
  // (broadcastable to [N, H, L, S], or undefined) is true where a key is masked out for a query. If
  // causal, query i is at position offset + i, and the keys at later positions are also masked out.
  virtual torch::Tensor Attend(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& hidden, bool causal,
                               int64_t offset) const = 0;
  int64_t query_dim() const { return query_dim_; }
  int64_t readers() const { return readers_; }

  // Calls CheckRecurrent(). Also throws InputError on a state with lengths, which cannot be
  // extended.
  void Check(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
             const torch::Tensor& lengths, const MixerState& state) const;
  // Appends k and v to the state, then attends to all keys in the state. Call Check() first.
  torch::Tensor Continue(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         MixerState& state) const;

 private:
  const char* kind_;
  int64_t query_dim_, readers_;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_CACHED_ATTENTION_H_
