// The transformer decoder: causal self attention, then attention over an encoder's memory, in its two
// forms over one set of weights.
//
//   DecoderOptions options{.transformer = {.layers = 4, .d_model = 128, ...}};  // linear attention
//   Decoder built = BuildDecoder(options);
//   y = built.batch->forward(x, memory, Mask{.lengths = memory_lengths});   // x [N, L, d_model]
//   DecoderState state = built.recurrent->Begin(memory, memory_lengths);    // memory is read once
//   y_t = built.recurrent->forward(x_t, state);                             // x_t [N, d_model]
//
// Post-norm layers, as in the reference library: x = LN1(x + self(x)), x = LN2(x + cross(x, memory)),
// x = LN3(x + W2 act(W1 x)); or pre-norm. Parameter names are the reference library's
// (layers.N.self_attention..., layers.N.cross_attention..., layers.N.norm3...).
#ifndef LINNET_NN_DECODER_H_
#define LINNET_NN_DECODER_H_

#include <vector>

#include "linnet/nn/transformer.h"

namespace linnet::nn {

struct DecoderOptions {
  TransformerOptions transformer;  // its pattern is of the self attention
  // Attention over the memory, of the layers in turn: kinds whose keys may be other positions than
  // their queries. Empty: CrossMixer() of each layer's self attention.
  std::vector<MixerSpec> cross = {};

  MixerSpec cross_mixer(int64_t layer) const {
    return cross.empty() ? CrossMixer(transformer.mixer(layer))
                         : cross[static_cast<size_t>(layer) % cross.size()];
  }
};

class TransformerDecoderLayerImpl : public torch::nn::Module {
 private:
  LayerParts parts_;  // first: it makes what follows

 public:
  TransformerDecoderLayerImpl(const TransformerOptions& options, const MixerSpec& self,
                              const MixerSpec& cross);
  // x [N, L, d_model], memory [N, S, d_model] -> [N, L, d_model]
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& memory, const Mask& self_mask,
                        const Mask& memory_mask);
  // x [N, d_model] -> the same
  torch::Tensor Step(const torch::Tensor& x, MixerState& self, const MixerState& cross);

  AttentionLayer self_attention, cross_attention;
  torch::nn::Linear linear1, linear2;
  torch::nn::LayerNorm norm1, norm2, norm3;
};
TORCH_MODULE(TransformerDecoderLayer);

class TransformerDecoderImpl : public torch::nn::Module {
 public:
  // Throws InputError on options that make no decoder.
  explicit TransformerDecoderImpl(const DecoderOptions& options);
  // x [N, L, d_model], memory [N, S, d_model] -> [N, L, d_model]. Self attention is causal, and
  // `lengths` (int64 [N], or undefined) are those of x; `memory_mask` tells which of the memory's
  // positions count.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& memory, const Mask& memory_mask = {},
                        const torch::Tensor& lengths = {});

  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm = nullptr;  // null without a final norm

 private:
  bool checkpoint_layers_;
};
TORCH_MODULE(TransformerDecoder);

// What a decoder keeps of a sequence, and of the memory it looks at. A value: copying one forks the
// sequence.
struct DecoderState {
  RecurrentState self, cross;
};

class RecurrentTransformerDecoderImpl : public torch::nn::Module {
 public:
  explicit RecurrentTransformerDecoderImpl(TransformerDecoder decoder);
  // The state before the first position. memory [N, S, d_model]; of sequence n the first lengths[n]
  // positions count (all, where undefined).
  DecoderState Begin(const torch::Tensor& memory, const torch::Tensor& lengths = {});
  torch::Tensor forward(torch::Tensor x, DecoderState& state);  // [N, d_model] -> the same

 private:
  TransformerDecoder decoder_;
};
TORCH_MODULE(RecurrentTransformerDecoder);

// Both forms of one description, sharing their weights. `recurrent` is null where one of the
// layers has no such form.
struct Decoder {
  TransformerDecoder batch = nullptr;
  RecurrentTransformerDecoder recurrent = nullptr;
};
Decoder BuildDecoder(const DecoderOptions& options);

}  // namespace linnet::nn

#endif  // LINNET_NN_DECODER_H_
