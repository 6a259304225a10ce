#include "linnet/runtime/speech_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/kernels/depthwise.h"
#include "linnet/kernels/linear_attention.h"
#include "linnet/kernels/lsh_attention.h"
#include "linnet/kernels/lstm_cell.h"
#include "linnet/kernels/softmax_attention.h"
#include "linnet/runtime/choice.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

using kernels::LinearMode;
using kernels::Strided;

// Rows whose hidden units lie between the two products of a feed-forward block at once.
constexpr size_t kBlockRows = 192;

// Memory that grows to the largest size that was asked of it.
template <class T>
class Room {
 public:
  T* Of(size_t size) {
    if (buffer_.size() < size) buffer_ = AlignedBuffer<T>(size);
    return buffer_.data();
  }

 private:
  AlignedBuffer<T> buffer_;
};

// Where a layer's floats are in a SpeechState: s, z, and the last rows that the convolution has read.
struct LayerState {
  explicit LayerState(const ModelSpec& spec) {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    z = size(spec.heads) * size(FeatureSize(spec.attention, spec.query_dim));
    s = z * size(spec.value_dim);
    rows = spec.convolution > 0 ? size(spec.convolution) - 1 : 0;
    floats = s + z + rows * size(spec.d_model);
  }

  size_t s, z, rows, floats;
};

}  // namespace

struct SpeechEncoder::Scratch {
  Room<float> x, normed, sums, wide, heads, features, rows, mixed, attention, lsh;
  Room<std::byte> narrow_input, narrow;
  Room<int32_t> places;
};

// One pass of some positions through the network.
class SpeechEncoder::Pass {
 public:
  // state: null for a whole utterance.
  Pass(const Model::Packed& model, Scratch& scratch, float* state, size_t first, size_t rows)
      : model_(model),
        scratch_(scratch),
        layout_(model.spec),
        state_(state),
        first_(first),
        rows_(rows),
        d_(model.d_model),
        x_(scratch.x.Of(rows * d_)),
        normed_(scratch.normed.Of(rows * d_)),
        sums_(scratch.sums.Of(rows * d_)) {
    using kernels::NarrowType;
    if (!model.narrow()) return;
    const NarrowType type = Model::Packed::NarrowTypeOf(model.precision);
    input_ = kernels::TakeNarrowRows(
        type, rows, d_, scratch.narrow_input.Of(kernels::NarrowRowsSize(type, rows, d_)));
    const size_t in = std::max({model.widest, d_, static_cast<size_t>(model.spec.speech.Inputs())});
    narrow_ = scratch.narrow.Of(std::max(kernels::NarrowRowsSize(NarrowType::kBf16, rows, in),
                                         kernels::NarrowRowsSize(NarrowType::kInt8, rows, in)));
  }

  void Run(std::span<const float> inputs, std::span<float> log_probs) {
    if (model_.lstm.empty()) {
      Transformer(inputs, log_probs);
    } else {
      Lstm(inputs, log_probs);
    }
    for (size_t r = 0; r < rows_; ++r) {
      LogSoftmax(log_probs.subspan(r * model_.outputs, model_.outputs));
    }
  }

