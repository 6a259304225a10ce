#include "linnet/nn/transformer.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "linnet/error.h"
#include "linnet/nn/narrow_mixer.h"
#include "linnet/nn/recompute.h"
#include "linnet/nn/register_at.h"
#include "linnet/ops/depthwise.h"
#include "linnet/ops/dropout.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"

namespace linnet::nn {

using torch::Tensor;
using torch::nn::Linear;

namespace {

constexpr int64_t kMost = 1 << 20;

void CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw InputError("transformer: ", name, " is ", value, "; it must be between ", low, " and ",
                     high);
  }
}

// Total width of all heads' queries. Throws InputError if a size is out of range.
int64_t QueryWidth(const MixerSpec& mixer) {
  CheckRange("heads", mixer.heads, 1, kMost);
  CheckRange("query_dim", mixer.query_dim, 1, kMost);
  return int64_t{mixer.heads} * mixer.query_dim;
}
// The same for values.
int64_t ValueWidth(const MixerSpec& mixer) {
  CheckRange("value_dim", mixer.value_dim, 1, kMost);
  return int64_t{mixer.heads} * mixer.value_dim;
}

// The initial value of a token shift, which is the share of the previous position in each channel:
// from 1 in the first channel to 0 in the last.
Tensor InitialShift(int64_t d_model) { return 1 - torch::linspace(0, 1, d_model).sqrt(); }

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

Tensor ShiftedRows(const Tensor& x, Tensor* last) {
  const bool begun = last != nullptr && last->defined();
  const Tensor first = begun ? last->unsqueeze(1) : torch::zeros_like(x.narrow(1, 0, 1));
  const int64_t length = x.size(1);
  if (last != nullptr) *last = x.select(1, length - 1);
  return torch::cat({first, x.narrow(1, 0, length - 1)}, 1);
}

Tensor BiasOf(const Linear& linear) {
  return linear->bias.defined() ? linear->bias
                                : torch::zeros({linear->weight.size(0)}, linear->weight.options());
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
    : heads_(mixer.heads), value_dim_(mixer.value_dim), precision_(options.precision) {
  Validate(options);
  const int64_t values = (QueryWidth(mixer), ValueWidth(mixer));  // QueryWidth() only checks sizes
  linnet::Validate(mixer, mixer.query_dim, "attention");
  const MixerInfo info = FindMixer(mixer);
  infos_ = MixerProjections(mixer);
  const auto linear = [](int64_t in, int64_t out, bool bias) {
    return Linear(torch::nn::LinearOptions(in, out).bias(bias));
  };
  for (const ProjectionInfo& projection : infos_) {
    projections_.push_back(
        projection.carried
            ? Linear(nullptr)
            : linear(options.d_model, projection.Columns(mixer.heads), projection.bias));
    if (!projection.shift.empty()) shifts_[projection.shift] = InitialShift(options.d_model);
    plain_ = plain_ && projection.shift.empty() && !projection.carried;
  }
  out_ = linear(values, options.d_model, info.out_bias);
  mixer_ = MakeMixer(mixer);
  if (!info.tensors) register_module("inner_attention", mixer_);
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (!infos_[i].carried) RegisterAt(*this, infos_[i].name, projections_[i].ptr());
  }
  for (auto& [name, shift] : shifts_) register_parameter(name, shift);
  if (info.tensors) {
    for (const auto& item : mixer_->named_parameters()) RegisterAt(*this, item.key(), item.value());
  }
  register_module(info.out, out_);
}

std::vector<Tensor> AttentionLayerImpl::Split(const Tensor& x, const ops::Norm& norm, size_t begin,
                                              size_t end) const {
  std::vector<Tensor> weights, biases;
  std::vector<int64_t> widths;
  for (size_t i = begin; i < end; ++i) {
    weights.push_back(projections_[i]->weight);
    biases.push_back(BiasOf(projections_[i]));
    widths.push_back(weights.back().size(0));
  }
  std::vector<Tensor> parts;
  if (weights.size() <= 3) {
    parts = ops::Linears(x, weights, biases, precision_, norm);
  } else {
    parts = ops::Linear(x, torch::cat(weights), torch::cat(biases), precision_, norm)
                .split_with_sizes(widths, -1);
  }
  for (size_t i = begin; i < end; ++i) {
    if (!infos_[i].shared) parts[i - begin] = Heads(parts[i - begin], infos_[i]);
  }
  return parts;
}

