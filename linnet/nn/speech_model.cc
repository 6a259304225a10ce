#include "linnet/nn/speech_model.h"

#include <torch/utils.h>

#include <vector>

#include "linnet/error.h"
#include "linnet/ops/lstm.h"

namespace linnet::nn {

using torch::Tensor;

InputNormImpl::InputNormImpl(int64_t bands)
    : mean(register_buffer("mean", torch::zeros({bands}))),
      deviation(register_buffer("deviation", torch::ones({bands}))) {}

SpeechModelImpl::SpeechModelImpl(const ModelSpec& spec, const TrainingOptions& options)
    : Network(spec), predictor_(MakeHead(spec)), dropout_(options.dropout) {
  if (spec.speech()->normalization == BandNorm::kCorpus) {
    input_norm = InputNorm(spec.speech()->bands);
    register_module("input_norm", input_norm);
  }
  if (spec.lstm()) {
    lstm_ = torch::nn::LSTM(torch::nn::LSTMOptions(spec.speech()->Inputs(), spec.stack.d_model)
                                .num_layers(spec.stack.layers())
                                .bidirectional(true)
                                .batch_first(true));
    register_module("lstm", lstm_);
  } else {
    input_projection_ = torch::nn::Linear(spec.speech()->Inputs(), spec.input.value_embedding);
    register_module("input_projection", input_projection_);
    if (spec.input.value_embedding < spec.stack.d_model) {
      pos_embedding_ = PositionalEmbedding(spec);
      register_module("pos_embedding", pos_embedding_);
    }
    transformer_ = TransformerEncoder(OptionsOf(spec, options));
    register_module("transformer", transformer_);
  }
  register_module("predictor", predictor_);
  register_module("dropout", dropout_);
  to(options.device);
}

Tensor SpeechModelImpl::forward(const Tensor& frames, const Tensor& lengths) {
  if (frames.dim() != 3 || frames.size(2) != spec().speech()->Inputs()) {
    throw InputError("frames must be [N, L, ", spec().speech()->Inputs(), "]; got ",
                     frames.sizes());
  }
  CheckLengths("lengths", lengths, frames);
  const Tensor x = lstm_.is_empty() ? Encode(frames, lengths) : RunLstm(frames, lengths);
  return ops::Linear(x, predictor_->weight, BiasOf(predictor_), ops::Precision::kFp32);
}

Tensor SpeechModelImpl::Encode(const Tensor& frames, const Tensor& lengths) {
  if (frames.size(1) > spec().input.max_length) {
    throw InputError("an utterance of ", frames.size(1),
                     " positions is too long; the model's maximum is ", spec().input.max_length);
  }
  Tensor x = ops::Linear(frames, input_projection_->weight, input_projection_->bias,
                         ops::Precision::kFp32);
  if (!pos_embedding_.is_empty()) x = pos_embedding_->Place(x);
  return transformer_(dropout_(x), Mask{.causal = spec().Causal(), .lengths = lengths});
}

Tensor SpeechModelImpl::RunLstm(const Tensor& frames, const Tensor& lengths) {
  const auto parameters = lstm_->named_parameters();
  Tensor x = frames;
  for (int layer = 0; layer < spec().stack.layers(); ++layer) {
    std::vector<Tensor> directions;
    for (const bool backward : {false, true}) {
      const auto of = [&](const char* name) {
        return parameters[StrCat(name, "_l", layer, backward ? "_reverse" : "")];
      };
      directions.push_back(ops::Lstm(x, of("weight_ih"), of("weight_hh"), of("bias_ih"),
                                     of("bias_hh"), lengths, backward));
    }
    x = dropout_(torch::cat(directions, 2));
  }
  return x;
}

}  // namespace linnet::nn
