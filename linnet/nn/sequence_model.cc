#include "linnet/nn/sequence_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <span>

#include "linnet/base/error.h"
#include "linnet/io/json.h"
#include "linnet/model/checkpoint.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

TransformerOptions OptionsOf(const ModelSpec& spec, const TrainingOptions& options) {
  return {.attention = spec.attention,
          .layers = spec.layers,
          .heads = spec.heads,
          .query_dim = spec.query_dim,
          .value_dim = spec.value_dim,
          .d_model = spec.d_model,
          .d_ff = spec.d_ff,
          .activation = spec.activation,
          .norm_first = spec.norm_first,
          .final_norm = spec.final_norm,
          .norm_eps = spec.norm_eps,
          .dropout = options.dropout,
          .precision = ops::PrecisionNamed(options.precision, options.device),
          .checkpoint_layers = options.checkpoint_layers};
}

}  // namespace

PositionalEmbeddingImpl::PositionalEmbeddingImpl(const ModelSpec& spec) {
  pe = register_buffer("pe", torch::tensor(PositionTable(spec)).view({1, spec.max_length, -1}));
}

SequenceModelImpl::SequenceModelImpl(const ModelSpec& spec, const TrainingOptions& options)
    : spec_((Validate(spec), spec)),
      value_embedding_(spec.vocabulary, spec.value_embedding),
      transformer_(BuildTransformer(OptionsOf(spec, options))),
      predictor_(spec.d_model, spec.OutputSize()),
      dropout_(options.dropout) {
  register_module("value_embedding", value_embedding_);
  if (spec.value_embedding < spec.d_model) {
    pos_embedding_ = PositionalEmbedding(spec);
    register_module("pos_embedding", pos_embedding_);
  }
  if (spec.pixel_above) {
    above_embedding_ = torch::nn::Embedding(spec.vocabulary + 1, spec.value_embedding);
    register_module("above_embedding", above_embedding_);
  }
  register_module("transformer", transformer_.batch);
  register_module("predictor", predictor_);
  register_module("dropout", dropout_);
  if (spec.task == "images") {
    first_value =
        register_buffer("first_value", torch::full({spec.vocabulary}, 1.0 / spec.vocabulary));
  }
  to(options.device);
}

torch::Device SequenceModelImpl::device() const { return predictor_->weight.device(); }

Tensor SequenceModelImpl::Values(const Tensor& tokens, const Tensor& above) {
  const Tensor values = value_embedding_(tokens);
  return spec_.pixel_above ? values + above_embedding_(above) : values;
}

Tensor SequenceModelImpl::Predict(const Tensor& x) {
  return ops::Linear(x, predictor_->weight, predictor_->bias, ops::Precision::kFp32);
}

Tensor SequenceModelImpl::forward(const Tensor& tokens) {
  const int64_t length = tokens.size(1);
  if (length > spec_.max_length) {
    throw InputError("a sequence of ", length, " symbols is longer than the model's ",
                     spec_.max_length, " positions");
  }
  Tensor above;
  if (spec_.pixel_above) {
    // Above byte t + 1 stands byte t + 1 - RowBytes.
    above = torch::full_like(tokens, spec_.vocabulary);
    const int64_t below = length + 1 - spec_.RowBytes();
    if (below > 0) above.narrow(1, length - below, below).copy_(tokens.narrow(1, 0, below));
  }
  Tensor x = Values(tokens, above);
  if (!pos_embedding_.is_empty()) {
    const Tensor positions = pos_embedding_->pe.narrow(1, 0, length);
    x = torch::cat({x, positions.expand({tokens.size(0), -1, -1})}, 2);
  }
  return Predict(transformer_.batch(dropout_(x), Mask{.causal = true}));
}

