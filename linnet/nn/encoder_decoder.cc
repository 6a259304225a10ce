#include "linnet/nn/encoder_decoder.h"

#include <torch/types.h>

#include <cmath>

#include "linnet/error.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

// Options of the encoder, whose layers are bidirectional.
TransformerOptions EncoderOptions(const ModelSpec& spec, const TrainingOptions& options) {
  TransformerOptions encoder = OptionsOf(spec, options);
  for (MixerSpec& mixer : encoder.pattern) mixer = CrossMixer(mixer);
  return encoder;
}

}  // namespace

EncoderDecoderImpl::EncoderDecoderImpl(const ModelSpec& spec, const TrainingOptions& options)
    : Network(spec),
      encoder_(BuildTransformer(EncoderOptions(spec, options))),
      decoder_(BuildDecoder({.transformer = OptionsOf(spec, options)})),
      predictor_(MakeHead(spec)),
      dropout_(options.dropout),
      head_precision_(HeadPrecision(spec, options)) {
  if (!spec.head.tied) {
    value_embedding_ = torch::nn::Embedding(spec.input.vocabulary, spec.input.value_embedding);
    register_module("value_embedding", value_embedding_);
  }
  if (spec.PositionDims() > 0) {
    pos_embedding_ = PositionalEmbedding(spec);
    register_module("pos_embedding", pos_embedding_);
  }
  register_module("encoder", encoder_.batch);
  register_module("decoder", decoder_.batch);
  register_module("predictor", predictor_);
  register_module("dropout", dropout_);
  to(options.device);
}

Tensor EncoderDecoderImpl::Embed(const Tensor& tokens) {
  if (tokens.size(1) > spec().input.max_length) {
    throw InputError("a line of ", tokens.size(1), " tokens is longer than the model's ",
                     spec().input.max_length, " positions");
  }
  Tensor x = spec().head.tied
                 ? torch::embedding(predictor_->weight, tokens) * std::sqrt(spec().stack.d_model)
                 : value_embedding_(tokens);
  if (!pos_embedding_.is_empty()) x = pos_embedding_->Place(x);
  return dropout_(x);
}

Tensor EncoderDecoderImpl::Hidden(const Tensor& first, const Tensor& lengths,
                                  const Tensor& second) {
  const Mask seen{.lengths = lengths};
  const Tensor memory = encoder_.batch(Embed(first), seen);
  return decoder_.batch->forward(Embed(second), memory, seen);
}

Tensor EncoderDecoderImpl::Predict(const Tensor& x) {
  return ops::Linear(x, predictor_->weight, BiasOf(predictor_), head_precision_);
}

Tensor EncoderDecoderImpl::forward(const Tensor& first, const Tensor& lengths,
                                   const Tensor& second) {
  return Predict(Hidden(first, lengths, second));
}

Tensor EncoderDecoderImpl::At(const Tensor& first, const Tensor& lengths, const Tensor& second,
                              const Tensor& rows) {
  return Predict(Hidden(first, lengths, second).flatten(0, 1).index_select(0, rows));
}

}  // namespace linnet::nn
