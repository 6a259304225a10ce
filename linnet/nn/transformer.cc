#include "linnet/nn/transformer.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "linnet/error.h"
#include "linnet/nn/narrow_mixer.h"
#include "linnet/nn/recompute.h"
#include "linnet/ops/depthwise.h"
#include "linnet/ops/dropout.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"

namespace linnet::nn {

using torch::Tensor;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

namespace {

constexpr int64_t kMost = 1 << 20;

void CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw InputError("transformer: ", name, " is ", value, "; it must be between ", low, " and ",
                     high);
  }
}

// Total width of all heads, for queries and keys and for values.
int64_t QueryWidth(const MixerSpec& mixer) {
  CheckRange("heads", mixer.heads, 1, kMost);
  CheckRange("query_dim", mixer.query_dim, 1, kMost);
  return int64_t{mixer.heads} * mixer.query_dim;
}
int64_t ValueWidth(const MixerSpec& mixer) {
  CheckRange("value_dim", mixer.value_dim, 1, kMost);
  return int64_t{mixer.heads} * mixer.value_dim;
}

}  // namespace

void Validate(const TransformerOptions& options) {
  CheckRange("layers", options.layers, 0, kMost);
  for (const MixerSpec& mixer : options.pattern) QueryWidth(mixer), ValueWidth(mixer);
  CheckRange("d_model", options.d_model, 1, kMost);
  CheckRange("d_ff", options.d_ff, 1, kMost);
  CheckRange("convolution", options.convolution, 0, kMost);
  if (options.pattern.empty()) throw InputError("transformer: the pattern of its layers is empty");
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    throw InputError("transformer: dropout is ", options.dropout, "; it must lie in [0, 1]");
  }
}

Tensor DropoutImpl::forward(const Tensor& x) const { return acts() ? ops::Dropout(x, p_) : x; }

DepthwiseImpl::DepthwiseImpl(int64_t width, int64_t channels) {
  const double bound =
      1 / std::sqrt(static_cast<double>(width));  // libtorch's bound for a depthwise convolution
  weight = register_parameter("weight", torch::empty({width, channels}).uniform_(-bound, bound));
  bias = register_parameter("bias", torch::empty({channels}).uniform_(-bound, bound));
}

Tensor DepthwiseImpl::forward(const Tensor& x, const Mask& mask) {
  return ops::DepthwiseConvolution(x, weight, bias, mask.lengths, mask.causal);
}

AttentionLayerImpl::AttentionLayerImpl(const TransformerOptions& options, const MixerSpec& mixer)
    : query_projection((Validate(options), options.d_model), QueryWidth(mixer)),
      key_projection(options.d_model, QueryWidth(mixer)),
      value_projection(options.d_model, ValueWidth(mixer)),
      out_projection(ValueWidth(mixer), options.d_model),
      heads_(mixer.heads),
      precision_(options.precision),
      mixer_(MakeMixer(mixer)) {
  register_module("inner_attention", mixer_);
  register_module("query_projection", query_projection);
  register_module("key_projection", key_projection);
  register_module("value_projection", value_projection);
  register_module("out_projection", out_projection);
}

std::vector<Tensor> AttentionLayerImpl::Split(const Tensor& x, const ops::Norm& norm,
                                              const std::vector<Linear>& projections) const {
  std::vector<Tensor> weights, biases;
  for (const Linear& projection : projections) {
    weights.push_back(projection->weight);
    biases.push_back(projection->bias);
  }
  std::vector<Tensor> parts = ops::Linears(x, weights, biases, precision_, norm);
  for (Tensor& part : parts) part = part.unflatten(-1, {heads_, part.size(-1) / heads_});
  return parts;
}

std::vector<Tensor> AttentionLayerImpl::Split(const Tensor& x, const ops::Norm& norm) const {
  return Split(x, norm, {query_projection, key_projection, value_projection});
}

Tensor AttentionLayerImpl::Attend(const Tensor& x, const ops::Norm& norm, const Mask& mask) {
  const int64_t value_dim = value_projection->options.out_features() / heads_;
  const bool on_gpu = precision_ == ops::Precision::kBf16 && x.is_cuda() &&
                      x.scalar_type() == torch::kFloat32 && !ops::PlainGuard::asked();
  const auto* narrow = on_gpu ? dynamic_cast<const NarrowMixer*>(mixer_.get()) : nullptr;
  if (narrow == nullptr || !narrow->TakesBf16OnGpu(value_dim, mask)) {
    const std::vector<Tensor> qkv = Split(x, norm);
    return mixer_->forward(qkv[0], qkv[1], qkv[2], mask).flatten(2);
  }
  const auto weights = {query_projection->weight, key_projection->weight, value_projection->weight};
  const auto biases = {query_projection->bias, key_projection->bias, value_projection->bias};
  std::vector<Tensor> qkv = ops::NarrowLinears(x, weights, biases, norm);
  for (Tensor& part : qkv) part = part.unflatten(-1, {heads_, part.size(-1) / heads_});
  return mixer_->forward(qkv[0], qkv[1], qkv[2], mask).flatten(2);
}

