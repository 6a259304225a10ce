// The transformer encoder, in its two forms over one set of weights. (The decoder, which also looks
// at an encoder's memory, is decoder.h.)
//
//   TransformerOptions options{.pattern = {{.kind = "full", .heads = 8, .query_dim = 16, ...}},
//                              .layers = 4, .d_model = 128, .d_ff = 512};
//   Transformer built = BuildTransformer(options);
//   y = built.batch->forward(x, Mask{.causal = true});        // x [N, L, d_model]
//   RecurrentState state;
//   y_t = built.recurrent->forward(x_t, state);               // x_t [N, d_model]
//   y = built.batch->Piece(x, state);                         // the next L positions at once
//
// Layers are post-norm, as in the reference library: x = LN1(x + attention(x)), then
// x = LN2(x + W2 act(W1 x)); or pre-norm: x = x + attention(LN1(x)), x = x + W2 act(W1 LN2(x)). A
// layer norm after the last one unless final_norm is false. Parameter names are the reference
// library's (layers.N.attention.query_projection.weight, ...).
#ifndef LINNET_NN_TRANSFORMER_H_
#define LINNET_NN_TRANSFORMER_H_

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "linnet/model/spec.h"
#include "linnet/nn/mixer.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::nn {

struct TransformerOptions {
  std::vector<MixerSpec> pattern = {MixerSpec()};  // of the layers, in turn
  int64_t layers = 1;
  int64_t d_model = 1, d_ff = 1;
  Activation activation = Activation::kRelu;
  bool norm_first = false;  // pre-norm layers
  // Positions that a depthwise convolution mixes in front of each layer's attention, x = LN(x + act(c(x)))
  // or, pre-norm, x = x + act(c(LN(x))): those around each position (an odd number) or, where the mask is
  // causal, the last ones. 0: none.
  int64_t convolution = 0;
  bool final_norm = true;
  double norm_eps = 1e-5;
  double dropout = 0;  // after attention, after the activation and after the feed-forward block
  ops::Precision precision = ops::Precision::kFp32;  // of the layers' matrix products
  // Keep only the layers' inputs for the backward pass, while training: in forward() of encoders and
  // decoders. Piece() and single steps keep everything.
  bool checkpoint_layers = false;

  const MixerSpec& mixer(int64_t layer) const {
    return pattern[static_cast<size_t>(layer) % pattern.size()];
  }
};

// Throws InputError on sizes that make no layer.
void Validate(const TransformerOptions& options);

// Projections to queries, keys and values, a mixer, a projection back. The Attend...() functions
// stop short of the projection back, which is fused with what follows it; n is a norm that
// stands before the attention, or none.
class AttentionLayerImpl : public torch::nn::Module {
 public:
  AttentionLayerImpl(const TransformerOptions& options, const MixerSpec& mixer);
  // queries [N, L, d_model], keys, values [N, S, d_model] -> [N, L, d_model]
  torch::Tensor forward(const torch::Tensor& queries, const torch::Tensor& keys,
                        const torch::Tensor& values, const Mask& mask);

  // Self attention of n(x): [N, L, d_model] -> [N, L, H M].
  torch::Tensor Attend(const torch::Tensor& x, const ops::Norm& norm, const Mask& mask);
  // The same for one position, [N, d_model] -> [N, H M], and for the next L, [N, L, d_model] ->
  // [N, L, H M].
  torch::Tensor AttendStep(const torch::Tensor& x, const ops::Norm& norm, MixerState& state);
  torch::Tensor AttendPiece(const torch::Tensor& x, const ops::Norm& norm, MixerState& state);

  // Attention of n(x) over a memory [N, S, d_model]: [N, L, d_model] -> [N, L, H M].
  torch::Tensor AttendTo(const torch::Tensor& memory, const torch::Tensor& x, const ops::Norm& norm,
                         const Mask& mask);
  // The same for one position: the memory goes into a state once, and is read from it.
  void Remember(const torch::Tensor& memory, const torch::Tensor& lengths, MixerState& state);
  torch::Tensor AttendToState(const MixerState& state, const torch::Tensor& x,
                              const ops::Norm& norm);

  bool recurrent() const { return mixer_->recurrent(); }
  bool cross() const { return mixer_->cross(); }

  torch::nn::Linear query_projection, key_projection, value_projection, out_projection;

 private:
  // Queries, keys and values of n(x), each [..., H, D or M].
  std::vector<torch::Tensor> Split(const torch::Tensor& x, const ops::Norm& norm) const;
  std::vector<torch::Tensor> Split(const torch::Tensor& x, const ops::Norm& norm,
                                   const std::vector<torch::nn::Linear>& projections) const;

  int64_t heads_;
  ops::Precision precision_;
  Mixer mixer_;
};
TORCH_MODULE(AttentionLayer);

// ops/dropout.h while training.
class DropoutImpl : public torch::nn::Module {
 public:
  explicit DropoutImpl(double p) : p_(p) {}
  torch::Tensor forward(const torch::Tensor& x) const;
  bool acts() const { return is_training() && p_ > 0; }

 private:
  double p_;
};
TORCH_MODULE(Dropout);

