// Softmax attention (eq. 2), and its recurrent form that keeps every key and value seen
// (supplementary C.1).
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

constexpr int64_t kFirstCapacity = 64;

class FullAttentionImpl : public AttentionImpl {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    CheckAttention("full", q, k, v, mask, /*quadratic=*/true);
    ops::SoftmaxAttentionOptions options{.causal = mask.causal, .lengths = mask.lengths};
    if (mask.allowed.defined()) options.hidden = mask.allowed.logical_not();
    return DropQueries(ops::SoftmaxAttention(q, k, v, options), mask);
  }

  bool recurrent() const override { return true; }

  void Remember(const Tensor& k, const Tensor& v, const Tensor& lengths,
                AttentionState& state) override {
    const Tensor keys = k.transpose(1, 2), values = v.transpose(1, 2);  // [N, H, S, D or M]
    if (lengths.defined()) {
      if (!state.empty()) {
        throw InputError("attention 'full' takes lengths with the first keys only");
      }
      state.lengths = lengths;
    }
    Append(keys, state, 0);
    Append(values, state, 1);
    state.length += k.size(1);
  }

  Tensor Recall(const Tensor& q, const AttentionState& state) override {
    if (state.empty()) throw InputError("attention has nothing to recall: its state is empty");
    Tensor hidden;  // not as lengths, for whose sake the keys would be copied
    if (state.lengths.defined()) {
      hidden = Below(state.lengths, state.length).logical_not().view({q.size(0), 1, 1, -1});
    }
    return ops::SoftmaxAttention(q.unsqueeze(1), Remembered(state, 0), Remembered(state, 1),
                                 {.hidden = hidden})
        .squeeze(1);
  }

  Tensor Piece(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state) override {
    if (state.lengths.defined()) {
      throw InputError("attention 'full' cannot go on behind keys with lengths");
    }
    const int64_t before = state.length;
    Remember(k, v, {}, state);
    return ops::SoftmaxAttention(q, Remembered(state, 0), Remembered(state, 1),
                                 {.causal = true, .offset = before});
  }

 private:
  // The keys (0) or values (1) of a state, [N, S, H, D or M].
  static Tensor Remembered(const AttentionState& state, size_t which) {
    return state.tensors[which].narrow(2, 0, state.length).transpose(1, 2);
  }

  // Puts x [N, H, S, dim] behind the state's rows of tensor `which`.
  static void Append(const Tensor& x, AttentionState& state, size_t which) {
    std::vector<Tensor>& tensors = state.tensors;
    const int64_t length = state.length, needed = length + x.size(2);
    tensors.resize(2);
    Tensor& cache = tensors[which];
    const bool gradient = torch::GradMode::is_enabled() &&
                          (x.requires_grad() || (cache.defined() && cache.requires_grad()));
    if (gradient) {  // a cache that is written into has no history
      cache = length > 0 ? torch::cat({cache.narrow(2, 0, length), x}, 2) : x;
      return;
    }
    // Written into only while this state alone holds it and it has room; a fork that goes on gets
    // one of its own.
    const bool room = cache.defined() && cache.size(2) >= needed && !cache.requires_grad();
    if (!room || cache.use_count() > 1) {
      const int64_t capacity =
          std::max({needed, state.capacity, kFirstCapacity, room ? cache.size(2) : 2 * length});
      const Tensor larger = torch::empty({x.size(0), x.size(1), capacity, x.size(3)}, x.options());
      if (length > 0) larger.narrow(2, 0, length).copy_(cache.narrow(2, 0, length).detach());
      cache = larger;
    }
    cache.narrow(2, length, x.size(2)).copy_(x.detach());
  }
};

}  // namespace

const AttentionKind kFullAttention = {"full",
                                      [](const AttentionSpec&, const AttentionSizes&) -> Attention {
                                        return std::make_shared<FullAttentionImpl>();
                                      }};

}  // namespace linnet::nn