Tensor SequenceModelImpl::Step(const Tensor& tokens, int64_t position, SequenceState& state) {
  if (transformer_.recurrent.is_empty()) {
    throw InputError("attention '", spec_.attention.kind, "' has no recurrent form");
  }
  if (position < 0 || position >= spec_.max_length) {
    throw InputError("position ", position, " is none of the model's ", spec_.max_length);
  }
  Tensor above;
  if (spec_.pixel_above) {
    const Tensor column = tokens.unsqueeze(1);
    state.recent = state.recent.defined() ? torch::cat({state.recent, column}, 1) : column;
    const int64_t more = state.recent.size(1) - spec_.RowBytes();
    if (more > 0) state.recent = state.recent.narrow(1, more, spec_.RowBytes());
    above = more >= 0 ? state.recent.select(1, 0) : torch::full_like(tokens, spec_.vocabulary);
  }
  Tensor x = Values(tokens, above);
  if (!pos_embedding_.is_empty()) {
    x = torch::cat({x, pos_embedding_->pe.select(1, position).expand({tokens.size(0), -1})}, 1);
  }
  if (state.layers.empty()) {
    state.layers.resize(static_cast<size_t>(spec_.layers));
    for (AttentionState& layer : state.layers) layer.capacity = spec_.max_length;
  }
  return Predict(transformer_.recurrent(dropout_(x), state.layers));
}

std::map<std::string, Tensor> ModelTensors(const SequenceModelImpl& model) {
  std::map<std::string, Tensor> tensors;
  for (const auto& item : model.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) {
    tensors[item.key() == "first_value" ? "first_value.probability" : item.key()] = item.value();
  }
  return tensors;
}

void SaveModel(const std::string& path, const SequenceModelImpl& model,
               const std::string& training) {
  const std::map<std::string, Tensor> tensors = ModelTensors(model);
  std::vector<Tensor> kept;  // dense copies must outlive the write
  WriteCheckpoint(path, model.spec(), training, [&](const TensorInfo& info) {
    kept.push_back(tensors.at(info.name).detach().to(torch::kCPU, torch::kFloat32).contiguous());
    return std::span<const float>(kept.back().data_ptr<float>(),
                                  static_cast<size_t>(kept.back().numel()));
  });
}

SequenceModel LoadModel(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  SequenceModel model(checkpoint.spec());
  torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> tensors = ModelTensors(*model);
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    const std::span<const float> data = checkpoint.Tensor(info.name);
    tensors.at(info.name).copy_(
        torch::from_blob(const_cast<float*>(data.data()), info.shape, torch::kFloat32));
  }
  return model;
}

std::vector<std::string> CopyWeights(const std::string& path, SequenceModelImpl& model) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  const ModelSpec &here = model.spec(), &there = checkpoint.spec();
  // Shapes do not tell networks apart: heads, activation and order of the norms have none.
  ModelSpec same = there;
  same.attention = here.attention;
  same.max_length = here.max_length;
  same.width = here.width, same.height = here.height, same.channels = here.channels;
  if (const auto difference = FirstDifference(same, here)) {
    throw InputError(path, ": its network is another one: ", difference->field, " is ",
                     difference->a, " there and ", difference->b,
                     " here; only attention, length and the size of images may differ");
  }
  const std::vector<TensorInfo> table = TensorTable(here);
  for (const linnet::Tensor& tensor : checkpoint.file().tensors()) {
    const bool known = std::any_of(table.begin(), table.end(), [&](const TensorInfo& info) {
      return info.name == tensor.name || ScaleName(info.name) == tensor.name ||
             FactorName(info.name) == tensor.name;
    });
    if (!known && !IsBuffer(tensor.name)) {
      throw InputError(path, ": its network is another one: it has a tensor ", Quote(tensor.name));
    }
  }
  const bool same_image =
      there.width == here.width && there.height == here.height && there.channels == here.channels;
  const auto fits = [&](const TensorInfo& info) {
    if (!IsBuffer(info.name)) return true;
    const linnet::Tensor* tensor = checkpoint.file().Find(info.name);
    if (tensor == nullptr || tensor->shape != info.shape) return false;
    if (info.name.ends_with(".omega")) {
      return there.attention.feature_map == here.attention.feature_map;
    }
    return info.name != "pos_embedding.pe" || here.positions == "sequence" || same_image;
  };
  std::vector<std::string> kept;
  std::map<std::string, std::span<const float>> taken;
  for (const TensorInfo& info : table) {  // all of it is looked at before anything is changed
    if (!fits(info)) {
      kept.push_back(info.name);
      continue;
    }
    CheckFinite(taken[info.name] = checkpoint.Tensor(info.name), path, info.name);
  }
  torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> tensors = ModelTensors(model);
  for (const auto& [name, data] : taken) {
    Tensor& to = tensors.at(name);
    to.copy_(torch::from_blob(const_cast<float*>(data.data()), to.sizes(), torch::kFloat32));
  }
  return kept;
}

}  // namespace linnet::nn