Tensor AttentionLayerImpl::AttendStep(const Tensor& x, const ops::Norm& norm, MixerState& state) {
  const std::vector<Tensor> qkv = Split(x, norm);
  return mixer_->Step(qkv[0], qkv[1], qkv[2], state).flatten(1);
}

Tensor AttentionLayerImpl::AttendPiece(const Tensor& x, const ops::Norm& norm, MixerState& state) {
  const std::vector<Tensor> qkv = Split(x, norm);
  return mixer_->Piece(qkv[0], qkv[1], qkv[2], state).flatten(2);
}

Tensor AttentionLayerImpl::AttendTo(const Tensor& memory, const Tensor& x, const ops::Norm& norm,
                                    const Mask& mask) {
  const Tensor q = Split(x, norm, {query_projection})[0];
  const std::vector<Tensor> kv = Split(memory, {}, {key_projection, value_projection});
  return mixer_->forward(q, kv[0], kv[1], mask).flatten(2);
}

void AttentionLayerImpl::Remember(const Tensor& memory, const Tensor& lengths, MixerState& state) {
  const std::vector<Tensor> kv = Split(memory, {}, {key_projection, value_projection});
  mixer_->Remember(kv[0], kv[1], lengths, state);
}

Tensor AttentionLayerImpl::AttendToState(const MixerState& state, const Tensor& x,
                                         const ops::Norm& norm) {
  return mixer_->Recall(Split(x, norm, {query_projection})[0], state).flatten(1);
}

Tensor AttentionLayerImpl::forward(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                   const Mask& mask) {
  const Tensor out = mixer_->forward(Split(queries, {}, {query_projection})[0],
                                     Split(keys, {}, {key_projection})[0],
                                     Split(values, {}, {value_projection})[0], mask);
  return ops::Linear(out.flatten(2), out_projection->weight, out_projection->bias, precision_);
}

LayerParts::LayerParts(const TransformerOptions& options)
    : d_model_((Validate(options), options.d_model)),
      d_ff_(options.d_ff),
      norm_eps_(options.norm_eps),
      norm_first_(options.norm_first),
      activation_(options.activation == Activation::kGelu ? kernels::Activation::kGelu
                                                          : kernels::Activation::kRelu),
      precision_(options.precision),
      dropout_(options.dropout) {}

Linear LayerParts::MakeIn() const { return Linear(d_model_, d_ff_); }
Linear LayerParts::MakeOut() const { return Linear(d_ff_, d_model_); }
LayerNorm LayerParts::MakeNorm() const {
  return LayerNorm(LayerNormOptions({d_model_}).eps(norm_eps_));
}

ops::Norm LayerParts::Before(const LayerNorm& norm) const {
  if (!norm_first_) return {};
  return {norm->weight, norm->bias, norm->options.eps()};
}

ops::Norm LayerParts::After(const LayerNorm& norm) const {
  if (norm_first_) return {};
  return {norm->weight, norm->bias, norm->options.eps()};
}

Tensor LayerParts::Add(const Tensor& x, const Tensor& part, LayerNorm& norm) {
  const Tensor sum = x + dropout_(part);
  return norm_first_ ? sum : norm(sum);
}

Tensor LayerParts::Mix(const Tensor& x, Depthwise& convolution, LayerNorm& norm, const Mask& mask) {
  const Tensor mixed = convolution(norm_first_ ? norm(x) : x, mask);
  return Add(x, ops::Activate(activation_, mixed), norm);
}

Tensor LayerParts::MixNext(const Tensor& x, Depthwise& convolution, LayerNorm& norm, Tensor& past) {
  const Tensor read = norm_first_ ? norm(x) : x;
  const int64_t behind = convolution->weight.size(0) - 1, length = x.size(1);
  if (!past.defined()) past = torch::zeros({x.size(0), behind, x.size(2)}, read.options());
  const Tensor rows = torch::cat({past, read}, 1);
  past = rows.narrow(1, length, behind);
  const Tensor mixed = convolution(rows, Mask{.causal = true}).narrow(1, behind, length);
  return Add(x, ops::Activate(activation_, mixed), norm);
}

Tensor LayerParts::Project(const Tensor& x, const Tensor& attended, const Linear& out,
                           LayerNorm& norm) {
  if (!dropout_->acts()) {  // active dropout lies between the product and the residual: no fusion
    return ops::Project(attended, out->weight, out->bias, x, After(norm), precision_);
  }
  return Add(x, ops::Linear(attended, out->weight, out->bias, precision_), norm);
}

