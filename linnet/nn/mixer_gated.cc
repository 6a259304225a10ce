// Gated recurrences (model/gated.h) over ops/scan.h: retention, gated linear attention, delta
// rules.
#include <torch/types.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "linnet/nn/recurrence.h"
#include "linnet/nn/rotary.h"
#include "linnet/nn/short_convolution.h"
#include "linnet/ops/head_norm.h"
#include "linnet/ops/scan.h"

namespace linnet::nn {
namespace {

using kernels::ScanDecay;
using kernels::ScanWrite;
using torch::Tensor;

Tensor Softplus(const Tensor& x) { return -torch::log_sigmoid(-x); }

// The initial value of a tensor of GatedTensors().
Tensor InitialGated(const TensorInfo& info) {
  const Tensor x = torch::empty(info.shape);
  if (info.name == "A_log") return x.uniform_(1, 16).log_();
  if (info.name == "dt_bias") {  // softplus(dt_bias) is between 0.001 and 0.1
    const Tensor dt = x.uniform_(std::log(0.001), std::log(0.1)).exp_();
    return dt + torch::log(-torch::expm1(-dt));
  }
  if (info.shape.size() > 1 || info.name.ends_with(".bias")) {
    const double bound = 1 / std::sqrt(static_cast<double>(info.shape.back()));
    return x.uniform_(-bound, bound);
  }
  return x.fill_(1);  // norms and D
}

class GatedMixerImpl : public RecurrenceImpl {
 public:
  explicit GatedMixerImpl(const MixerSpec& spec)
      : RecurrenceImpl(spec, InitialGated), form_(FindMixer(spec.kind).gated(spec)) {}

 private:
  // x with one entry per head: repeats queries, keys, values or decays that several heads share.
  Tensor Repeated(const Tensor& x) const {
    return x.size(2) == spec_.heads ? x : x.repeat_interleave(spec_.heads / x.size(2), 2);
  }

