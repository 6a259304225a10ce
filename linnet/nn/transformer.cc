#include "linnet/nn/transformer.h"

#include <torch/types.h>

#include "linnet/base/error.h"
#include "linnet/nn/recompute.h"

namespace linnet::nn {

using torch::Tensor;
using torch::nn::Dropout;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

AttentionLayerImpl::AttentionLayerImpl(const TransformerOptions& options)
    : query_projection(options.d_model, options.heads * options.query_dim),
      key_projection(options.d_model, options.heads * options.query_dim),
      value_projection(options.d_model, options.heads * options.value_dim),
      out_projection(options.heads * options.value_dim, options.d_model),
      heads_(options.heads),
      precision_(options.precision),
      attention_(MakeAttention(options.attention)) {
  register_module("inner_attention", attention_);
  register_module("query_projection", query_projection);
  register_module("key_projection", key_projection);
  register_module("value_projection", value_projection);
  register_module("out_projection", out_projection);
}

std::vector<Tensor> AttentionLayerImpl::Split(const Tensor& x, const ops::Norm& norm) const {
  std::vector<Tensor> qkv = ops::Linears(
      x, {query_projection->weight, key_projection->weight, value_projection->weight},
      {query_projection->bias, key_projection->bias, value_projection->bias}, precision_, norm);
  for (Tensor& part : qkv) part = part.unflatten(-1, {heads_, part.size(-1) / heads_});
  return qkv;
}

Tensor AttentionLayerImpl::Attend(const Tensor& x, const ops::Norm& norm, const Mask& mask) {
  const std::vector<Tensor> qkv = Split(x, norm);
  return attention_->forward(qkv[0], qkv[1], qkv[2], mask).flatten(2);
}

Tensor AttentionLayerImpl::AttendStep(RecurrentAttentionImpl& attention, const Tensor& x,
                                      const ops::Norm& norm, AttentionState& state) {
  const std::vector<Tensor> qkv = Split(x, norm);
  return attention.forward(qkv[0], qkv[1], qkv[2], state).flatten(1);
}

Tensor AttentionLayerImpl::forward(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                   const Mask& mask) {
  const auto project = [&](const Linear& projection, const Tensor& x) {
    const Tensor y = ops::Linear(x, projection->weight, projection->bias, precision_);
    return y.unflatten(-1, {heads_, y.size(-1) / heads_});
  };
  const Tensor out =
      attention_->forward(project(query_projection, queries), project(key_projection, keys),
                          project(value_projection, values), mask);
  return ops::Linear(out.flatten(2), out_projection->weight, out_projection->bias, precision_);
}

TransformerEncoderLayerImpl::TransformerEncoderLayerImpl(const TransformerOptions& options)
    : attention(options),
      linear1(options.d_model, options.d_ff),
      linear2(options.d_ff, options.d_model),
      norm1(LayerNormOptions({options.d_model}).eps(options.norm_eps)),
      norm2(LayerNormOptions({options.d_model}).eps(options.norm_eps)),
      norm_first_(options.norm_first),
      activation_(options.activation == "gelu" ? kernels::Activation::kGelu
                                               : kernels::Activation::kRelu),
      precision_(options.precision),
      dropout_(options.dropout) {
  if (options.activation != "gelu" && options.activation != "relu") {
    throw InputError("unknown activation '", options.activation, "'; choose relu or gelu");
  }
  register_module("attention", attention);
  register_module("linear1", linear1);
  register_module("linear2", linear2);
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("dropout", dropout_);
}

ops::Norm TransformerEncoderLayerImpl::Before(const LayerNorm& norm) const {
  if (!norm_first_) return {};
  return {norm->weight, norm->bias, norm->options.eps()};
}

ops::Norm TransformerEncoderLayerImpl::After(const LayerNorm& norm) const {
  if (norm_first_) return {};
  return {norm->weight, norm->bias, norm->options.eps()};
}

Tensor TransformerEncoderLayerImpl::forward(const Tensor& x, const Mask& mask) {
  return Finish(x, attention->Attend(x, Before(norm1), mask));
}

Tensor TransformerEncoderLayerImpl::Step(RecurrentAttentionImpl& recurrent, const Tensor& x,
                                         AttentionState& state) {
  return Finish(x, attention->AttendStep(recurrent, x, Before(norm1), state));
}

Tensor TransformerEncoderLayerImpl::Finish(const Tensor& x, const Tensor& attended) {
  const Linear& out = attention->out_projection;
  if (!is_training() || dropout_->options.p() == 0) {
    const Tensor y = ops::Project(attended, out->weight, out->bias, x, After(norm1), precision_);
    return ops::FeedForward(y, linear1->weight, linear1->bias, linear2->weight, linear2->bias,
                            {.activation = activation_,
                             .norm_before = Before(norm2),
                             .norm_after = After(norm2),
                             .precision = precision_});
  }
  // Dropout stands between what is fused otherwise.
  const auto add = [&](const Tensor& to, const Tensor& part, LayerNorm& norm) {
    const Tensor sum = to + dropout_(part);
    return norm_first_ ? sum : norm(sum);
  };
  const Tensor y = add(x, ops::Linear(attended, out->weight, out->bias, precision_), norm1);
  const Tensor hidden = ops::Linear(y, linear1->weight, linear1->bias, precision_, Before(norm2));
  const Tensor active = dropout_(ops::Activate(activation_, hidden));
  return add(y, ops::Linear(active, linear2->weight, linear2->bias, precision_), norm2);
}

TransformerEncoderImpl::TransformerEncoderImpl(const TransformerOptions& options)
    : checkpoint_layers_(options.checkpoint_layers) {
  register_module("layers", layers);
  for (int64_t i = 0; i < options.layers; ++i) layers->push_back(TransformerEncoderLayer(options));
  if (options.final_norm) {
    norm = LayerNorm(LayerNormOptions({options.d_model}).eps(options.norm_eps));
    register_module("norm", norm);
  }
}

Tensor TransformerEncoderImpl::forward(Tensor x, const Mask& mask) {
  for (const auto& module : *layers) {
    auto* layer = module->as<TransformerEncoderLayer>();
    if (checkpoint_layers_ && is_training()) {
      x = Recompute([layer, mask](const Tensor& in) { return layer->forward(in, mask); }, x);
    } else {
      x = layer->forward(x, mask);
    }
  }
  return norm.is_empty() ? x : norm(x);
}

RecurrentTransformerEncoderImpl::RecurrentTransformerEncoderImpl(TransformerEncoder encoder,
                                                                 const AttentionSpec& attention)
    : encoder_(std::move(encoder)) {
  register_module("encoder", encoder_);
  for (size_t i = 0; i < encoder_->layers->size(); ++i) {
    attention_.push_back(MakeRecurrentAttention(attention));
    register_module("attention" + std::to_string(i), attention_.back());
  }
}

Tensor RecurrentTransformerEncoderImpl::forward(Tensor x, RecurrentState& state) {
  state.resize(attention_.size());
  for (size_t i = 0; i < attention_.size(); ++i) {
    x = encoder_->layers[i]->as<TransformerEncoderLayer>()->Step(*attention_[i], x, state[i]);
  }
  return encoder_->norm.is_empty() ? x : encoder_->norm(x);
}

Transformer BuildTransformer(const TransformerOptions& options) {
  Transformer built;
  built.batch = TransformerEncoder(options);
  if (HasRecurrentForm(options.attention)) {
    built.recurrent = RecurrentTransformerEncoder(built.batch, options.attention);
  }
  return built;
}

}  // namespace linnet::nn