Tensor LayerParts::FeedForward(const Tensor& x, const Linear& in, const Linear& out,
                               LayerNorm& norm) {
  if (!dropout_->acts()) {
    return ops::FeedForward(x, in->weight, in->bias, out->weight, out->bias,
                            {.activation = activation_,
                             .norm_before = Before(norm),
                             .norm_after = After(norm),
                             .precision = precision_});
  }
  const Tensor hidden = ops::Linear(x, in->weight, in->bias, precision_, Before(norm));
  const Tensor active = dropout_(ops::Activate(activation_, hidden));
  return Add(x, ops::Linear(active, out->weight, out->bias, precision_), norm);
}

TransformerEncoderLayerImpl::TransformerEncoderLayerImpl(const TransformerOptions& options,
                                                         const MixerSpec& mixer)
    : parts_(options),
      attention(options, mixer),
      linear1(parts_.MakeIn()),
      linear2(parts_.MakeOut()),
      norm1(parts_.MakeNorm()),
      norm2(parts_.MakeNorm()) {
  register_module("attention", attention);
  register_module("linear1", linear1);
  register_module("linear2", linear2);
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("dropout", parts_.dropout());
  if (options.convolution > 0) {
    convolution = Depthwise(options.convolution, options.d_model);
    convolution_norm = parts_.MakeNorm();
    register_module("convolution", convolution);
    register_module("convolution_norm", convolution_norm);
  }
}

Tensor TransformerEncoderLayerImpl::forward(const Tensor& x, const Mask& mask) {
  const Tensor mixed =
      convolution.is_empty() ? x : parts_.Mix(x, convolution, convolution_norm, mask);
  return Finish(mixed, attention->Attend(mixed, parts_.Before(norm1), mask));
}

Tensor TransformerEncoderLayerImpl::Step(const Tensor& x, MixerState& state) {
  const Tensor mixed = MixNext(x.unsqueeze(1), state).squeeze(1);
  return Finish(mixed, attention->AttendStep(mixed, parts_.Before(norm1), state));
}

Tensor TransformerEncoderLayerImpl::Piece(const Tensor& x, MixerState& state) {
  const Tensor mixed = MixNext(x, state);
  return Finish(mixed, attention->AttendPiece(mixed, parts_.Before(norm1), state));
}

Tensor TransformerEncoderLayerImpl::MixNext(const Tensor& x, MixerState& state) {
  if (convolution.is_empty()) return x;
  return parts_.MixNext(x, convolution, convolution_norm, state.convolved);
}

Tensor TransformerEncoderLayerImpl::Finish(const Tensor& x, const Tensor& attended) {
  const Tensor y = parts_.Project(x, attended, attention->out_projection, norm1);
  return parts_.FeedForward(y, linear1, linear2, norm2);
}

TransformerEncoderImpl::TransformerEncoderImpl(const TransformerOptions& options)
    : checkpoint_layers_(options.checkpoint_layers) {
  Validate(options);
  register_module("layers", layers);
  for (int64_t i = 0; i < options.layers; ++i) {
    layers->push_back(TransformerEncoderLayer(options, options.mixer(i)));
  }
  if (options.final_norm) {
    norm = LayerNorm(LayerNormOptions({options.d_model}).eps(options.norm_eps));
    register_module("norm", norm);
  }
}

Tensor TransformerEncoderImpl::forward(Tensor x, const Mask& mask) {
  for (const auto& module : *layers) {
    // Captured by value: Recompute() calls this again in the backward pass.
    const auto layer = [module, mask](const std::vector<Tensor>& in) {
      return module->as<TransformerEncoderLayer>()->forward(in[0], mask);
    };
    x = checkpoint_layers_ && is_training() ? Recompute(layer, {x}) : layer({x});
  }
  return norm.is_empty() ? x : norm(x);
}

bool TransformerEncoderImpl::recurrent() const {
  return std::all_of(layers->begin(), layers->end(), [](const auto& module) {
    const auto* layer = module->template as<TransformerEncoderLayer>();
    return layer->attention->recurrent();
  });
}

Tensor TransformerEncoderImpl::Piece(Tensor x, RecurrentState& state) {
  state.resize(layers->size());
  for (size_t i = 0; i < layers->size(); ++i) {
    x = layers[i]->as<TransformerEncoderLayer>()->Piece(x, state[i]);
  }
  return norm.is_empty() ? x : norm(x);
}

RecurrentTransformerEncoderImpl::RecurrentTransformerEncoderImpl(TransformerEncoder encoder)
    : encoder_(std::move(encoder)) {
  register_module("encoder", encoder_);
}

Tensor RecurrentTransformerEncoderImpl::forward(Tensor x, RecurrentState& state) {
  state.resize(encoder_->layers->size());
  for (size_t i = 0; i < encoder_->layers->size(); ++i) {
    x = encoder_->layers[i]->as<TransformerEncoderLayer>()->Step(x, state[i]);
  }
  return encoder_->norm.is_empty() ? x : encoder_->norm(x);
}

Transformer BuildTransformer(const TransformerOptions& options) {
  Transformer built;
  built.batch = TransformerEncoder(options);
  if (built.batch->recurrent()) built.recurrent = RecurrentTransformerEncoder(built.batch);
  return built;
}

}  // namespace linnet::nn
