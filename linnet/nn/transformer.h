// The transformer encoder: a batch form and a recurrent form that share one set of weights.
// decoder.h has the decoder, which also attends to an encoder's memory.
//
//   TransformerOptions options{.pattern = {{.kind = "full", .heads = 8, .query_dim = 16, ...}},
//                              .layers = 4, .d_model = 128, .d_ff = 512};
//   Transformer built = BuildTransformer(options);
//   y = built.batch->forward(x, Mask{.causal = true});        // x [N, L, d_model]
//   RecurrentState state;
//   y_t = built.recurrent->forward(x_t, state);               // x_t [N, d_model]
//   y = built.batch->Piece(x, state);                         // the next L positions at once
//
// Layers are post-norm, as in fast-transformers (x = LN1(x + attention(x)), then
// x = LN2(x + W2 act(W1 x))), or pre-norm (x = x + attention(LN1(x)), x = x + W2 act(W1 LN2(x))). A
// norm follows the last layer unless final_norm is false. Parameter names are those of
// fast-transformers (layers.N.attention.query_projection.weight, ...). The norms may be RMS norms.
// The feed-forward block may be gated, W2 (silu(Wg x) * W1 x), with Wg = layers.N.gate.weight, or
// shifted, W2 max(W1 (x + (previous x - x) * shift), 0)^2, with shift = layers.N.shift.
#ifndef LINNET_NN_TRANSFORMER_H_
#define LINNET_NN_TRANSFORMER_H_

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "linnet/model/spec.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/norm.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::nn {

struct TransformerOptions {
  std::vector<MixerSpec> pattern = {MixerSpec()};  // layer i uses pattern[i mod size]
  int64_t layers = 1;
  int64_t d_model = 1, d_ff = 1;
  FeedForwardKind feed_forward = FeedForwardKind::kMlp;
  Activation activation = Activation::kRelu;
  NormKind norm = NormKind::kLayer;
  bool norm_first = false;  // pre-norm layers
  // Width of a depthwise convolution c before each layer's attention, in positions:
  // x = LN(x + act(c(x))) or, pre-norm, x = x + act(c(LN(x))). The window is centered on the
  // position (odd width) or, under a causal mask, ends with it. 0: no convolution.
  int64_t convolution = 0;
  bool final_norm = true;
  double norm_eps = 1e-5;
  // Probability of dropout after the convolution, the attention, the feed-forward block's
  // activation and its output.
  double dropout = 0;
  ops::Precision precision = ops::Precision::kFp32;  // of the layers' matrix products
  // While training, forward() of encoders and decoders keeps only the layers' inputs for the
  // backward pass (see Recompute()). Piece() and single steps keep all intermediates.
  bool checkpoint_layers = false;

  const MixerSpec& mixer(int64_t layer) const {
    return pattern[static_cast<size_t>(layer) % pattern.size()];
  }
};

// The rows that a token shift mixes into x: x [N, L, d] moved by one position. Row t is row t - 1
// of x, and row 0 is *last [N, d], or zeros if `last` is null or *last is undefined. Then sets
// *last, if given, to the last row of x.
torch::Tensor ShiftedRows(const torch::Tensor& x, torch::Tensor* last);

// The layer's bias, or zeros if it has none.
torch::Tensor BiasOf(const torch::nn::Linear& linear);

// Throws InputError if a size or the dropout is out of range, or if the pattern is empty.
void Validate(const TransformerOptions& options);

// The projections that a mixer reads (queries, keys and values; for some kinds more), the mixer,
// and the output projection. Parameters have the same names as in checkpoints. The Attend...()
// functions omit the output projection, which is fused with the next operation. Below, n is `norm`,
// the norm before the attention, or the identity if `norm` is undefined.
class AttentionLayerImpl : public torch::nn::Module {
 public:
  AttentionLayerImpl(const TransformerOptions& options, const MixerSpec& mixer);
  // queries [N, L, d_model], keys, values [N, S, d_model] -> [N, L, d_model]
  torch::Tensor forward(const torch::Tensor& queries, const torch::Tensor& keys,
                        const torch::Tensor& values, const Mask& mask);

