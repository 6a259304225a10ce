// The attention kinds, each in its batch form and, where it has one, its recurrent form.
//
//   auto attention = MakeAttention({.kind = "causal-linear"});
//   torch::Tensor out = attention->forward(q, k, v, Mask{.causal = true});
//
//   auto recurrent = MakeRecurrentAttention({.kind = "causal-linear"});
//   AttentionState state;                                // empty: nothing seen yet
//   out_t = recurrent->forward(q_t, k_t, v_t, state);    // state now holds one position more
//
// A new kind is a new file that defines its AttentionKind, and a line in attention.cc.
#ifndef LINNET_NN_ATTENTION_H_
#define LINNET_NN_ATTENTION_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "linnet/model/spec.h"
#include "linnet/nn/mask.h"

namespace linnet::nn {

class AttentionImpl : public torch::nn::Module {
 public:
  // q [N, L, H, D], k [N, S, H, D], v [N, S, H, M] -> [N, L, H, M]. Throws InputError for a mask
  // that the kind cannot honour.
  virtual torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const Mask& mask) = 0;
};
using Attention = std::shared_ptr<AttentionImpl>;

// What a recurrent kind remembers of a sequence: a value. Steps replace its tensors and never write
// into them, so a copy is a fork.
using AttentionState = std::vector<torch::Tensor>;

class RecurrentAttentionImpl : public torch::nn::Module {
 public:
  // One position: q, k [N, H, D], v [N, H, M] -> [N, H, M]; an empty state is the beginning.
  virtual torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, AttentionState& state) = 0;
};
using RecurrentAttention = std::shared_ptr<RecurrentAttentionImpl>;

struct AttentionKind {
  const char* name;
  Attention (*make)(const AttentionSpec&);
  RecurrentAttention (*make_recurrent)(const AttentionSpec&);  // null: it has no recurrent form
};

// Throw InputError for an unknown kind, or one without a recurrent form.
Attention MakeAttention(const AttentionSpec& spec);
RecurrentAttention MakeRecurrentAttention(const AttentionSpec& spec);
bool HasRecurrentForm(const AttentionSpec& spec);

// Defined in the kinds' own files.
extern const AttentionKind kFullAttention;          // softmax(q k^T / sqrt(D)) v (eq. 2)
extern const AttentionKind kLinearAttention;        // eqs. 4-6
extern const AttentionKind kCausalLinearAttention;  // eqs. 8-15; recurrent: eqs. 16-20

}  // namespace linnet::nn

#endif  // LINNET_NN_ATTENTION_H_
