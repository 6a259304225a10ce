// The transformer decoder: causal self attention, then attention over an encoder's outputs (the
// memory). A batch form and a recurrent form share one set of weights.
//
//   DecoderOptions options{.transformer = {.layers = 4, .d_model = 128, ...}};  // linear attention
//   Decoder built = BuildDecoder(options);
//   y = built.batch->forward(x, memory, Mask{.lengths = memory_lengths});   // x [N, L, d_model]
//   DecoderState state = built.recurrent->Begin(memory, memory_lengths);    // memory is read once
//   y_t = built.recurrent->forward(x_t, state);                             // x_t [N, d_model]
//
// Layers are post-norm, as in fast-transformers, or pre-norm. Post-norm: x = LN1(x + self(x)),
// x = LN2(x + cross(x, memory)), x = LN3(x + W2 act(W1 x)). Parameter names are those of
// fast-transformers (layers.N.self_attention..., layers.N.cross_attention..., layers.N.norm3...).
#ifndef LINNET_NN_DECODER_H_
#define LINNET_NN_DECODER_H_

#include <vector>

#include "linnet/nn/transformer.h"

namespace linnet::nn {

struct DecoderOptions {
  TransformerOptions transformer;  // its pattern gives the mixers of the self attention
  // Mixers of the attention over the memory: layer i uses cross[i mod cross.size()]. Each must
  // support cross attention (MixerImpl::cross()). If the vector is empty, each layer uses the mixer
  // that CrossMixer() (model/mixer.h) returns for its self attention.
  std::vector<MixerSpec> cross = {};

  MixerSpec cross_mixer(int64_t layer) const {
    return cross.empty() ? CrossMixer(transformer.mixer(layer))
                         : cross[static_cast<size_t>(layer) % cross.size()];
  }
};

class TransformerDecoderLayerImpl : public torch::nn::Module {
 private:
  // The constructor creates the members below from parts_, so parts_ must be declared first.
  LayerParts parts_;

 public:
  TransformerDecoderLayerImpl(const TransformerOptions& options, const MixerSpec& self,
                              const MixerSpec& cross);
  // x [N, L, d_model], memory [N, S, d_model] -> [N, L, d_model]
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& memory, const Mask& self_mask,
                        const Mask& memory_mask);
  // x [N, d_model] -> [N, d_model]
  torch::Tensor Step(const torch::Tensor& x, MixerState& self, const MixerState& cross);

  AttentionLayer self_attention, cross_attention;
  torch::nn::Linear gate, linear1, linear2;  // gate: null except for FeedForwardKind::kGated
  Norm norm1, norm2, norm3;
};
TORCH_MODULE(TransformerDecoderLayer);

class TransformerDecoderImpl : public torch::nn::Module {
 public:
  // Throws InputError on invalid options.
  explicit TransformerDecoderImpl(const DecoderOptions& options);
  // x [N, L, d_model], memory [N, S, d_model] -> [N, L, d_model]. Self attention is causal.
  // `lengths` (int64 [N], or undefined) are the lengths of the sequences in x; `memory_mask` masks
  // the memory's positions.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& memory, const Mask& memory_mask = {},
                        const torch::Tensor& lengths = {});

  torch::nn::ModuleList layers;
  Norm norm = nullptr;  // null without a final norm

 private:
  bool checkpoint_layers_;
};
TORCH_MODULE(TransformerDecoder);

// The state of a decoder: for each layer, the state of its self attention (self) and of its
// attention over the memory (cross). A copy is independent and continues the sequence on its own.
struct DecoderState {
  RecurrentState self, cross;
};

class RecurrentTransformerDecoderImpl : public torch::nn::Module {
 public:
  explicit RecurrentTransformerDecoderImpl(TransformerDecoder decoder);
  // The state before the first position. memory [N, S, d_model]; only the first lengths[n]
  // positions of sequence n count (all if `lengths` is undefined).
  DecoderState Begin(const torch::Tensor& memory, const torch::Tensor& lengths = {});
  torch::Tensor forward(torch::Tensor x, DecoderState& state);  // [N, d_model] -> the same

 private:
  TransformerDecoder decoder_;
};
TORCH_MODULE(RecurrentTransformerDecoder);

// The batch form and the recurrent form of one decoder, with shared weights. `recurrent` is null if
// the self or the cross attention of a layer has no recurrent form.
struct Decoder {
  TransformerDecoder batch = nullptr;
  RecurrentTransformerDecoder recurrent = nullptr;
};
Decoder BuildDecoder(const DecoderOptions& options);

}  // namespace linnet::nn

#endif  // LINNET_NN_DECODER_H_