std::vector<Tensor> AttentionLayerImpl::Read(const Tensor& x, const ops::Norm& norm, Tensor* last,
                                             Tensor* carried) const {
  std::vector<Tensor> parts =
      plain_ ? Split(x, norm, 0, infos_.size()) : Shifted(ops::Normalize(x, norm), last);
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].carries && carried != nullptr) *carried = parts[i].flatten(2);
    if (!infos_[i].carried) continue;
    if (carried == nullptr || !carried->defined()) {
      throw InputError("attention: ", infos_[i].name, " comes from an earlier layer, but no ",
                       "earlier layer provides it; the first layer must have value_rank 0");
    }
    parts.push_back(Heads(*carried, infos_[i]));
  }
  return parts;
}

std::vector<Tensor> AttentionLayerImpl::Shifted(const Tensor& x, Tensor* last) const {
  const Tensor step = ShiftedRows(x, last) - x;
  std::vector<Tensor> parts;
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].carried) continue;
    const Tensor in = infos_[i].shift.empty() ? x : x + step * shifts_.at(infos_[i].shift);
    const Tensor y = ops::Linear(in, projections_[i]->weight, BiasOf(projections_[i]), precision_);
    parts.push_back(infos_[i].shared ? y : Heads(y, infos_[i]));
  }
  return parts;
}

bool AttentionLayerImpl::carries() const {
  return std::any_of(infos_.begin(), infos_.end(),
                     [](const ProjectionInfo& info) { return info.carries; });
}

Tensor AttentionLayerImpl::Heads(const Tensor& x, const ProjectionInfo& info) {
  if (info.blocks == 1) return x.unflatten(-1, {x.size(-1) / info.width, info.width});
  const int64_t part = info.width / info.blocks;
  return x.unflatten(-1, {info.blocks, x.size(-1) / info.width, part})
      .transpose(-3, -2)
      .flatten(-2);
}

Tensor AttentionLayerImpl::Attend(const Tensor& x, const ops::Norm& norm, const Mask& mask,
                                  Tensor* carried) {
  const bool on_gpu = precision_ == ops::Precision::kBf16 && x.is_cuda() &&
                      x.scalar_type() == torch::kFloat32 && !ops::PlainGuard::asked();
  const auto* narrow = on_gpu ? dynamic_cast<const NarrowMixer*>(mixer_.get()) : nullptr;
  if (narrow == nullptr || !narrow->TakesBf16OnGpu(value_dim_, mask)) {
    return mixer_->Mix(Read(x, norm, nullptr, carried), mask).flatten(2);
  }
  std::vector<Tensor> weights, biases;
  for (const Linear& projection : projections_) {
    weights.push_back(projection->weight), biases.push_back(BiasOf(projection));
  }
  std::vector<Tensor> qkv = ops::NarrowLinears(x, weights, biases, norm);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = Heads(qkv[i], infos_[i]);
  return mixer_->Mix(qkv, mask).flatten(2);
}

Tensor AttentionLayerImpl::AttendStep(const Tensor& x, const ops::Norm& norm, MixerState& state,
                                      Tensor* carried) {
  if (plain_) return mixer_->MixStep(Split(x, norm, 0, infos_.size()), state).flatten(1);
  return AttendPiece(x.unsqueeze(1), norm, state, carried).squeeze(1);
}

Tensor AttentionLayerImpl::AttendPiece(const Tensor& x, const ops::Norm& norm, MixerState& state,
                                       Tensor* carried) {
  return mixer_->MixPiece(Read(x, norm, &state.mixed_last, carried), state).flatten(2);
}

Tensor AttentionLayerImpl::AttendTo(const Tensor& memory, const Tensor& x, const ops::Norm& norm,
                                    const Mask& mask) {
  const Tensor q = Split(x, norm, 0, 1)[0];
  const std::vector<Tensor> kv = Split(memory, {}, 1, 3);
  return mixer_->forward(q, kv[0], kv[1], mask).flatten(2);
}