  // Self attention of n(x): [N, L, d_model] -> [N, L, H M]. *carried [N, L, columns] passes columns
  // of a projection from layer to layer (ProjectionInfo::carries). On entry it holds the columns of
  // the latest earlier layer with such a projection. This layer may read or replace them. `carried`
  // is null if the layer is used alone.
  torch::Tensor Attend(const torch::Tensor& x, const ops::Norm& norm, const Mask& mask,
                       torch::Tensor* carried = nullptr);
  // The same for one position: [N, d_model] -> [N, H M].
  torch::Tensor AttendStep(const torch::Tensor& x, const ops::Norm& norm, MixerState& state,
                           torch::Tensor* carried = nullptr);
  // The same for the next L positions: [N, L, d_model] -> [N, L, H M].
  torch::Tensor AttendPiece(const torch::Tensor& x, const ops::Norm& norm, MixerState& state,
                            torch::Tensor* carried = nullptr);

  // Attention of n(x) over a memory [N, S, d_model]: [N, L, d_model] -> [N, L, H M].
  torch::Tensor AttendTo(const torch::Tensor& memory, const torch::Tensor& x, const ops::Norm& norm,
                         const Mask& mask);
  // Stores a memory in `state`; see MixerImpl::Remember().
  void Remember(const torch::Tensor& memory, const torch::Tensor& lengths, MixerState& state);
  // AttendTo() for one position, [N, d_model] -> [N, H M], over the memory stored in `state`.
  torch::Tensor AttendToState(const MixerState& state, const torch::Tensor& x,
                              const ops::Norm& norm);

  bool recurrent() const { return mixer_->recurrent(); }
  bool cross() const { return mixer_->cross(); }
  bool carries() const;  // whether the layer replaces *carried

  const torch::nn::Linear& out_projection() const { return out_; }  // [..., H M] -> [..., d_model]

 private:
  // Projections [begin, end) of n(x), each [..., H, width] or, if all heads share it, [..., width].
  std::vector<torch::Tensor> Split(const torch::Tensor& x, const ops::Norm& norm, size_t begin,
                                   size_t end) const;

  // All tensors that the mixer reads for x [N, L, d_model]: the projections of n(x) and of its
  // token shifts, and the carried columns. last as in ShiftedRows().
  std::vector<torch::Tensor> Read(const torch::Tensor& x, const ops::Norm& norm,
                                  torch::Tensor* last, torch::Tensor* carried) const;
  // The projections. Each reads x or its own token shift of x.
  std::vector<torch::Tensor> Shifted(const torch::Tensor& x, torch::Tensor* last) const;

  // [..., H width] -> [..., H, width]. Joins the parts of each head if the columns form several
  // blocks (ProjectionInfo::blocks).
  static torch::Tensor Heads(const torch::Tensor& x, const ProjectionInfo& info);

  std::vector<ProjectionInfo> infos_;            // MixerProjections()
  std::vector<torch::nn::Linear> projections_;   // null for carried columns
  std::map<std::string, torch::Tensor> shifts_;  // parameters of token shifts, [d_model] each
  torch::nn::Linear out_ = nullptr;
  bool plain_ = true;  // no token shifts and no carried columns
  int64_t heads_, value_dim_;
  ops::Precision precision_;
  Mixer mixer_;
};
TORCH_MODULE(AttentionLayer);

// Applies ops::Dropout() while training; the identity otherwise.
class DropoutImpl : public torch::nn::Module {
 public:
  explicit DropoutImpl(double p) : p_(p) {}
  torch::Tensor forward(const torch::Tensor& x) const;
  bool acts() const { return is_training() && p_ > 0; }

 private:
  double p_;
};
TORCH_MODULE(Dropout);

// The depthwise convolution c of TransformerOptions::convolution.
class DepthwiseImpl : public torch::nn::Module {
 public:
  DepthwiseImpl(int64_t width, int64_t channels);
  torch::Tensor forward(const torch::Tensor& x, const Mask& mask);  // [N, L, channels] -> the same

