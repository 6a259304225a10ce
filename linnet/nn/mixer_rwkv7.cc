// RWKV-7's time mixing (model/rwkv7.h) over ops/scan.h. The layer, not the mixer, applies the token
// shifts in front of the projections.
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>

#include "linnet/model/rwkv7.h"
#include "linnet/nn/recurrence.h"
#include "linnet/ops/scan.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

// w0 makes the decays fall from e^(-0.0015) in the first key channel of the first head to e^(-0.38)
// in the last key channel of the last head.
Tensor InitialRwkv7(const TensorInfo& info) {
  const Tensor x = torch::empty(info.shape);
  if (info.name == "w0") return torch::linspace(-6, 0.5, info.shape[0]);
  if (info.name == "a0" || info.name == "r_k" || info.name == "ln_x.bias") return x.zero_();
  if (info.shape.size() > 1) {  // second factors of low-rank products
    const double bound = 1 / std::sqrt(static_cast<double>(info.shape[0]));
    return x.uniform_(-bound, bound);
  }
  return x.fill_(1);  // v0, k_k, k_a and the norm
}

class Rwkv7MixerImpl : public RecurrenceImpl {
 public:
  explicit Rwkv7MixerImpl(const MixerSpec& spec) : RecurrenceImpl(spec, InitialRwkv7) {}

 private:
  Tensor Compute(const Parts& in, const Tensor& lengths, MixerState* state) const override {
    const auto type = in[0].scalar_type();
    const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {spec_.heads, -1}); };
    const auto own = [&](const char* name) { return heads(Own(name)); };
    const auto second = [&](const Tensor& first, const char* name) {
      return heads(torch::matmul(first, Own(name)));
    };
    const Tensor r = Part(in, "receptance"), k = Part(in, "key");
    const Tensor decay =
        kRwkv7Decay * torch::sigmoid(own("w0") + second(Part(in, "w1").tanh(), "w2"));
    const Tensor rate = torch::sigmoid(own("a0") + second(Part(in, "a1"), "a2"));
    const Tensor gate = second(Part(in, "g1").sigmoid(), "g2");
    Tensor v = Part(in, "value");
    if (spec_.value_rank > 0) {
      const Tensor share = torch::sigmoid(own("v0") + second(Part(in, "v1"), "v2"));
      v = v + (Part(in, "v_first") - v) * share;
    }
    const Tensor removal = Normalized(k * own("k_k"));
    const Tensor key = k * (1 + (rate - 1) * own("k_a"));
    const ops::ScanInputs scan = {
        .q = r, .k = key, .v = v, .decay = decay, .erase = -removal, .write = removal * rate};
    const kernels::ScanOptions options = {.decay = kernels::ScanDecay::kKey,
                                          .write = kernels::ScanWrite::kRwkv7};
    Tensor s = state != nullptr && !state->empty() ? Wide(state->tensors[0]) : Tensor();
    const Tensor out =
        state != nullptr ? ops::Scan(scan, options, lengths, s) : ops::Scan(scan, options, lengths);
    if (state != nullptr) {
      state->tensors = {s.to(type)};
      state->length += r.size(1);
    }
    const Tensor bonus = (r * key * Own("r_k")).sum(3, /*keepdim=*/true) * v;
    return ((Normed(out) * own("ln_x.weight") + own("ln_x.bias") + bonus) * gate).to(type);
  }

  // x divided by its Euclidean length.
  static Tensor Normalized(const Tensor& x) {
    constexpr double kLeast = kRwkv7LeastLength * kRwkv7LeastLength;
    return x * x.square().sum(3, /*keepdim=*/true).clamp_min(kLeast).rsqrt();
  }

  // x shifted to mean 0 and scaled to variance 1.
  static Tensor Normed(const Tensor& x) {
    const Tensor centered = x - x.mean(3, /*keepdim=*/true);
    return centered * (centered.square().mean(3, /*keepdim=*/true) + kRwkv7NormEps).rsqrt();
  }
};

}  // namespace

MixerKind Rwkv7MixerKind() {
  return {"rwkv7",
          [](const MixerSpec& spec) -> Mixer { return std::make_shared<Rwkv7MixerImpl>(spec); }};
}

}  // namespace linnet::nn