void AttentionLayerImpl::Remember(const Tensor& memory, const Tensor& lengths, MixerState& state) {
  const std::vector<Tensor> kv = Split(memory, {}, 1, 3);
  mixer_->Remember(kv[0], kv[1], lengths, state);
}

Tensor AttentionLayerImpl::AttendToState(const MixerState& state, const Tensor& x,
                                         const ops::Norm& norm) {
  return mixer_->Recall(Split(x, norm, 0, 1)[0], state).flatten(1);
}

Tensor AttentionLayerImpl::forward(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                   const Mask& mask) {
  const Tensor out = mixer_->forward(Split(queries, {}, 0, 1)[0], Split(keys, {}, 1, 2)[0],
                                     Split(values, {}, 2, 3)[0], mask);
  return ops::Linear(out.flatten(2), out_->weight, BiasOf(out_), precision_);
}

LayerParts::LayerParts(const TransformerOptions& options)
    : d_model_((Validate(options), options.d_model)),
      d_ff_(options.d_ff),
      norm_(options.norm),
      norm_eps_(options.norm_eps),
      norm_first_(options.norm_first),
      feed_forward_(options.feed_forward),
      activation_(options.activation == Activation::kGelu ? kernels::Activation::kGelu
                                                          : kernels::Activation::kRelu),
      precision_(options.precision),
      dropout_(options.dropout) {}

Linear LayerParts::MakeGate() const {
  return feed_forward_ == FeedForwardKind::kGated ? MakeIn() : Linear(nullptr);
}
Linear LayerParts::MakeIn() const {
  if (feed_forward_ == FeedForwardKind::kNone) return nullptr;
  const bool bias = feed_forward_ == FeedForwardKind::kMlp;
  return Linear(torch::nn::LinearOptions(d_model_, d_ff_).bias(bias));
}
Linear LayerParts::MakeOut() const {
  if (feed_forward_ == FeedForwardKind::kNone) return nullptr;
  const bool bias = feed_forward_ == FeedForwardKind::kMlp;
  return Linear(torch::nn::LinearOptions(d_ff_, d_model_).bias(bias));
}
Tensor LayerParts::MakeShift() const {
  return feed_forward_ == FeedForwardKind::kShifted ? InitialShift(d_model_) : Tensor();
}
Norm LayerParts::MakeNorm() const { return Norm(d_model_, norm_, norm_eps_); }

ops::Norm LayerParts::Before(const Norm& norm) const {
  return norm_first_ ? norm->of() : ops::Norm{};
}

ops::Norm LayerParts::After(const Norm& norm) const {
  return norm_first_ ? ops::Norm{} : norm->of();
}

Tensor LayerParts::Add(const Tensor& x, const Tensor& part, Norm& norm) {
  const Tensor sum = x + dropout_(part);
  return norm_first_ ? sum : norm(sum);
}

Tensor LayerParts::Mix(const Tensor& x, Depthwise& convolution, Norm& norm, const Mask& mask) {
  const Tensor mixed = convolution(norm_first_ ? norm(x) : x, mask);
  return Add(x, ops::Activate(activation_, mixed), norm);
}

Tensor LayerParts::MixNext(const Tensor& x, Depthwise& convolution, Norm& norm, Tensor& past) {
  const Tensor read = norm_first_ ? norm(x) : x;
  const int64_t behind = convolution->weight.size(0) - 1, length = x.size(1);
  if (!past.defined()) past = torch::zeros({x.size(0), behind, x.size(2)}, read.options());
  const Tensor rows = torch::cat({past, read}, 1);
  past = rows.narrow(1, length, behind);
  const Tensor mixed = convolution(rows, Mask{.causal = true}).narrow(1, behind, length);
  return Add(x, ops::Activate(activation_, mixed), norm);
}

Tensor LayerParts::Project(const Tensor& x, const Tensor& attended,
                           const AttentionLayerImpl& attention, Norm& norm) {
  const Linear& out = attention.out_projection();
  const Tensor &weight = out->weight, bias = BiasOf(out);
  if (!dropout_->acts()) {  // dropout between product and residual would prevent this fusion
    return ops::Project(attended, weight, bias, x, After(norm), precision_);
  }
  return Add(x, ops::Linear(attended, weight, bias, precision_), norm);
}