  torch::Tensor weight, bias;  // [width, channels], [channels]
};
TORCH_MODULE(Depthwise);

// The parts shared by encoder and decoder layers, except attention: residual blocks x + f(x), with
// the norm before or after the block, as TransformerOptions::norm_first says.
class LayerParts {
 public:
  explicit LayerParts(const TransformerOptions& options);

  // The feed-forward block's linear layers; null without such a block.
  torch::nn::Linear MakeGate() const;  // d_model -> d_ff; null unless feed_forward is kGated
  torch::nn::Linear MakeIn() const;    // d_model -> d_ff
  torch::nn::Linear MakeOut() const;   // d_ff -> d_model
  torch::Tensor MakeShift() const;     // [d_model]; undefined unless feed_forward is kShifted
  Norm MakeNorm() const;
  Norm MakeFeedForwardNorm() const {
    return feed_forward_ == FeedForwardKind::kNone ? Norm(nullptr) : MakeNorm();
  }
  const Dropout& dropout() const { return dropout_; }

  // The norm before a block: `norm` in pre-norm layers, an undefined norm in post-norm layers.
  ops::Norm Before(const Norm& norm) const;
  // The convolution block with its residual and norm: [N, L, d_model] -> the same.
  torch::Tensor Mix(const torch::Tensor& x, Depthwise& convolution, Norm& norm, const Mask& mask);
  // The same for the next positions x [N, L, d_model] of a causal sequence. `past` holds the last
  // width - 1 rows that the convolution has read, [N, width - 1, d_model], and is updated;
  // undefined at the beginning.
  torch::Tensor MixNext(const torch::Tensor& x, Depthwise& convolution, Norm& norm,
                        torch::Tensor& past);
  // The end of an attention block: output projection, residual, norm.
  torch::Tensor Project(const torch::Tensor& x, const torch::Tensor& attended,
                        const AttentionLayerImpl& attention, Norm& norm);
  // The feed-forward block with its residual and norm; `gate` may be null. Returns x if the layer
  // has no such block (`in` is null).
  torch::Tensor FeedForward(const torch::Tensor& x, const torch::nn::Linear& gate,
                            const torch::nn::Linear& in, const torch::nn::Linear& out, Norm& norm);
  // The feed-forward block with a token shift: x [N, L, d_model]; last as in ShiftedRows().
  torch::Tensor ShiftedFeedForward(const torch::Tensor& x, const torch::Tensor& shift,
                                   const torch::nn::Linear& in, const torch::nn::Linear& out,
                                   Norm& norm, torch::Tensor* last);

 private:
  torch::Tensor GatedFeedForward(const torch::Tensor& x, const torch::nn::Linear& gate,
                                 const torch::nn::Linear& in, const torch::nn::Linear& out,
                                 Norm& norm);
  // The rest of a gated or shifted feed-forward block after its hidden units: W2, residual and
  // norm.
  torch::Tensor FromHidden(const torch::Tensor& x, const torch::Tensor& hidden,
                           const torch::nn::Linear& out, Norm& norm);
  // The norm after a block: `norm` in post-norm layers, an undefined norm in pre-norm layers.
  ops::Norm After(const Norm& norm) const;
  // x + dropout(part), followed by the norm in post-norm layers.
  torch::Tensor Add(const torch::Tensor& x, const torch::Tensor& part, Norm& norm);

  int64_t d_model_, d_ff_;
  NormKind norm_;
  double norm_eps_;
  bool norm_first_;
  FeedForwardKind feed_forward_;
  kernels::Activation activation_;
  ops::Precision precision_;
  Dropout dropout_;
};

class TransformerEncoderLayerImpl : public torch::nn::Module {
 private:
  // The constructor creates the members below from parts_, so parts_ must be declared first.
  LayerParts parts_;

