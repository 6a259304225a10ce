// Causal linear attention: one operation over whole sequences (equations 8-15 of Katharopoulos et
// al. 2020), and the RNN of equations 16-20.
#include <torch/types.h>
#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/nn/feature_map.h"
#include "linnet/nn/linear_state.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/narrow_mixer.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/narrow.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class CausalLinearAttentionImpl : public LinearStateAttention, public NarrowMixer {
 public:
  using LinearStateAttention::LinearStateAttention;

  // Always causal: mask.causal is not read.
  Tensor forward(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                 const Mask& mask) override {
    CheckAttention("causal-linear", q_in, k_in, v_in, mask, /*quadratic=*/false, query_dim_);
    if (q_in.size(1) != k_in.size(1)) {
      throw InputError("attention 'causal-linear' needs as many keys as queries; got ",
                       k_in.size(1), " and ", q_in.size(1));
    }
    const auto [q, k, v] = DropPadding(q_in, k_in, v_in, mask);
    const Tensor lengths = mask.lengths.defined() ? mask.lengths.contiguous() : Tensor();
    return DropQueries(Attend(q, k, v, lengths, nullptr), mask);
  }

  bool cross() const override { return false; }

  bool TakesBf16OnGpu(int64_t value_dim, const Mask&) const override {
    return map_->fused().has_value() && ops::CausalLinearHasGpuKernels(query_dim_, value_dim);
  }

  Tensor Piece(const Tensor& q, const Tensor& k, const Tensor& v, MixerState& state) override {
    CheckRecurrent("causal-linear", query_dim_, q, k, v, {},
                   state.empty() ? Tensor() : state.tensors[0]);
    ops::CausalLinearState carried;
    if (!state.empty()) carried = {state.tensors[0], state.tensors[1]};
    const Tensor out = Attend(q, k, v, {}, &carried);
    state.tensors = {carried.s, carried.z};
    state.length += q.size(1);
    return out;
  }

 private:
  // If `state` is not null, continues from it and replaces it by the state after these positions.
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                ops::CausalLinearState* state) const {
    if (const auto fused = map_->fused()) {
      return Product(q, k, v, lengths, {*fused, true, eps_}, state);
    }
    const Tensor phi_q = map_->Queries(q), phi_k = map_->Keys(k);
    const kernels::FeatureMap as_given = kernels::FeatureMap::kIdentity;
    if (!map_->floor()) return Product(phi_q, phi_k, v, lengths, {as_given, true, eps_}, state);
    // Divide() needs the denominator phi(q) . z. To compute it, appends a column of ones to v: the
    // unnormalized output for this column is the denominator, and the last column of s is z after
    // the last position.
    const Tensor with_ones = torch::cat({v, torch::ones_like(v.narrow(3, 0, 1))}, 3);
    const int64_t dim = v.size(3);
    ops::CausalLinearState wide;
    Tensor z = DropBehind(phi_k, lengths).cumsum(1);  // at position i, the sum over keys 0 .. i
    if (state != nullptr && state->s.defined()) {
      z = z + state->z.unsqueeze(1);
      wide.s = torch::cat({state->s, state->z.unsqueeze(3)}, 3);
    }
    const Tensor both = Product(phi_q, phi_k, with_ones, lengths, {as_given, false, 0.0f},
                                state != nullptr ? &wide : nullptr);
    if (state != nullptr) *state = {wide.s.narrow(3, 0, dim), wide.s.select(3, dim)};
    return map_->Divide(both.narrow(3, 0, dim), both.narrow(3, dim, 1), z, eps_);
  }

  static Tensor Product(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                        const kernels::CausalLinearOptions& options,
                        ops::CausalLinearState* state) {
    if (state == nullptr) return ops::CausalLinearAttention(q, k, v, lengths, options);
    return ops::CausalLinearAttention(q, k, v, lengths, options, *state);
  }
};

}  // namespace

MixerKind CausalLinearMixerKind() {
  return {"causal-linear", [](const MixerSpec& spec) -> Mixer {
            return std::make_shared<CausalLinearAttentionImpl>(spec);
          }};
}

}  // namespace linnet::nn