Tensor LayerParts::GatedFeedForward(const Tensor& x, const Linear& gate, const Linear& in,
                                    const Linear& out, Norm& norm) {
  const std::vector<Tensor> parts = ops::Linears(
      x, {gate->weight, in->weight}, {BiasOf(gate), BiasOf(in)}, precision_, Before(norm));
  return FromHidden(x, torch::silu(parts[0]) * parts[1], out, norm);
}

Tensor LayerParts::ShiftedFeedForward(const Tensor& x, const Tensor& shift, const Linear& in,
                                      const Linear& out, Norm& norm, Tensor* last) {
  const Tensor y = ops::Normalize(x, Before(norm));
  const Tensor mixed = y + (ShiftedRows(y, last) - y) * shift;
  const Tensor hidden = ops::Linear(mixed, in->weight, BiasOf(in), precision_);
  return FromHidden(x, torch::relu(hidden).square(), out, norm);
}

Tensor LayerParts::FromHidden(const Tensor& x, const Tensor& hidden, const Linear& out,
                              Norm& norm) {
  if (!dropout_->acts()) {
    return ops::Project(hidden, out->weight, BiasOf(out), x, After(norm), precision_);
  }
  return Add(x, ops::Linear(dropout_(hidden), out->weight, BiasOf(out), precision_), norm);
}

