// Softmax attention (eq. 2), and its recurrent form that keeps every key and value seen
// (supplementary C.1).
#include <torch/nn/functional/activation.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "linnet/nn/attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class FullAttentionImpl : public AttentionImpl {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    Tensor scores = torch::matmul(q.permute({0, 2, 1, 3}) * scale, k.permute({0, 2, 3, 1}));
    const Tensor hidden = Hidden(mask, q.size(1), k.size(1));
    // The lowest finite score rather than -inf, and zero weights afterwards: a query that sees no
    // key at all gets zero, not NaN.
    if (hidden.defined()) scores = scores.masked_fill(hidden, std::numeric_limits<float>::lowest());
    Tensor weights = torch::softmax(scores, -1);
    if (hidden.defined()) weights = weights.masked_fill(hidden, 0);
    return torch::matmul(weights, v.permute({0, 2, 1, 3})).permute({0, 2, 1, 3});
  }

 private:
  // True where a query may not look: broadcastable to [N, H, L, S], or undefined.
  static Tensor Hidden(const Mask& mask, int64_t queries, int64_t keys) {
    Tensor hidden;
    if (mask.causal) hidden = torch::ones({queries, keys}, torch::kBool).triu(1);
    if (mask.lengths.defined()) {
      const Tensor padding =
          (torch::arange(keys).unsqueeze(0) >= mask.lengths.unsqueeze(1)).view({-1, 1, 1, keys});
      hidden = hidden.defined() ? hidden.logical_or(padding) : padding;
    }
    return hidden;
  }
};

class RecurrentFullAttentionImpl : public RecurrentAttentionImpl {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                 AttentionState& state) override {
    const Tensor k_t = k.unsqueeze(2), v_t = v.unsqueeze(2);  // [N, H, 1, D]
    if (state.empty()) {
      state = {k_t, v_t};
    } else {
      state = {torch::cat({state[0], k_t}, 2), torch::cat({state[1], v_t}, 2)};
    }
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    const Tensor scores = torch::matmul(q.unsqueeze(2) * scale, state[0].transpose(2, 3));
    return torch::matmul(torch::softmax(scores, -1), state[1]).squeeze(2);
  }
};

}  // namespace

const AttentionKind kFullAttention = {
    "full", [](const AttentionSpec&) -> Attention { return std::make_shared<FullAttentionImpl>(); },
    [](const AttentionSpec&) -> RecurrentAttention {
      return std::make_shared<RecurrentFullAttentionImpl>();
    }};

}  // namespace linnet::nn