 public:
  TransformerEncoderLayerImpl(const TransformerOptions& options, const MixerSpec& mixer);
  // [N, L, d_model] -> the same; Step() [N, d_model] -> the same. carried: see AttentionLayerImpl.
  torch::Tensor forward(const torch::Tensor& x, const Mask& mask, torch::Tensor* carried = nullptr);
  torch::Tensor Step(const torch::Tensor& x, MixerState& state, torch::Tensor* carried = nullptr);
  torch::Tensor Piece(const torch::Tensor& x, MixerState& state, torch::Tensor* carried = nullptr);
  // The output of the layer's attention, output projection included, before the residual is added.
  // x is the layer's input: [N, L, d_model] -> the same.
  torch::Tensor Attended(const torch::Tensor& x, const Mask& mask,
                         torch::Tensor* carried = nullptr);

  AttentionLayer attention;
  torch::nn::Linear gate, linear1, linear2;  // null, like norm2, if LayerParts makes none
  torch::Tensor shift;                       // of the feed-forward block, or undefined
  Norm norm1, norm2;
  Depthwise convolution = nullptr;  // null without a convolution
  Norm convolution_norm = nullptr;

 private:
  // The convolution block over the whole sequence; x if the layer has no convolution.
  torch::Tensor Mixed(const torch::Tensor& x, const Mask& mask);
  // The convolution block over the next positions.
  torch::Tensor MixNext(const torch::Tensor& x, MixerState& state);
  // The rest of the layer after the attention, shared by all forms; last as in ShiftedRows().
  torch::Tensor Finish(const torch::Tensor& x, const torch::Tensor& attended, torch::Tensor* last);
};
TORCH_MODULE(TransformerEncoderLayer);

// One state per layer, empty at the beginning. A copy is independent and continues the sequence on
// its own.
using RecurrentState = std::vector<MixerState>;

// Passes the states of layers between pieces of a sequence that are computed elsewhere.
class PieceExchange {
 public:
  virtual ~PieceExchange() = default;
  // Before(): sets the state in which the layer begins its piece. After(): gets the state in which
  // it has ended it.
  virtual void Before(size_t layer, MixerState& state) = 0;
  virtual void After(size_t layer, MixerState& state) = 0;
};

class TransformerEncoderImpl : public torch::nn::Module {
 public:
  explicit TransformerEncoderImpl(const TransformerOptions& options);
  torch::Tensor forward(torch::Tensor x, const Mask& mask);  // [N, L, d_model] -> the same
  // The outputs for the next L positions of sequences whose earlier pieces are in `state`: causal,
  // with gradients through the state. [N, L, d_model] -> the same. Throws InputError unless
  // recurrent(). `exchange`, unless null, is called before and after each layer.
  torch::Tensor Piece(torch::Tensor x, RecurrentState& state, PieceExchange* exchange = nullptr);

  bool recurrent() const;  // whether every layer has a recurrent form

  torch::nn::ModuleList layers;
  Norm norm = nullptr;  // null without a final norm
  // Called by forward() for each layer with its index and input; may be null.
  std::function<void(size_t layer, const torch::Tensor& x, const Mask& mask)> observer;

 private:
  bool checkpoint_layers_;
};
TORCH_MODULE(TransformerEncoder);

// The encoder with causal self attention, one position at a time. It holds the encoder that it was
// made from, so both share one set of weights. Dropout applies unless the encoder is in evaluation
// mode (eval()).
class RecurrentTransformerEncoderImpl : public torch::nn::Module {
 public:
  explicit RecurrentTransformerEncoderImpl(TransformerEncoder encoder);
  torch::Tensor forward(torch::Tensor x, RecurrentState& state);  // [N, d_model] -> the same

 private:
  TransformerEncoder encoder_;
};
TORCH_MODULE(RecurrentTransformerEncoder);

// The batch form and the recurrent form of one encoder, with shared weights. `recurrent` is null if
// a layer has no recurrent form.
struct Transformer {
  TransformerEncoder batch = nullptr;
  RecurrentTransformerEncoder recurrent = nullptr;
};
Transformer BuildTransformer(const TransformerOptions& options);

}  // namespace linnet::nn

#endif  // LINNET_NN_TRANSFORMER_H_