 private:
  void Transformer(std::span<const float> inputs, std::span<float> log_probs) {
    Embed(inputs.data());
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      const PackedLayer& layer = model_.layers[l];
      if (layer.convolution.weight != nullptr) Convolve(layer.convolution, l);
      const float* read = Before(layer.norm1);
      NarrowInput(read, nullptr);
      for (size_t g = 0; g < layer.attention.size(); ++g) Attention(layer.attention[g], g, l, read);
      AddSums(layer.norm1);
      read = Before(layer.norm2);
      NarrowInput(read, layer.feed_forward_factor);
      for (size_t g = 0; g < layer.feed_forward.size(); ++g) {
        FeedForward(layer.feed_forward[g], g, read);
      }
      AddSums(layer.norm2);
    }
    const float* out = x_;
    if (model_.final_norm.weight != nullptr) {
      Normalise(x_, nullptr, model_.final_norm, normed_);
      out = normed_;
    }
    Multiply(model_.predictor_precision(), rows_, d_, model_.outputs, out, d_, model_.predictor,
             LinearMode::kOverwrite, log_probs.data(), model_.outputs, narrow_);
  }

  // Each layer in both directions (kernels/lstm_cell.h).
  void Lstm(std::span<const float> inputs, std::span<float> log_probs) {
    const float* x = inputs.data();
    size_t in = static_cast<size_t>(model_.spec.speech.Inputs());
    float* gates = scratch_.wide.Of(rows_ * 4 * d_);
    std::vector<float> cell(d_);
    for (size_t l = 0; l < model_.lstm.size(); l += 2) {
      float* out = (l % 4 == 0 ? scratch_.rows : scratch_.mixed).Of(rows_ * 2 * d_);
      for (size_t backward = 0; backward < 2; ++backward) {
        const PackedLstm& part = model_.lstm[l + backward];
        Multiply(Precision::kF32, rows_, in, 4 * d_, x, in, part.in, LinearMode::kOverwrite, gates,
                 4 * d_, nullptr);
        std::fill(cell.begin(), cell.end(), 0.0f);
        const float* before = nullptr;
        for (size_t i = 0; i < rows_; ++i) {
          const size_t t = backward == 1 ? rows_ - 1 - i : i;
          float* gate = gates + t * 4 * d_;
          float* h = out + t * 2 * d_ + backward * d_;
          if (before != nullptr) {
            Multiply(Precision::kF32, 1, d_, 4 * d_, before, d_, part.recurrent, LinearMode::kAdd,
                     gate, 4 * d_, nullptr);
          }
          kernels::LstmCellForward(
              1, d_, {.gates = gate, .cell_before = cell.data(), .cell = cell.data(), .out = h});
          before = h;
        }
      }
      x = out, in = 2 * d_;
    }
    Multiply(Precision::kF32, rows_, in, model_.outputs, x, in, model_.predictor,
             LinearMode::kOverwrite, log_probs.data(), model_.outputs, nullptr);
  }
  void Embed(const float* inputs) {
    const size_t in = static_cast<size_t>(model_.spec.speech.Inputs());
    const size_t width = model_.value_embedding, rest = d_ - width;
    Multiply(model_.predictor_precision(), rows_, in, width, inputs, in, model_.input_projection,
             LinearMode::kOverwrite, x_, d_, narrow_);
    for (size_t r = 0; r < rows_ && rest > 0; ++r) {
      std::memcpy(x_ + r * d_ + width, model_.positions.data() + (first_ + r) * rest,
                  rest * sizeof(float));
    }
  }

  void Normalise(const float* from, const float* residual,
                 const kernels::LayerNormParameters& parameters, float* to) {
    kernels::LayerNorm({rows_, d_, model_.spec.norm_eps},
                       {.x = from, .x_stride = d_, .residual = residual, .residual_stride = d_},
                       parameters, to, d_);
  }
  // What a block reads: x, or its norm where that stands in front.
  const float* Before(const kernels::LayerNormParameters& norm) {
    if (!model_.spec.norm_first) return x_;
    Normalise(x_, nullptr, norm, normed_);
    return normed_;
  }
  // x takes what a block made of it, which lies in sums_.
  void AddSums(const kernels::LayerNormParameters& norm) {
    if (model_.spec.norm_first) {
      for (size_t i = 0; i < rows_ * d_; ++i) x_[i] += sums_[i];
    } else {
      Normalise(sums_, x_, norm, x_);
    }
  }

  void NarrowInput(const float* read, const float* factor) {
    if (model_.narrow()) kernels::NarrowActivations(rows_, d_, read, d_, factor, input_);
  }
  // y = read W^T + b of `count` rows from `begin` on.
  void FromInput(const float* read, size_t begin, size_t count, size_t out, PackedMatrix matrix,
                 float* y) {
    if (model_.narrow()) {
      kernels::NarrowLinear(count, d_, out, kernels::RowsFrom(input_, begin, d_), matrix,
                            LinearMode::kOverwrite, y, out);
    } else {
      kernels::Linear(count, d_, out, read + begin * d_, d_, reinterpret_cast<const float*>(matrix),
                      LinearMode::kOverwrite, y, out);
    }
  }
  // Adds the share of a group, of `count` rows from `begin` on, to sums_.
  void Contribute(const PackedGroup& group, size_t g, size_t begin, size_t count, size_t in,
                  const float* from) {
    Multiply(model_.precision, count, in, d_, from, in, group.out,
             g > 0 ? LinearMode::kAdd : LinearMode::kOverwrite, sums_ + begin * d_, d_, narrow_);
  }

  float* StateOf(size_t layer) const { return state_ + layer * layout_.floats; }

  void Convolve(const PackedConvolution& convolution, size_t layer) {
    const auto width = static_cast<size_t>(model_.spec.convolution);
    const float* read = Before(convolution.norm);
    size_t before = width / 2, behind = 0;  // rows of the past in front of `read`
    if (model_.spec.Causal()) before = width - 1;
    if (state_ != nullptr) {
      behind = layout_.rows;
      float* past = StateOf(layer) + layout_.s + layout_.z;
      float* rows = scratch_.rows.Of((behind + rows_) * d_);
      std::memcpy(rows, past, behind * d_ * sizeof(float));
      std::memcpy(rows + behind * d_, read, rows_ * d_ * sizeof(float));
      std::memcpy(past, rows + rows_ * d_, behind * d_ * sizeof(float));
      read = rows;
    }
    float* mixed = scratch_.mixed.Of((behind + rows_) * d_);
    kernels::DepthwiseForward(
        {1, behind + rows_, d_, width, before},
        {.x = read, .weight = convolution.weight, .bias = convolution.bias, .out = mixed},
        SerialFor);
    kernels::Activate(model_.activation, rows_ * d_, mixed + behind * d_, sums_);
    AddSums(convolution.norm);
  }

  void Attention(const PackedGroup& group, size_t g, size_t layer, const float* read) {
    const size_t heads = group.end - group.begin, width = model_.QkvWidth(group);
    const size_t dim = model_.dim, m = model_.value_dim, values = heads * m, f = model_.features;
    float* wide = scratch_.wide.Of(rows_ * model_.widest);
    FromInput(read, 0, rows_, width, group.in, wide);
    const float* q = wide;
    size_t qk_width = width, qk_head = model_.head_width;
    if (model_.feature_map != nullptr) {
      qk_head = 2 * f, qk_width = heads * qk_head;
      float* phi = scratch_.features.Of(rows_ * qk_width);
      const FeatureInput input{dim, model_.omega_columns, model_.layers[layer].omega};
      for (size_t i = 0; i < rows_ * heads; ++i) {
        const float* from = wide + i / heads * width + i % heads * model_.head_width;
        model_.feature_map->single(input, from, /*query=*/true, phi + i * qk_head);
        model_.feature_map->single(input, from + dim, /*query=*/false, phi + i * qk_head + f);
      }
      q = phi;
    }
    const auto strided = [](const float* from, size_t row, size_t head) {
      return Strided<const float>{from, 0, static_cast<ptrdiff_t>(row),
                                  static_cast<ptrdiff_t>(head)};
    };
    const Heads all{strided(q, qk_width, qk_head), strided(q + f, qk_width, qk_head),
                    strided(wide + 2 * dim, width, model_.head_width),
                    kernels::RowMajor(scratch_.heads.Of(rows_ * values), rows_, heads, m), heads};
    const std::string& kind = model_.spec.attention.kind;
    if (kind == "full") {
      Softmax(all);
    } else if (kind == "reformer") {
      Lsh(all);
    } else if (kind == "linear") {
      Linear(all);
    } else {
      CausalLinear(all, group.begin, layer);
    }
    Contribute(group, g, 0, rows_, values, all.out.data);
  }

  // phi(q) and phi(k), or q and k, and v of some heads, and where their values go.
  struct Heads {
    Strided<const float> q, k, v;
    Strided<float> out;
    size_t count;
  };

  void Linear(const Heads& heads) {
    const kernels::LinearAttentionShape shape{1,           rows_,           rows_,
                                              heads.count, model_.features, model_.value_dim};
    float* scratch = scratch_.attention.Of(kernels::LinearAttentionScratch(shape));
    kernels::LinearAttentionForward(shape, model_.attention,
                                    {.q = heads.q, .k = heads.k, .v = heads.v, .out = heads.out},
                                    {scratch, 1}, SerialFor);
  }

  void CausalLinear(const Heads& heads, size_t first_head, size_t layer) {
    const size_t f = model_.features;
    const kernels::CausalLinearShape shape{1, rows_, heads.count, f, model_.value_dim};
    float* scratch = scratch_.attention.Of(kernels::CausalLinearScratch(shape));
    float *s = nullptr, *z = nullptr;
    if (state_ != nullptr) {
      s = StateOf(layer) + first_head * f * model_.value_dim;
      z = StateOf(layer) + layout_.s + first_head * f;
    }
    kernels::CausalLinearForward(
        shape, model_.attention,
        {.q = heads.q, .k = heads.k, .v = heads.v, .out = heads.out, .s = s, .z = z}, {scratch, 1},
        SerialFor);
  }

  void Softmax(const Heads& heads) {
    const kernels::SoftmaxAttentionShape shape{1,           rows_,      rows_,
                                               heads.count, model_.dim, model_.value_dim};
    float* scratch = scratch_.attention.Of(kernels::SoftmaxAttentionScratch(shape));
    kernels::SoftmaxAttentionForward(shape, {.scale = model_.softmax_scale},
                                     {.q = heads.q, .k = heads.k, .v = heads.v, .out = heads.out},
                                     {scratch, 1}, SerialFor);
  }

  void Lsh(const Heads& heads) {
    const kernels::LshAttentionShape shape{
        1, rows_, heads.count, model_.dim, model_.value_dim, model_.lsh_rounds};
    float* scratch = scratch_.attention.Of(kernels::LshAttentionScratch(shape, model_.lsh));
    kernels::LshAttentionForward(shape, model_.lsh,
                                 {.q = heads.q,
                                  .v = heads.v,
                                  .out = heads.out,
                                  .planes = model_.planes.data(),
                                  .places = scratch_.places.Of(kernels::LshAttentionPlaces(shape)),
                                  .sums = scratch_.lsh.Of(kernels::LshAttentionSums(shape))},
                                 {scratch, 1}, SerialFor);
  }

  void FeedForward(const PackedGroup& group, size_t g, const float* read) {
    const size_t width = group.end - group.begin;
    for (size_t begin = 0; begin < rows_; begin += kBlockRows) {
      const size_t count = std::min(kBlockRows, rows_ - begin);
      float* hidden = scratch_.wide.Of(count * model_.widest);
      FromInput(read, begin, count, width, group.in, hidden);
      kernels::Activate(model_.activation, count * width, hidden);
      Contribute(group, g, begin, count, width, hidden);
    }
  }

  const Model::Packed& model_;
  Scratch& scratch_;
  const LayerState layout_;
  float* state_;
  size_t first_, rows_, d_;
  float *x_, *normed_, *sums_;  // [rows, d_model]
  kernels::NarrowRows input_;   // narrow models: what a block reads
  std::byte* narrow_ = nullptr;
};

