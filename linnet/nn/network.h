// Network, the base class of the networks that a ModelSpec describes, and functions that make, save
// and load networks and copy their weights.
//
//   std::shared_ptr<Network> network = MakeNetwork(spec);     // for example a SequenceModel
//   SaveModel("digits.safetensors", *network, training_json);
//   std::shared_ptr<Network> again = LoadNetwork("digits.safetensors");
#ifndef LINNET_NN_NETWORK_H_
#define LINNET_NN_NETWORK_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linnet/model/spec.h"
#include "linnet/nn/transformer.h"

namespace linnet::nn {

// Settings for training. A network's spec does not contain them.
struct TrainingOptions {
  double dropout = 0;
  // "fp32", or "bf16" for the matrix products of the layers and of a head with 1,024 classes or
  // more; the rest stays fp32.
  std::string precision = "fp32";
  bool checkpoint_layers = false;  // activation checkpointing; see Recompute()
  torch::Device device = torch::kCPU;
};

class Network : public torch::nn::Module {
 public:
  // Throws InputError on an invalid spec.
  explicit Network(const ModelSpec& spec);

  const ModelSpec& spec() const { return spec_; }
  torch::Device device() const;  // the device of the weights; inputs must be there too

 private:
  ModelSpec spec_;
};

// The options of the transformer in a spec's network.
TransformerOptions OptionsOf(const ModelSpec& spec, const TrainingOptions& options);

// The head: a linear layer over the last layer's outputs.
torch::nn::Linear MakeHead(const ModelSpec& spec);

// The precision of the head's matrix product.
ops::Precision HeadPrecision(const ModelSpec& spec, const TrainingOptions& options);

// The spec's PositionTable(), concatenated to the value embeddings or added to them.
class PositionalEmbeddingImpl : public torch::nn::Module {
 public:
  explicit PositionalEmbeddingImpl(const ModelSpec& spec);
  // Adds or concatenates the table's rows for positions first .. first + L - 1:
  // x [N, L, value_embedding] -> [N, L, d_model].
  torch::Tensor Place(const torch::Tensor& x, int64_t first = 0) const;
  torch::Tensor pe;  // [1, max_length, dim], a buffer

 private:
  bool added_;
};
TORCH_MODULE(PositionalEmbedding);

// Makes a SpeechModel if spec.ReadsFrames(), an EncoderDecoder if spec.encoder_decoder(), and a
// SequenceModel otherwise.
std::shared_ptr<Network> MakeNetwork(const ModelSpec& spec, const TrainingOptions& options = {});

// Writes a checkpoint (model/checkpoint.h). `training` is JSON that describes the training data, or
// "".
void SaveModel(const std::string& path, const Network& network, const std::string& training);
// Makes the network of a checkpoint, with its weights.
std::shared_ptr<Network> LoadNetwork(const std::string& path);

// The first difference of the specs that keeps the network of `b` from using the weights of the
// network of `a`; nullopt if there is none. Ignores the mixers (except the number of heads and
// their dimensions), max_length and the image size.
std::optional<SpecDifference> NetworkDifference(const ModelSpec& a, const ModelSpec& b);

// Copies the weights of a checkpoint to the network, whose spec may differ where
// NetworkDifference() allows it, for example in the mixer. Returns the names of the network's
// buffers (random features, position table) that are not copied because the buffers in the
// checkpoint do not fit. Throws InputError, with the network unchanged, if the networks differ (the
// message names the field) or a weight is not finite.
std::vector<std::string> CopyWeights(const std::string& path, Network& network);

// The indices of the parameters that the optimizer muon orthogonalizes: all matrices with at least
// 16 rows and columns, except those of embeddings and of the head, depthwise filters and rwkv7's
// r_k.
std::vector<size_t> HiddenMatrices(const Network& network);

// The network's parameters and buffers by their names in a checkpoint.
std::map<std::string, torch::Tensor> ModelTensors(const Network& network);

}  // namespace linnet::nn

#endif  // LINNET_NN_NETWORK_H_
