// What every network of a ModelSpec has in common: what training, saving and loading need of it.
//
//   std::shared_ptr<Network> network = MakeNetwork(spec);     // a SequenceModel or a SpeechModel
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

// What a network is built with for training, beside its spec.
struct TrainingOptions {
  double dropout = 0;
  // Or "bf16": the layers' matrix products, and those of a head of 1,024 classes or more; others stay fp32.
  std::string precision = "fp32";
  bool checkpoint_layers = false;  // see Recompute()
  torch::Device device = torch::kCPU;
};

class Network : public torch::nn::Module {
 public:
  // Throws InputError on a spec that makes no model.
  explicit Network(const ModelSpec& spec);

  const ModelSpec& spec() const { return spec_; }
  torch::Device device() const;  // where its weights are, and its inputs must be

 private:
  ModelSpec spec_;
};

// The layers' part of a spec.
TransformerOptions OptionsOf(const ModelSpec& spec, const TrainingOptions& options);

// What the head's product is computed in.
ops::Precision HeadPrecision(const ModelSpec& spec, const TrainingOptions& options);

// The spec's PositionTable(), put beside what stands for the symbols, or added to it.
class PositionalEmbeddingImpl : public torch::nn::Module {
 public:
  explicit PositionalEmbeddingImpl(const ModelSpec& spec);
  // x [N, L, value_embedding], of the positions from `first` on -> [N, L, d_model]
  torch::Tensor Place(const torch::Tensor& x, int64_t first = 0) const;
  torch::Tensor pe;  // [1, max_length, dim], a buffer

 private:
  bool added_;
};
TORCH_MODULE(PositionalEmbedding);

// A SpeechModel where the spec reads frames, an EncoderDecoder where its network is one, a
// SequenceModel otherwise.
std::shared_ptr<Network> MakeNetwork(const ModelSpec& spec, const TrainingOptions& options = {});

// Checkpoints of model/checkpoint.h. `training` is JSON on what the model was trained on, or "".
void SaveModel(const std::string& path, const Network& network, const std::string& training);
std::shared_ptr<Network> LoadNetwork(const std::string& path);

// The first field in which two specs differ, other than attention (but its heads and their
// dimensions), length and the size of images: none where one network can take the other's weights.
std::optional<SpecDifference> NetworkDifference(const ModelSpec& a, const ModelSpec& b);

// Gives the network the weights of a checkpoint that has no NetworkDifference() to it: softmax
// attention's weights to linear attention, say. Returns the names of the tensors that the network
// keeps, since the checkpoint has none that fit: random features, the table of positions. Throws
// InputError, naming the field, where the network is another one, and where a weight is no number; the
// network is then as it was.
std::vector<std::string> CopyWeights(const std::string& path, Network& network);

// The tensors of the checkpoint's table, parameters and buffers, by their names there.
std::map<std::string, torch::Tensor> ModelTensors(const Network& network);

}  // namespace linnet::nn

#endif  // LINNET_NN_NETWORK_H_