size_t SpeechStateBytes(const ModelSpec& spec) {
  return static_cast<size_t>(spec.layers) * LayerState(spec).floats * sizeof(float);
}

SpeechEncoder::SpeechEncoder(std::shared_ptr<const Model> model)
    : model_(std::move(model)), scratch_(std::make_unique<Scratch>()) {
  if (model_->spec().task != "speech") {
    throw InputError(model_->path(), ": a model of the task '", model_->spec().task,
                     "', which hears nothing; take one of speech");
  }
}

SpeechEncoder::~SpeechEncoder() = default;

size_t SpeechEncoder::inputs() const { return static_cast<size_t>(model_->spec().speech.Inputs()); }
size_t SpeechEncoder::classes() const { return model_->packed().outputs; }
size_t SpeechEncoder::max_positions() const {
  return static_cast<size_t>(model_->spec().max_length);
}

void SpeechEncoder::Encode(std::span<const float> inputs, std::span<float> log_probs) {
  Run(nullptr, inputs, log_probs);
}

SpeechState SpeechEncoder::NewState() const {
  if (!model_->spec().Causal()) {
    throw InputError(
        model_->path(), ": attention '", model_->spec().attention.kind,
        "' sees the whole utterance, so that it cannot be heard piece by piece; train ",
        "a model with --attention causal-linear");
  }
  SpeechState state;
  state.floats_.resize(SpeechStateBytes(model_->spec()) / sizeof(float));
  return state;
}