// See TransformerOptions::convolution.
class DepthwiseImpl : public torch::nn::Module {
 public:
  DepthwiseImpl(int64_t width, int64_t channels);
  torch::Tensor forward(const torch::Tensor& x, const Mask& mask);  // [N, L, channels] -> the same

  torch::Tensor weight, bias;  // [width, channels], [channels]
};
TORCH_MODULE(Depthwise);

// What the layers of encoders and decoders are made of, beside attention: x + f(x) with the norm
// where the options want it.
class LayerParts {
 public:
  explicit LayerParts(const TransformerOptions& options);

  torch::nn::Linear MakeIn() const;   // d_model -> d_ff
  torch::nn::Linear MakeOut() const;  // d_ff -> d_model
  torch::nn::LayerNorm MakeNorm() const;
  const Dropout& dropout() const { return dropout_; }

  // The norm where it stands before a block in such layers; none elsewhere.
  ops::Norm Before(const torch::nn::LayerNorm& norm) const;
  // x with what the convolution makes of it.
  torch::Tensor Mix(const torch::Tensor& x, Depthwise& convolution, torch::nn::LayerNorm& norm,
                    const Mask& mask);
  // The same of the next positions [N, L, d_model], behind the rows in `past`, which takes the last ones.
  torch::Tensor MixNext(const torch::Tensor& x, Depthwise& convolution, torch::nn::LayerNorm& norm,
                        torch::Tensor& past);
  // After an attention: its projection back, the residual, the norm.
  torch::Tensor Project(const torch::Tensor& x, const torch::Tensor& attended,
                        const torch::nn::Linear& out, torch::nn::LayerNorm& norm);
  // The feed-forward block with its residual and norm.
  torch::Tensor FeedForward(const torch::Tensor& x, const torch::nn::Linear& in,
                            const torch::nn::Linear& out, torch::nn::LayerNorm& norm);

 private:
  ops::Norm After(const torch::nn::LayerNorm& norm) const;
  torch::Tensor Add(const torch::Tensor& x, const torch::Tensor& part, torch::nn::LayerNorm& norm);

  int64_t d_model_, d_ff_;
  double norm_eps_;
  bool norm_first_;
  kernels::Activation activation_;
  ops::Precision precision_;
  Dropout dropout_;
};

class TransformerEncoderLayerImpl : public torch::nn::Module {
 private:
  LayerParts parts_;  // first: it makes what follows

 public:
  TransformerEncoderLayerImpl(const TransformerOptions& options, const MixerSpec& mixer);
  torch::Tensor forward(const torch::Tensor& x, const Mask& mask);  // [N, L, d_model] -> the same
  torch::Tensor Step(const torch::Tensor& x, MixerState& state);    // [N, d_model] -> the same
  torch::Tensor Piece(const torch::Tensor& x,
                      MixerState& state);  // [N, L, d_model] -> the same

  AttentionLayer attention;
  torch::nn::Linear linear1, linear2;
  torch::nn::LayerNorm norm1, norm2;
  Depthwise convolution = nullptr;  // null without one
  torch::nn::LayerNorm convolution_norm = nullptr;

 private:
  // What the convolution makes of the next positions; x without one.
  torch::Tensor MixNext(const torch::Tensor& x, MixerState& state);
  // What follows the attention, alike in every form.
  torch::Tensor Finish(const torch::Tensor& x, const torch::Tensor& attended);
};
TORCH_MODULE(TransformerEncoderLayer);

// A state a layer; empty at the beginning. A value: copying one forks the sequence.
using RecurrentState = std::vector<MixerState>;

class TransformerEncoderImpl : public torch::nn::Module {
 public:
  explicit TransformerEncoderImpl(const TransformerOptions& options);
  torch::Tensor forward(torch::Tensor x, const Mask& mask);  // [N, L, d_model] -> the same
  // The next L positions of sequences that began in earlier pieces; causal, with gradients through
  // the state. Throws InputError where a layer has no recurrent form.
  torch::Tensor Piece(torch::Tensor x, RecurrentState& state);

  bool recurrent() const;  // whether every layer has a recurrent form

  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm = nullptr;  // null without a final norm

 private:
  bool checkpoint_layers_;
};
TORCH_MODULE(TransformerEncoder);

// Causal self attention one position at a time. Holds the encoder that it was made from: there is one
// set of weights. Dropout applies as in the encoder (switch with eval()).
class RecurrentTransformerEncoderImpl : public torch::nn::Module {
 public:
  explicit RecurrentTransformerEncoderImpl(TransformerEncoder encoder);
  torch::Tensor forward(torch::Tensor x, RecurrentState& state);  // [N, d_model] -> the same

 private:
  TransformerEncoder encoder_;
};
TORCH_MODULE(RecurrentTransformerEncoder);

// Both forms of one description, sharing their weights. `recurrent` is null where a layer has
// none.
struct Transformer {
  TransformerEncoder batch = nullptr;
  RecurrentTransformerEncoder recurrent = nullptr;
};
Transformer BuildTransformer(const TransformerOptions& options);

}  // namespace linnet::nn

#endif  // LINNET_NN_TRANSFORMER_H_