  // state.tensors are the scan's state and, with a convolution, the last width - 1 inputs of the
  // convolution: the concatenated queries, keys and values of all heads.
  Tensor Compute(const Parts& in, const Tensor& lengths, MixerState* state) const override {
    const auto type = in[0].scalar_type();
    const auto part = [&](const std::string& name) { return Part(in, name); };
    const auto own = [&](const std::string& name) { return Own(name); };
    // Applies the second factor of the low-rank projection `name` to the first factor's output x:
    // x W^T + b, [N, L, H, width].
    const auto second = [&](const std::string& name, int width) {
      const Tensor y = torch::matmul(part(name + ".0"), own(name + ".1.weight").t());
      const Tensor biased = own_.count(name + ".1.bias") > 0 ? y + own(name + ".1.bias") : y;
      return Repeated(biased.unflatten(2, {-1, width}));
    };
    const bool begun = state != nullptr && !state->empty();
    Tensor past = begun && form_.convolution > 0 ? state->tensors[1] : Tensor();
    auto [q, k, v] = Convolved(Wide(in[0]), Wide(in[1]), Wide(in[2]), lengths,
                               state != nullptr ? &past : nullptr);
    if (form_.rotary) Rotate(begun ? state->length : 0, /*base=*/10000, q, k);
    if (form_.householders > 1) k = Updates(k, spec_.query_dim), v = Updates(v, spec_.value_dim);
    if (form_.delta() && form_.convolution == 0) q = Normalized(q), k = Normalized(k);
    q = Repeated(q), k = Repeated(k), v = Repeated(v);

    kernels::ScanOptions options{.scale = form_.scale(spec_.query_dim)};
    ops::ScanInputs scan;
    scan.q = q, scan.k = k, scan.v = v;
    switch (form_.decay) {
      case GatedDecay::kNone:
      case GatedDecay::kChannel:  // does not occur here; mixer_hgrn.cc computes it
        break;
      case GatedDecay::kConstant:
        scan.decay = ConstantDecay(v);
        break;
      case GatedDecay::kHead: {
        const Tensor step = Softplus(part("a_proj").squeeze(3) + own("dt_bias")).unsqueeze(3);
        scan.decay = -own("A_log").exp().unsqueeze(1) * step;
        if (form_.timed) scan.v = v * step;
        break;
      }
      case GatedDecay::kKey:
        scan.decay = torch::log_sigmoid(second("gk_proj", spec_.query_dim)) / kLowRankDecayDivisor;
        if (spec_.decay_floor < 0) scan.decay = scan.decay.clamp_min(spec_.decay_floor);
        break;
      case GatedDecay::kKeyRate: {
        const Tensor rate = own("A_log").exp().unsqueeze(1);
        const Tensor x =
            second("f_proj", spec_.query_dim) + own("dt_bias").view({spec_.heads, spec_.query_dim});
        scan.decay = spec_.decay_floor < 0 ? spec_.decay_floor * torch::sigmoid(rate * x)
                                           : -rate * Softplus(x);
        break;
      }
    }
    if (form_.decay == GatedDecay::kConstant || form_.decay == GatedDecay::kHead) {
      options.decay = ScanDecay::kHead;
    } else if (form_.decay != GatedDecay::kNone) {
      options.decay = ScanDecay::kKey;
    }
    if (form_.delta()) {
      options.write = form_.write == GatedWrite::kDelta ? ScanWrite::kDelta : ScanWrite::kTwoSided;
      scan.erase = part("b_proj").sigmoid() * (spec_.negative_eigenvalues ? 2 : 1);
      if (form_.householders > 1) scan.erase = Updates(scan.erase, 1);
    }
    if (form_.write == GatedWrite::kTwoSided) scan.write = part("w_proj").sigmoid();
    Tensor s = begun ? Wide(state->tensors[0]) : Tensor();
    if (form_.householders > 1) {
      scan.q = Spread(scan.q, form_.householders - 1), scan.decay = Spread(scan.decay, 0);
    }
    const Tensor rows = lengths.defined() ? lengths * form_.householders : Tensor();
    Tensor out =
        state != nullptr ? ops::Scan(scan, options, rows, s) : ops::Scan(scan, options, rows);
    if (form_.householders > 1) {
      out = out.unflatten(1, {-1, form_.householders}).select(2, form_.householders - 1);
    }
    if (state != nullptr) {
      state->tensors = {s.to(type)};
      if (form_.convolution > 0) state->tensors.push_back(past);
      state->length += q.size(1);
    }
    const Tensor norm = own(std::string(form_.norm) + ".weight");
    if (form_.timed) {
      const Tensor gated = (out + own("D").unsqueeze(1) * v) * torch::silu(part("g_proj"));
      const Tensor y = gated.unflatten(2, {-1, form_.readers});
      return (y * (y.square().mean({3, 4}, true) + spec_.output_norm_eps).rsqrt())
          .flatten(2, 3)
          .mul(norm.view({spec_.heads, spec_.value_dim}))
          .to(type);
    }
    using kernels::GateFunction;
    const bool sigmoid = form_.gate == OutputGate::kSigmoid;
    Tensor gate;
    if (form_.gate == OutputGate::kSilu) gate = part("g_proj");
    if (sigmoid) gate = second("g_proj", spec_.value_dim);
    return ops::GatedRmsNorm(out, norm, gate,
                             sigmoid ? GateFunction::kSigmoid : GateFunction::kSilu,
                             spec_.output_norm_eps)
        .to(type);
  }

  // Splits x [N, L, H, n width], which holds the n delta steps of each position side by side, into
  // [N, L n, H, width]. n is form_.householders, also below.
  Tensor Updates(const Tensor& x, int64_t width) const {
    return x.unflatten(3, {form_.householders, width}).transpose(2, 3).flatten(1, 2);
  }
  // [N, L, H, width] -> [N, L n, H, width]: x at step i of each position's n delta steps, else 0.
  Tensor Spread(const Tensor& x, int64_t i) const {
    return torch::constant_pad_nd(x.unsqueeze(2), {0, 0, 0, 0, i, form_.householders - 1 - i})
        .flatten(1, 2);
  }