void SpeechEncoder::Extend(SpeechState& state, std::span<const float> inputs,
                           std::span<float> log_probs) {
  if (state.floats_.size() != NewState().floats_.size()) {
    throw InputError(model_->path(), ": the state is of another model");
  }
  Run(&state, inputs, log_probs);
}

void SpeechEncoder::Run(SpeechState* state, std::span<const float> inputs,
                        std::span<float> log_probs) {
  const size_t rows = inputs.size() / this->inputs();
  if (inputs.size() != rows * this->inputs() || log_probs.size() != rows * classes()) {
    throw InputError(model_->path(), ": ", inputs.size(), " inputs and ", log_probs.size(),
                     " outputs are not as many positions of ", this->inputs(), " and ", classes());
  }
  const size_t first = state ? state->position_ : 0;
  if (rows > max_positions() - first) {
    throw InputError(model_->path(), ": ", first + rows, " positions are more than the model's ",
                     max_positions());
  }
  if (rows == 0) return;
  Pass(model_->packed(), *scratch_, state ? state->floats_.data() : nullptr, first, rows)
      .Run(inputs, log_probs);
  for (const float x : log_probs) {
    if (!std::isfinite(x)) {
      throw RuntimeError(model_->path(),
                         ": hears no numbers; its weights are broken, or what it was ",
                         "given was no sound");
    }
  }
  if (state) state->position_ += rows;
}

}  // namespace linnet