Tensor LayerParts::FeedForward(const Tensor& x, const Linear& gate, const Linear& in,
                               const Linear& out, Norm& norm) {
  if (in.is_empty()) return x;
  if (!gate.is_empty()) return GatedFeedForward(x, gate, in, out, norm);
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
      gate(parts_.MakeGate()),
      linear1(parts_.MakeIn()),
      linear2(parts_.MakeOut()),
      shift(parts_.MakeShift()),
      norm1(parts_.MakeNorm()),
      norm2(parts_.MakeFeedForwardNorm()) {
  register_module("attention", attention);
  if (!gate.is_empty()) register_module("gate", gate);
  if (!linear1.is_empty()) register_module("linear1", linear1);
  if (!linear1.is_empty()) register_module("linear2", linear2);
  if (shift.defined()) register_parameter("shift", shift);
  register_module("norm1", norm1);
  if (!linear1.is_empty()) register_module("norm2", norm2);
  register_module("dropout", parts_.dropout());
  if (options.convolution > 0) {
    convolution = Depthwise(options.convolution, options.d_model);
    convolution_norm = parts_.MakeNorm();
    register_module("convolution", convolution);
    register_module("convolution_norm", convolution_norm);
  }
}

Tensor TransformerEncoderLayerImpl::forward(const Tensor& x, const Mask& mask, Tensor* carried) {
  const Tensor mixed = Mixed(x, mask);
  return Finish(mixed, attention->Attend(mixed, parts_.Before(norm1), mask, carried), nullptr);
}

Tensor TransformerEncoderLayerImpl::Attended(const Tensor& x, const Mask& mask, Tensor* carried) {
  const Tensor heads = attention->Attend(Mixed(x, mask), parts_.Before(norm1), mask, carried);
  const Linear& out = attention->out_projection();
  return torch::linear(heads, out->weight, out->bias);
}

Tensor TransformerEncoderLayerImpl::Step(const Tensor& x, MixerState& state, Tensor* carried) {
  const Tensor mixed = MixNext(x.unsqueeze(1), state).squeeze(1);
  return Finish(mixed, attention->AttendStep(mixed, parts_.Before(norm1), state, carried),
                &state.fed_last);
}

Tensor TransformerEncoderLayerImpl::Piece(const Tensor& x, MixerState& state, Tensor* carried) {
  const Tensor mixed = MixNext(x, state);
  return Finish(mixed, attention->AttendPiece(mixed, parts_.Before(norm1), state, carried),
                &state.fed_last);
}

Tensor TransformerEncoderLayerImpl::Mixed(const Tensor& x, const Mask& mask) {
  return convolution.is_empty() ? x : parts_.Mix(x, convolution, convolution_norm, mask);
}

Tensor TransformerEncoderLayerImpl::MixNext(const Tensor& x, MixerState& state) {
  if (convolution.is_empty()) return x;
  return parts_.MixNext(x, convolution, convolution_norm, state.convolved);
}

Tensor TransformerEncoderLayerImpl::Finish(const Tensor& x, const Tensor& attended, Tensor* last) {
  const Tensor y = parts_.Project(x, attended, *attention, norm1);
  if (shift.defined()) {
    const bool step = y.dim() == 2;
    const Tensor out =
        parts_.ShiftedFeedForward(step ? y.unsqueeze(1) : y, shift, linear1, linear2, norm2, last);
    return step ? out.squeeze(1) : out;
  }
  return parts_.FeedForward(y, gate, linear1, linear2, norm2);
}

TransformerEncoderImpl::TransformerEncoderImpl(const TransformerOptions& options)
    : checkpoint_layers_(options.checkpoint_layers) {
  Validate(options);
  register_module("layers", layers);
  for (int64_t i = 0; i < options.layers; ++i) {
    layers->push_back(TransformerEncoderLayer(options, options.mixer(i)));
  }
  if (options.final_norm) {
    norm = LayerParts(options).MakeNorm();
    register_module("norm", norm);
  }
}

namespace {

// Runs a layer's forward() in Recompute(). The body of Recompute() returns one tensor, so the
// columns that the layer carries to later layers are appended to its output.
Tensor Recomputed(const std::shared_ptr<torch::nn::Module>& module, const Tensor& x,
                  const Mask& mask, Tensor& carried) {
  const bool carries = module->as<TransformerEncoderLayer>()->attention->carries();
  // Captures by value, because Recompute() calls this lambda again in the backward pass.
  const auto layer = [module, mask, carries](const std::vector<Tensor>& in) {
    Tensor columns = in.size() > 1 ? in[1] : Tensor();
    const Tensor y = module->as<TransformerEncoderLayer>()->forward(in[0], mask, &columns);
    return carries ? torch::cat({y, columns}, 2) : y;
  };
  const Tensor y = Recompute(layer, carried.defined() ? std::vector{x, carried} : std::vector{x});
  if (!carries) return y;
  carried = y.narrow(2, x.size(2), y.size(2) - x.size(2));
  return y.narrow(2, 0, x.size(2));
}

}  // namespace

Tensor TransformerEncoderImpl::forward(Tensor x, const Mask& mask) {
  Tensor carried;
  for (size_t i = 0; i < layers->size(); ++i) {
    const auto& module = layers[i];
    if (observer) observer(i, x, mask);
    x = checkpoint_layers_ && is_training()
            ? Recomputed(module, x, mask, carried)
            : module->as<TransformerEncoderLayer>()->forward(x, mask, &carried);
  }
  return norm.is_empty() ? x : norm(x);
}

bool TransformerEncoderImpl::recurrent() const {
  return std::all_of(layers->begin(), layers->end(), [](const auto& module) {
    const auto* layer = module->template as<TransformerEncoderLayer>();
    return layer->attention->recurrent();
  });
}

Tensor TransformerEncoderImpl::Piece(Tensor x, RecurrentState& state, PieceExchange* exchange) {
  state.resize(layers->size());
  Tensor carried;
  for (size_t i = 0; i < layers->size(); ++i) {
    if (exchange != nullptr) exchange->Before(i, state[i]);
    x = layers[i]->as<TransformerEncoderLayer>()->Piece(x, state[i], &carried);
    if (exchange != nullptr) exchange->After(i, state[i]);
  }
  return norm.is_empty() ? x : norm(x);
}

RecurrentTransformerEncoderImpl::RecurrentTransformerEncoderImpl(TransformerEncoder encoder)
    : encoder_(std::move(encoder)) {
  register_module("encoder", encoder_);
}

Tensor RecurrentTransformerEncoderImpl::forward(Tensor x, RecurrentState& state) {
  state.resize(encoder_->layers->size());
  Tensor carried;
  for (size_t i = 0; i < encoder_->layers->size(); ++i) {
    x = encoder_->layers[i]->as<TransformerEncoderLayer>()->Step(x, state[i], &carried);
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
