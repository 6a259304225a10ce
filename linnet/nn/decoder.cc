#include "linnet/nn/decoder.h"

#include <torch/types.h>

#include "linnet/error.h"
#include "linnet/nn/recompute.h"

namespace linnet::nn {

using torch::Tensor;

TransformerDecoderLayerImpl::TransformerDecoderLayerImpl(const TransformerOptions& options,
                                                         const MixerSpec& self,
                                                         const MixerSpec& cross)
    : parts_(options),
      self_attention(options, self),
      cross_attention(options, cross),
      gate(parts_.MakeGate()),
      linear1(parts_.MakeIn()),
      linear2(parts_.MakeOut()),
      norm1(parts_.MakeNorm()),
      norm2(parts_.MakeNorm()),
      norm3(parts_.MakeNorm()) {
  if (linear1.is_empty()) throw InputError("a decoder needs feed-forward blocks");
  if (parts_.MakeShift().defined()) {
    throw InputError("a decoder's feed-forward blocks have no token shift; choose mlp or gated");
  }
  if (!cross_attention->cross()) {
    throw InputError("a decoder cannot attend to its memory with attention '", cross.kind,
                     "', which needs keys at the queries' positions; choose linear or full");
  }
  register_module("self_attention", self_attention);
  register_module("cross_attention", cross_attention);
  if (!gate.is_empty()) register_module("gate", gate);
  register_module("linear1", linear1);
  register_module("linear2", linear2);
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("norm3", norm3);
  register_module("dropout", parts_.dropout());
}

Tensor TransformerDecoderLayerImpl::forward(const Tensor& x, const Tensor& memory,
                                            const Mask& self_mask, const Mask& memory_mask) {
  const Tensor own = self_attention->Attend(x, parts_.Before(norm1), self_mask);
  const Tensor y = parts_.Project(x, own, *self_attention, norm1);
  const Tensor seen = cross_attention->AttendTo(memory, y, parts_.Before(norm2), memory_mask);
  return parts_.FeedForward(parts_.Project(y, seen, *cross_attention, norm2), gate, linear1,
                            linear2, norm3);
}

Tensor TransformerDecoderLayerImpl::Step(const Tensor& x, MixerState& self,
                                         const MixerState& cross) {
  const Tensor own = self_attention->AttendStep(x, parts_.Before(norm1), self);
  const Tensor y = parts_.Project(x, own, *self_attention, norm1);
  const Tensor seen = cross_attention->AttendToState(cross, y, parts_.Before(norm2));
  return parts_.FeedForward(parts_.Project(y, seen, *cross_attention, norm2), gate, linear1,
                            linear2, norm3);
}

TransformerDecoderImpl::TransformerDecoderImpl(const DecoderOptions& options)
    : checkpoint_layers_(options.transformer.checkpoint_layers) {
  Validate(options.transformer);
  register_module("layers", layers);
  for (int64_t i = 0; i < options.transformer.layers; ++i) {
    layers->push_back(TransformerDecoderLayer(options.transformer, options.transformer.mixer(i),
                                              options.cross_mixer(i)));
  }
  if (options.transformer.final_norm) {
    norm = LayerParts(options.transformer).MakeNorm();
    register_module("norm", norm);
  }
}

Tensor TransformerDecoderImpl::forward(Tensor x, const Tensor& memory, const Mask& memory_mask,
                                       const Tensor& lengths) {
  if (memory_mask.causal) {
    throw InputError("a decoder's attention over its memory takes no causal mask");
  }
  const Mask self_mask{.causal = true, .lengths = lengths};
  for (const auto& module : *layers) {
    // Captures by value, because Recompute() calls this lambda again in the backward pass.
    const auto layer = [module, self_mask, memory_mask](const std::vector<Tensor>& in) {
      return module->as<TransformerDecoderLayer>()->forward(in[0], in[1], self_mask, memory_mask);
    };
    x = checkpoint_layers_ && is_training() ? Recompute(layer, {x, memory}) : layer({x, memory});
  }
  return norm.is_empty() ? x : norm(x);
}

RecurrentTransformerDecoderImpl::RecurrentTransformerDecoderImpl(TransformerDecoder decoder)
    : decoder_(std::move(decoder)) {
  register_module("decoder", decoder_);
}

DecoderState RecurrentTransformerDecoderImpl::Begin(const Tensor& memory, const Tensor& lengths) {
  DecoderState state;
  state.self.resize(decoder_->layers->size());
  state.cross.resize(decoder_->layers->size());
  for (size_t i = 0; i < state.cross.size(); ++i) {
    decoder_->layers[i]->as<TransformerDecoderLayer>()->cross_attention->Remember(memory, lengths,
                                                                                  state.cross[i]);
  }
  return state;
}

Tensor RecurrentTransformerDecoderImpl::forward(Tensor x, DecoderState& state) {
  if (state.cross.size() != decoder_->layers->size()) {
    throw InputError("this decoder state has no memory; create it with Begin(memory)");
  }
  for (size_t i = 0; i < state.cross.size(); ++i) {
    x = decoder_->layers[i]->as<TransformerDecoderLayer>()->Step(x, state.self[i], state.cross[i]);
  }
  return decoder_->norm.is_empty() ? x : decoder_->norm(x);
}

Decoder BuildDecoder(const DecoderOptions& options) {
  Decoder built;
  built.batch = TransformerDecoder(options);
  bool recurrent = true;
  for (const auto& module : *built.batch->layers) {
    const auto* layer = module->as<TransformerDecoderLayer>();
    recurrent =
        recurrent && layer->self_attention->recurrent() && layer->cross_attention->recurrent();
  }
  if (recurrent) built.recurrent = RecurrentTransformerDecoder(built.batch);
  return built;
}

}  // namespace linnet::nn
