#include "linnet/nn/transformer.h"

#include <torch/types.h>

#include "linnet/base/error.h"

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

Tensor AttentionLayerImpl::Project(const Linear& projection, const Tensor& x) const {
  return ops::Linear(x, projection->weight, projection->bias, precision_);
}

Tensor AttentionLayerImpl::forward(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                   const Mask& mask) {
  const auto split = [&](const Tensor& x) { return x.view({x.size(0), x.size(1), heads_, -1}); };
  std::vector<Tensor> qkv;
  if (queries.is_same(keys) && queries.is_same(values)) {
    qkv = ops::Linears(
        queries, {query_projection->weight, key_projection->weight, value_projection->weight},
        {query_projection->bias, key_projection->bias, value_projection->bias}, precision_);
  } else {
    qkv = {Project(query_projection, queries), Project(key_projection, keys),
           Project(value_projection, values)};
  }
  const Tensor out = attention_->forward(split(qkv[0]), split(qkv[1]), split(qkv[2]), mask);
  return Project(out_projection, out.reshape({out.size(0), out.size(1), -1}));
}

Tensor AttentionLayerImpl::Step(RecurrentAttentionImpl& attention, const Tensor& x,
                                AttentionState& state) {
  const auto split = [&](const Tensor& y) { return y.view({y.size(0), heads_, -1}); };
  const Tensor out =
      attention.forward(split(Project(query_projection, x)), split(Project(key_projection, x)),
                        split(Project(value_projection, x)), state);
  return Project(out_projection, out.reshape({out.size(0), -1}));
}

TransformerEncoderLayerImpl::TransformerEncoderLayerImpl(const TransformerOptions& options)
    : attention(options),
      linear1(options.d_model, options.d_ff),
      linear2(options.d_ff, options.d_model),
      norm1(LayerNormOptions({options.d_model}).eps(options.norm_eps)),
      norm2(LayerNormOptions({options.d_model}).eps(options.norm_eps)),
      gelu_(options.activation == "gelu"),
      precision_(options.precision),
      dropout_(options.dropout) {
  if (!gelu_ && options.activation != "relu") {
    throw InputError("unknown activation '", options.activation, "'; choose relu or gelu");
  }
  register_module("attention", attention);
  register_module("linear1", linear1);
  register_module("linear2", linear2);
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("dropout", dropout_);
}

Tensor TransformerEncoderLayerImpl::forward(const Tensor& x, const Mask& mask) {
  return Finish(x, attention->forward(x, x, x, mask));
}

Tensor TransformerEncoderLayerImpl::Step(RecurrentAttentionImpl& recurrent, const Tensor& x,
                                         AttentionState& state) {
  return Finish(x, attention->Step(recurrent, x, state));
}

Tensor TransformerEncoderLayerImpl::Finish(const Tensor& x, const Tensor& attended) {
  const Tensor y = norm1(x + dropout_(attended));
  // What lies between the two products stays in their precision.
  const torch::Dtype between =
      precision_ == ops::Precision::kBf16 ? torch::kBFloat16 : torch::kFloat32;
  const Tensor hidden = ops::Linear(y, linear1->weight, linear1->bias, precision_, between);
  const Tensor active = dropout_(gelu_ ? torch::gelu(hidden) : torch::relu(hidden));
  return norm2(y + dropout_(ops::Linear(active, linear2->weight, linear2->bias, precision_)));
}

TransformerEncoderImpl::TransformerEncoderImpl(const TransformerOptions& options) {
  register_module("layers", layers);
  for (int64_t i = 0; i < options.layers; ++i) layers->push_back(TransformerEncoderLayer(options));
  if (options.final_norm) {
    norm = LayerNorm(LayerNormOptions({options.d_model}).eps(options.norm_eps));
    register_module("norm", norm);
  }
}

Tensor TransformerEncoderImpl::forward(Tensor x, const Mask& mask) {
  for (const auto& layer : *layers) x = layer->as<TransformerEncoderLayer>()->forward(x, mask);
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