  struct Qkv {
    Tensor q, k, v;
  };
  // silu of the causal convolutions of q, k and v, with q and k normalized for the delta rules;
  // without convolutions, q, k and v. past as in ShortConvolution().
  Qkv Convolved(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                Tensor* past) const {
    if (form_.convolution == 0) return {q, k, v};
    const Tensor x = torch::cat({q.flatten(2), k.flatten(2), v.flatten(2)}, 2);
    // The weights or biases (`end`) of q, k and v, concatenated in the order of x's channels: by
    // head, then by block.
    const auto joined = [&](const char* end) {
      std::vector<Tensor> all;
      for (size_t i = 0; i < 3; ++i) {
        const int64_t blocks = projections_[i].blocks, width = projections_[i].width / blocks;
        const Tensor own = own_.at(std::string("qkv").substr(i, 1) + "_conv1d." + end);
        const Tensor rows = own.view({own.size(0), -1});  // a bias has one column
        all.push_back(blocks == 1
                          ? rows
                          : rows.unflatten(0, {blocks, -1, width}).transpose(0, 1).flatten(0, 2));
      }
      return torch::cat(all).to(x.scalar_type());
    };
    const Tensor weight = joined("weight").t().contiguous();
    const Tensor bias = form_.timed ? joined("bias").squeeze(1) : Tensor();
    const int64_t normed =
        form_.delta() ? q.size(2) * q.size(3) + k.size(2) * k.size(3) : 0;  // q's and k's columns
    const Tensor y = ops::SiluL2Norm(ShortConvolution(x, weight, bias, lengths, past), normed,
                                     spec_.query_dim, kGatedNormEps);
    const std::vector<Tensor> parts = y.split_with_sizes(
        {q.size(2) * q.size(3), k.size(2) * k.size(3), v.size(2) * v.size(3)}, 2);
    return {parts[0].unflatten(2, {q.size(2), q.size(3)}),
            parts[1].unflatten(2, {k.size(2), k.size(3)}),
            parts[2].unflatten(2, {v.size(2), v.size(3)})};
  }

  // The norm of queries and keys: x divided by its Euclidean length.
  static Tensor Normalized(const Tensor& x) {
    return x * (x.square().sum(3, true) + kGatedNormEps).rsqrt();
  }

  // The constant decays' logarithms [N, L, H, 1], in the type of v [N, L, H, M].
  Tensor ConstantDecay(const Tensor& v) const {
    std::vector<double> decays;
    for (int h = 0; h < spec_.heads; ++h) decays.push_back(RetentionDecay(h));
    return torch::tensor(decays, torch::kFloat64)
        .to(v.options())
        .view({1, 1, -1, 1})
        .expand({v.size(0), v.size(1), v.size(2), 1});
  }

  const GatedForm form_;
};

MixerKind Kind(const char* name) {
  return {name,
          [](const MixerSpec& spec) -> Mixer { return std::make_shared<GatedMixerImpl>(spec); }};
}

}  // namespace

MixerKind DeltaNetMixerKind() { return Kind("delta-net"); }
MixerKind GatedDeltaNetMixerKind() { return Kind("gated-delta-net"); }
MixerKind GatedDeltaProductMixerKind() { return Kind("gated-delta-product"); }
MixerKind Gdn2MixerKind() { return Kind("gdn2"); }
MixerKind GlaMixerKind() { return Kind("gla"); }
MixerKind KdaMixerKind() { return Kind("kda"); }
MixerKind RetentionMixerKind() { return Kind("retention"); }
MixerKind SsdMixerKind() { return Kind("ssd"); }

}  // namespace linnet::nn
