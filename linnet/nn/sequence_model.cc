#include "linnet/nn/sequence_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "linnet/error.h"
#include "linnet/model/patches.h"
#include "linnet/model/pixels.h"

namespace linnet::nn {

using torch::Tensor;

namespace {

// PixelRows() of each token: [...] -> [..., 3].
Tensor RowsOfPixels(const Tensor& tokens) {
  const Tensor begin = tokens == kBeginPixel;
  std::vector<Tensor> rows;
  for (int color = 0; color < 3; ++color) {
    const Tensor byte = tokens.bitwise_right_shift(8 * (2 - color)).bitwise_and(255);
    rows.push_back(byte.masked_fill(begin, kColorRows - 1) + color * kColorRows);
  }
  return torch::stack(rows, -1);
}

}  // namespace

Tensor PixelTokens(const Tensor& bytes) {
  return bytes.select(-1, 0) * (1 << 16) + bytes.select(-1, 1) * (1 << 8) + bytes.select(-1, 2);
}

SequenceModelImpl::SequenceModelImpl(const ModelSpec& spec, const TrainingOptions& options)
    : Network(spec),
      transformer_(BuildTransformer(OptionsOf(spec, options))),
      predictor_(MakeHead(spec)),
      dropout_(options.dropout),
      head_precision_(HeadPrecision(spec, options)) {
  if (!spec.head.tied) {
    value_embedding_ = torch::nn::Embedding(EmbeddingRows(spec), spec.input.value_embedding);
    register_module("value_embedding", value_embedding_);
  }
  if (spec.PositionDims() > 0) {
    pos_embedding_ = PositionalEmbedding(spec);
    register_module("pos_embedding", pos_embedding_);
  }
  if (spec.input.pixel_above) {
    above_embedding_ = torch::nn::Embedding(AboveRows(spec), spec.input.value_embedding);
    register_module("above_embedding", above_embedding_);
  }
  if (spec.input.stem.channels > 0) {
    stem_ = Stem(spec, ops::PrecisionNamed(options.precision, options.device));
    register_module("stem", stem_);
  }
  if (spec.input.norm) {
    embedding_norm_ = Norm(spec.EmbeddingWidth(), spec.stack.norm, spec.stack.norm_eps);
    register_module("embedding_norm", embedding_norm_);
  }
  if (spec.patches()) {
    patches_ = Patches(spec, ops::PrecisionNamed(options.precision, options.device));
    register_module("patch", patches_);
  }
  register_module("transformer", transformer_.batch);
  register_module("predictor", predictor_);
  register_module("dropout", dropout_);
  if (spec.image() && !spec.input.whole_pixels) {
    first_value = register_buffer(
        "first_value", torch::full({spec.input.vocabulary}, 1.0 / spec.input.vocabulary));
  }
  to(options.device);
}

Tensor SequenceModelImpl::Values(const Tensor& tokens, const Tensor& above) {
  if (spec().head.tied) {
    return torch::embedding(predictor_->weight, tokens) * std::sqrt(spec().stack.d_model);
  }
  const auto look = [&](torch::nn::Embedding& embedding, const Tensor& of) {
    return spec().input.whole_pixels ? embedding(RowsOfPixels(of)).sum(-2) : embedding(of);
  };
  const Tensor values = look(value_embedding_, tokens);
  return spec().input.pixel_above ? values + look(above_embedding_, above) : values;
}

Tensor SequenceModelImpl::Normed(const Tensor& x) {
  return embedding_norm_.is_empty() ? x : embedding_norm_(x);
}

Tensor SequenceModelImpl::Predict(const Tensor& x) {
  return ops::Linear(x, predictor_->weight, BiasOf(predictor_), head_precision_);
}

Tensor SequenceModelImpl::forward(const Tensor& tokens) { return Predict(Hidden(tokens)); }

Tensor SequenceModelImpl::At(const Tensor& tokens, const Tensor& rows) {
  return Predict(Hidden(tokens).flatten(0, 1).index_select(0, rows));
}

Tensor SequenceModelImpl::At(const Tensor& tokens, const Tensor& rows, const SequencePiece& piece) {
  if (spec().input.pixel_above || !stem_.is_empty() || !patches_.is_empty() ||
      transformer_.recurrent.is_empty()) {
    throw InputError("this model cannot compute pieces of sequences by themselves");
  }
  return Predict(Hidden(tokens, &piece).flatten(0, 1).index_select(0, rows));
}

Tensor SequenceModelImpl::Hidden(const Tensor& tokens, const SequencePiece* piece) {
  const int64_t length = tokens.size(1), first = piece != nullptr ? piece->first : 0;
  if (first + length > spec().input.max_length) {
    throw InputError("a sequence of ", first + length, " tokens is longer than the model's ",
                     spec().input.max_length, " positions");
  }
  Tensor above;
  if (spec().input.pixel_above) {
    // above[t] is the token above token t + 1, that is, token t + 1 - RowTokens, or NothingAbove()
    // in the first row.
    above = torch::full_like(tokens, NothingAbove(spec()));
    const int64_t below = length + 1 - spec().RowTokens();
    if (below > 0) above.narrow(1, length - below, below).copy_(tokens.narrow(1, 0, below));
  }
  Tensor x = Values(tokens, above);
  if (!pos_embedding_.is_empty()) x = pos_embedding_->Place(x, first);
  if (!stem_.is_empty()) x = x + stem_(tokens);
  if (piece != nullptr) {
    RecurrentState state;
    return transformer_.batch->Piece(dropout_(Normed(x)), state, piece->exchange);
  }
  x = dropout_(Normed(x));
  if (patches_.is_empty()) return transformer_.batch(x, Mask{.causal = true});
  const Tensor joined = patches_->Join(x);
  if (joined.size(1) == 0) return patches_->Split(x, joined);  // no patch begins
  return patches_->Split(x, transformer_.batch(joined, Mask{.causal = true}));
}

Tensor SequenceModelImpl::Step(const Tensor& tokens, int64_t position, SequenceState& state) {
  if (transformer_.recurrent.is_empty()) {
    throw InputError("this model has layers without a recurrent form; use forward()");
  }
  if (position < 0 || position >= spec().input.max_length) {
    throw InputError("position ", position, " is out of range; the model's number of positions is ",
                     spec().input.max_length);
  }
  Tensor above;
  if (spec().input.pixel_above) {
    const Tensor column = tokens.unsqueeze(1);
    state.recent = state.recent.defined() ? torch::cat({state.recent, column}, 1) : column;
    const int64_t more = state.recent.size(1) - spec().RowTokens();
    if (more > 0) state.recent = state.recent.narrow(1, more, spec().RowTokens());
    above = more >= 0 ? state.recent.select(1, 0) : torch::full_like(tokens, NothingAbove(spec()));
  }
  Tensor x = Values(tokens, above);
  if (!pos_embedding_.is_empty()) x = pos_embedding_->Place(x.unsqueeze(1), position).squeeze(1);
  if (!stem_.is_empty()) x = x + stem_->step(tokens, position, state.stem);
  if (state.layers.empty()) {
    state.layers.resize(static_cast<size_t>(spec().stack.layers()));
    const auto length = static_cast<size_t>(spec().input.max_length);
    for (MixerState& layer : state.layers) {
      layer.capacity = static_cast<int64_t>(PatchesBefore(spec(), length));
    }
  }
  x = dropout_(Normed(x));
  if (patches_.is_empty()) return Predict(transformer_.recurrent(x, state.layers));
  if (const auto joined = patches_->JoinStep(x, position, state.patch)) {
    patches_->SplitStep(transformer_.recurrent(*joined, state.layers), state.patch);
  }
  return Predict(patches_->HeadStep(x, position, state.patch));
}

SequenceModel LoadModel(const std::string& path) {
  const auto model = std::dynamic_pointer_cast<SequenceModelImpl>(LoadNetwork(path));
  if (!model) throw InputError(path, ": its network does not predict the next token of a sequence");
  return SequenceModel(model);
}

}  // namespace linnet::nn
