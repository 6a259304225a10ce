#include "linnet/nn/network.h"

#include <torch/utils.h>

#include <algorithm>
#include <span>

#include "linnet/base/error.h"
#include "linnet/io/json.h"
#include "linnet/model/checkpoint.h"
#include "linnet/nn/encoder_decoder.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/nn/speech_model.h"

namespace linnet::nn {

using torch::Tensor;

Network::Network(const ModelSpec& spec) : spec_((Validate(spec), spec)) {}

torch::Device Network::device() const { return parameters().front().device(); }

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
          .convolution = spec.convolution,
          .final_norm = spec.final_norm,
          .norm_eps = spec.norm_eps,
          .dropout = options.dropout,
          .precision = ops::PrecisionNamed(options.precision, options.device),
          .checkpoint_layers = options.checkpoint_layers};
}

ops::Precision HeadPrecision(const ModelSpec& spec, const TrainingOptions& options) {
  // A head over many symbols is most of a small network's work.
  constexpr int kMany = 1024;
  const bool large = spec.head == "categorical" && spec.classes >= kMany;
  return large ? ops::PrecisionNamed(options.precision, options.device) : ops::Precision::kFp32;
}

PositionalEmbeddingImpl::PositionalEmbeddingImpl(const ModelSpec& spec)
    : added_(spec.positions == "added") {
  pe = register_buffer("pe", torch::tensor(PositionTable(spec)).view({1, spec.max_length, -1}));
}

Tensor PositionalEmbeddingImpl::Place(const Tensor& x, int64_t first) const {
  const Tensor positions = pe.narrow(1, first, x.size(1));
  return added_ ? x + positions : torch::cat({x, positions.expand({x.size(0), -1, -1})}, 2);
}

std::shared_ptr<Network> MakeNetwork(const ModelSpec& spec, const TrainingOptions& options) {
  if (spec.task == "speech") return std::make_shared<SpeechModelImpl>(spec, options);
  if (spec.network == "encoder-decoder") return std::make_shared<EncoderDecoderImpl>(spec, options);
  return std::make_shared<SequenceModelImpl>(spec, options);
}

std::map<std::string, Tensor> ModelTensors(const Network& network) {
  std::map<std::string, Tensor> tensors;
  for (const auto& item : network.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : network.named_buffers()) {
    tensors[item.key() == "first_value" ? "first_value.probability" : item.key()] = item.value();
  }
  return tensors;
}

void SaveModel(const std::string& path, const Network& network, const std::string& training) {
  const std::map<std::string, Tensor> tensors = ModelTensors(network);
  std::vector<Tensor> kept;  // dense copies must outlive the write
  WriteCheckpoint(path, network.spec(), training, [&](const TensorInfo& info) {
    kept.push_back(tensors.at(info.name).detach().to(torch::kCPU, torch::kFloat32).contiguous());
    return std::span<const float>(kept.back().data_ptr<float>(),
                                  static_cast<size_t>(kept.back().numel()));
  });
}

std::shared_ptr<Network> LoadNetwork(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  std::shared_ptr<Network> network = MakeNetwork(checkpoint.spec());
  torch::NoGradGuard no_grad;
  std::map<std::string, Tensor> tensors = ModelTensors(*network);
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    const std::span<const float> data = checkpoint.Tensor(info.name);
    tensors.at(info.name).copy_(
        torch::from_blob(const_cast<float*>(data.data()), info.shape, torch::kFloat32));
  }
  return network;
}

std::vector<std::string> CopyWeights(const std::string& path, Network& network) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  const ModelSpec &here = network.spec(), &there = checkpoint.spec();
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
  std::map<std::string, Tensor> tensors = ModelTensors(network);
  for (const auto& [name, data] : taken) {
    Tensor& to = tensors.at(name);
    to.copy_(torch::from_blob(const_cast<float*>(data.data()), to.sizes(), torch::kFloat32));
  }
  return kept;
}

}  // namespace linnet::nn
