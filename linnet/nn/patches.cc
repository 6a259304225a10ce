#include "linnet/nn/patches.h"

#include <torch/utils.h>

#include <algorithm>

#include "linnet/model/patches.h"

namespace linnet::nn {

using torch::Tensor;

PatchesImpl::PatchesImpl(const ModelSpec& spec, ops::Precision precision)
    : spec_(spec),
      tokens_(spec.input.patch.tokens),
      width_(spec.input.patch.width),
      first_(FirstPredicted(spec)),
      precision_(precision),
      in_(tokens_ * width_, spec.stack.d_model),
      out_(spec.stack.d_model, tokens_ * width_),
      linear1_(width_, spec.input.patch.d_ff),
      linear2_(spec.input.patch.d_ff, width_),
      norm1_(width_, spec.stack.norm, spec.stack.norm_eps),
      norm2_(width_, spec.stack.norm, spec.stack.norm_eps) {
  register_module("in", in_);
  register_module("out", out_);
  register_module("norm1", norm1_);
  register_module("linear1", linear1_);
  register_module("linear2", linear2_);
  register_module("norm2", norm2_);
  if (spec.input.patch.convolution > 0) {
    convolution_ = Depthwise(spec.input.patch.convolution, width_);
    register_module("convolution", convolution_);
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : convolution_->parameters()) parameter.zero_();
  }
}

Tensor PatchesImpl::Join(const Tensor& u) {
  // With the embeddings of tokens that no position predicts, as zeros, row p reads tokens
  // (p - 1) P + 1 .. p P. If position 0 predicts token 1, no row reads more than there are.
  const int64_t before = first_ == 0 ? tokens_ - 1 : 0;
  const int64_t rows = (u.size(1) + before) / tokens_;
  const Tensor padded = before > 0 ? torch::constant_pad_nd(u, {0, 0, before, 0}) : u;
  const Tensor joined = padded.narrow(1, 0, rows * tokens_).reshape({u.size(0), rows, -1});
  return ops::Linear(joined, in_->weight, in_->bias, precision_);
}

Tensor PatchesImpl::Split(const Tensor& u, const Tensor& y) {
  const int64_t length = u.size(1), before = first_ == 0 ? 0 : tokens_ - 1;
  Tensor rows = ops::Linear(y, out_->weight, out_->bias, precision_)
                    .view({u.size(0), y.size(1) * tokens_, width_});
  Tensor z = convolution_.is_empty() ? u : u + convolution_(u, Mask{.causal = true});
  const int64_t given = std::min(rows.size(1), length - before);
  if (given <= 0) return Token(z);
  rows = torch::constant_pad_nd(rows.narrow(1, 0, given), {0, 0, before, length - before - given});
  return Token(z + rows);
}

std::optional<Tensor> PatchesImpl::JoinStep(const Tensor& u, int64_t position, PatchState& state) {
  if (!state.recent.defined()) {
    state.recent = torch::zeros({u.size(0), tokens_, width_}, u.options());
  }
  state.recent = torch::cat({state.recent.narrow(1, 1, tokens_ - 1), u.unsqueeze(1)}, 1);
  if (!BeginsPatch(spec_, static_cast<size_t>(position))) return std::nullopt;
  return ops::Linear(state.recent.flatten(1), in_->weight, in_->bias, precision_);
}

void PatchesImpl::SplitStep(const Tensor& y, PatchState& state) {
  state.rows = ops::Linear(y, out_->weight, out_->bias, precision_).view({-1, tokens_, width_});
}

Tensor PatchesImpl::HeadStep(const Tensor& u, int64_t position, const PatchState& state) {
  Tensor z = u;
  if (!convolution_.is_empty()) {
    const int64_t taps = convolution_->weight.size(0);
    const Tensor recent = state.recent.narrow(1, tokens_ - taps, taps);
    z = z + (recent * convolution_->weight).sum(1) + convolution_->bias;
  }
  if (!state.rows.defined()) return Token(z);
  return Token(z + state.rows.select(1, (position + first_) % tokens_));
}

Tensor PatchesImpl::Token(const Tensor& z) {
  return ops::FeedForward(z, linear1_->weight, linear1_->bias, linear2_->weight, linear2_->bias,
                          {.activation = kernels::Activation::kGelu,
                           .norm_before = norm1_->of(),
                           .norm_after = norm2_->of(),
                           .precision = precision_});
}

}  // namespace linnet::nn
