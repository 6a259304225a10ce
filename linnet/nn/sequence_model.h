// The whole network of a ModelSpec: embedding, transformer, head. Predicts symbol t+1 from 0 .. t.
//
//   SequenceModel model(spec);
//   torch::Tensor out = model->forward(tokens);       // [N, L] -> [N, L, spec.OutputSize()]
//   SequenceState state;
//   torch::Tensor out_t = model->Step(tokens.select(1, t), t, state);
//   SaveModel("digits.safetensors", *model, training_json);
#ifndef LINNET_NN_SEQUENCE_MODEL_H_
#define LINNET_NN_SEQUENCE_MODEL_H_

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <string>
#include <vector>

#include "linnet/model/spec.h"
#include "linnet/nn/transformer.h"

namespace linnet::nn {

// The spec's PositionTable(), put beside the value embedding.
class PositionalEmbeddingImpl : public torch::nn::Module {
 public:
  explicit PositionalEmbeddingImpl(const ModelSpec& spec);
  torch::Tensor pe;  // [1, max_length, dim], a buffer
};
TORCH_MODULE(PositionalEmbedding);

// What a network is built with for training, beside its spec.
struct TrainingOptions {
  double dropout = 0;
  std::string precision = "fp32";  // or "bf16": the layers' matrix products; the head's stay fp32
  bool checkpoint_layers = false;  // see Recompute()
  torch::Device device = torch::kCPU;
};

// What stepping keeps; empty at the beginning. A value: copying one forks the sequence.
struct SequenceState {
  RecurrentState layers;
  torch::Tensor recent;  // the last symbols read, up to a row of an image: [N, <= RowBytes]
};

class SequenceModelImpl : public torch::nn::Module {
 public:
  explicit SequenceModelImpl(const ModelSpec& spec, const TrainingOptions& options = {});

  // int64 tokens [N, L], L <= max_length -> the head's outputs [N, L, OutputSize].
  torch::Tensor forward(const torch::Tensor& tokens);
  // int64 tokens [N] at position t -> [N, OutputSize]. Throws InputError where the attention kind
  // has no recurrent form.
  torch::Tensor Step(const torch::Tensor& tokens, int64_t position, SequenceState& state);

  const ModelSpec& spec() const { return spec_; }
  torch::Device device() const;  // where its weights are, and its tokens must be

  // How often the data begins with each symbol, [vocabulary]; images only, uniform until set.
  torch::Tensor first_value;

 private:
  // The value part of the input: symbols [...] and, with pixel_above, those above the next ones.
  torch::Tensor Values(const torch::Tensor& tokens, const torch::Tensor& above);
  torch::Tensor Predict(const torch::Tensor& x);  // the head's outputs

  ModelSpec spec_;
  torch::nn::Embedding value_embedding_;
  torch::nn::Embedding above_embedding_ = nullptr;
  PositionalEmbedding pos_embedding_ = nullptr;
  Transformer transformer_;
  torch::nn::Linear predictor_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(SequenceModel);

// Checkpoints of model/checkpoint.h. `training` is JSON on what the model was trained on, or "".
void SaveModel(const std::string& path, const SequenceModelImpl& model,
               const std::string& training);
SequenceModel LoadModel(const std::string& path);

// Gives the model the weights of a checkpoint whose network is the same but for its attention, its
// length and the size of its images: softmax attention's weights to linear attention, say. Returns the
// names of what the model keeps, since the checkpoint has none that fit: random features, the table of
// positions. Throws InputError, naming the field, where the network is another one, and where a weight is
// no number; the model is then as it was.
std::vector<std::string> CopyWeights(const std::string& path, SequenceModelImpl& model);

// The tensors of the checkpoint's table, parameters and buffers, by their names there.
std::map<std::string, torch::Tensor> ModelTensors(const SequenceModelImpl& model);

}  // namespace linnet::nn

#endif  // LINNET_NN_SEQUENCE_MODEL_H_
