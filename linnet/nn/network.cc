#include "linnet/nn/network.h"

#include <torch/utils.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "linnet/error.h"
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
  return {.pattern = spec.stack.pattern,
          .layers = spec.stack.layers(),
          .d_model = spec.stack.d_model,
          .d_ff = spec.stack.d_ff,
          .feed_forward = spec.stack.feed_forward,
          .activation = spec.stack.activation,
          .norm = spec.stack.norm,
          .norm_first = spec.stack.norm_first,
          .convolution = spec.stack.convolution,
          .final_norm = spec.stack.final_norm,
          .norm_eps = spec.stack.norm_eps,
          .dropout = options.dropout,
          .precision = ops::PrecisionNamed(options.precision, options.device),
          .checkpoint_layers = options.checkpoint_layers};
}

torch::nn::Linear MakeHead(const ModelSpec& spec) {
  const int64_t in = spec.lstm() ? 2 * spec.stack.d_model : spec.EmbeddingWidth();
  return torch::nn::Linear(torch::nn::LinearOptions(in, spec.OutputSize()).bias(spec.head.bias));
}

ops::Precision HeadPrecision(const ModelSpec& spec, const TrainingOptions& options) {
  // A head with many classes takes most of a small network's time, so it may run in bf16.
  constexpr int kMany = 1024;
  const bool large = !spec.logistics() && spec.head.classes >= kMany;
  return large ? ops::PrecisionNamed(options.precision, options.device) : ops::Precision::kFp32;
}

PositionalEmbeddingImpl::PositionalEmbeddingImpl(const ModelSpec& spec)
    : added_(spec.input.positions == Positions::kAdded) {
  pe = register_buffer("pe",
                       torch::tensor(PositionTable(spec)).view({1, spec.input.max_length, -1}));
}

Tensor PositionalEmbeddingImpl::Place(const Tensor& x, int64_t first) const {
  const Tensor positions = pe.narrow(1, first, x.size(1));
  return added_ ? x + positions : torch::cat({x, positions.expand({x.size(0), -1, -1})}, 2);
}

std::shared_ptr<Network> MakeNetwork(const ModelSpec& spec, const TrainingOptions& options) {
  if (spec.ReadsFrames()) return std::make_shared<SpeechModelImpl>(spec, options);
  if (spec.encoder_decoder()) return std::make_shared<EncoderDecoderImpl>(spec, options);
  return std::make_shared<SequenceModelImpl>(spec, options);
}

std::vector<size_t> HiddenMatrices(const Network& network) {
  constexpr int64_t kLeast = 16;
  // Depthwise filters and rwkv7's r_k have two dimensions, but are not factors of products.
  const auto elementwise = [](std::string_view name) {
    return name.ends_with(".convolution.weight") || name.ends_with(".r_k");
  };
  std::vector<size_t> indices;
  size_t index = 0;
  for (const auto& item : network.named_parameters()) {
    const std::string& name = item.key();
    const Tensor& x = item.value();
    const bool hidden = name.find("embedding") == std::string::npos &&
                        name.rfind("predictor", 0) != 0 && !elementwise(name);
    if (hidden && x.dim() == 2 && std::min(x.size(0), x.size(1)) >= kLeast) {
      indices.push_back(index);
    }
    ++index;
  }
  return indices;
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
  std::vector<Tensor> kept;  // dense fp32 tensors that must live until WriteCheckpoint() returns
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

namespace {

// The layer index in a tensor's name, for example "transformer.layers.3.attention...".
size_t LayerOf(const std::string& tensor) {
  constexpr std::string_view kBefore = ".layers.";
  return std::stoul(tensor.substr(tensor.find(kBefore) + kBefore.size()));
}

}  // namespace

std::optional<SpecDifference> NetworkDifference(const ModelSpec& a, const ModelSpec& b) {
  ModelSpec like_b = a;
  like_b.stack.pattern = b.stack.pattern;
  like_b.stack.repeat = b.stack.repeat;
  like_b.input.max_length = b.input.max_length;
  if (a.image() && b.image()) like_b.part = b.part;
  if (auto difference = FirstDifference(like_b, b)) return difference;
  const auto differ = [](const char* name, int of_a, int of_b) -> std::optional<SpecDifference> {
    if (of_a == of_b) return std::nullopt;
    return SpecDifference{name, std::to_string(of_a), std::to_string(of_b)};
  };
  if (auto difference = differ("layers", a.stack.layers(), b.stack.layers())) return difference;
  for (size_t i = 0; i < static_cast<size_t>(a.stack.layers()); ++i) {
    const MixerSpec &of_a = a.stack.mixer(i), &of_b = b.stack.mixer(i);
    for (const auto& difference : {differ("heads", of_a.heads, of_b.heads),
                                   differ("query_dim", of_a.query_dim, of_b.query_dim),
                                   differ("value_dim", of_a.value_dim, of_b.value_dim)}) {
      if (difference) return difference;
    }
  }
  return std::nullopt;
}

std::vector<std::string> CopyWeights(const std::string& path, Network& network) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  const ModelSpec &here = network.spec(), &there = checkpoint.spec();
  // Comparing shapes is not enough: the number of heads, the activation and the order of norms do
  // not change shapes.
  if (const auto difference = NetworkDifference(there, here)) {
    throw InputError(path, ": its network differs from the model's: ", difference->field, " is ",
                     difference->a, " in the file and ", difference->b,
                     " in the model; only attention, length and the size of images may differ");
  }
  const std::vector<TensorInfo> table = TensorTable(here);
  for (const linnet::Tensor& tensor : checkpoint.file().tensors()) {
    const bool known = std::any_of(table.begin(), table.end(), [&](const TensorInfo& info) {
      return info.name == tensor.name || ScaleName(info.name) == tensor.name ||
             FactorName(info.name) == tensor.name;
    });
    if (!known && !IsBuffer(tensor.name)) {
      throw InputError(path, ": its network differs from the model's: the file has an additional ",
                       "tensor ", Quote(tensor.name));
    }
  }
  const auto row_bytes = [](const ModelSpec& spec) {
    return spec.image() ? spec.image()->RowBytes() : 0;
  };
  // Whether to copy a tensor of the checkpoint: every parameter, and the buffers that fit.
  const auto fits = [&](const TensorInfo& info) {
    if (!IsBuffer(info.name)) return true;
    const linnet::Tensor* tensor = checkpoint.file().Find(info.name);
    if (tensor == nullptr || tensor->shape != info.shape) return false;
    if (info.name.ends_with(".omega")) {
      const size_t layer = LayerOf(info.name);
      return there.stack.mixer(layer).feature_map == here.stack.mixer(layer).feature_map;
    }
    return info.name != "pos_embedding.pe" || here.input.positions != Positions::kGrid ||
           row_bytes(there) == row_bytes(here);
  };
  std::vector<std::string> kept;  // buffers of the network that the checkpoint does not replace
  std::map<std::string, std::span<const float>> taken;
  for (const TensorInfo& info : table) {  // validates all tensors before any weight changes
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
