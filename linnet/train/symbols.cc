#include "linnet/train/symbols.h"

#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>

#include "linnet/model/vocabulary.h"
#include "linnet/nn/sequence_model.h"

namespace linnet::train {

using torch::Tensor;

SymbolLoss Evaluate(nn::Network& network, std::span<const SymbolSequence> sequences) {
  const auto n = static_cast<int64_t>(sequences.size());
  size_t longest = 2;
  for (const SymbolSequence& one : sequences) longest = std::max(longest, one.symbols.size());
  const auto length = static_cast<int64_t>(longest) - 1;
  constexpr int64_t kNothing = -100;
  const Tensor inputs = torch::zeros({n, length}, torch::kInt64);
  const Tensor targets = torch::full({n, length}, kNothing, torch::kInt64);
  SymbolLoss loss;
  for (int64_t i = 0; i < n; ++i) {
    const SymbolSequence& one = sequences[static_cast<size_t>(i)];
    int64_t* in = inputs.data_ptr<int64_t>() + i * length;
    int64_t* target = targets.data_ptr<int64_t>() + i * length;
    for (size_t t = 0; t + 1 < one.symbols.size(); ++t) {
      in[t] = one.symbols[t];
      if (t + 1 >= one.counted) target[t] = one.symbols[t + 1];
    }
    loss.counted += static_cast<int64_t>(one.symbols.size() - one.counted);
    loss.read += static_cast<int64_t>(one.symbols.size()) - 1;
  }
  const Tensor wanted = targets.to(network.device()).flatten();
  const Tensor logits =
      dynamic_cast<nn::SequenceModelImpl&>(network).forward(inputs.to(network.device()));
  const Tensor flat = logits.flatten(0, 1);
  loss.nats = torch::nn::functional::cross_entropy(
      flat, wanted,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kNothing).reduction(
          torch::kSum));
  loss.right = flat.detach().argmax(1).eq(wanted).sum().item<int64_t>();
  return loss;
}

ModelSpec TextSpecOf(const TrainConfig& config, const std::string& unit,
                     const std::string& characters, int64_t max_length) {
  ModelSpec spec = BaseSpec(config);
  spec.text = {.unit = unit, .characters = characters};
  spec.vocabulary = spec.classes = static_cast<int>(Vocabulary(unit, characters).size());
  spec.head = "categorical";
  spec.positions = "added";
  spec.value_embedding = spec.d_model;
  spec.tied = config.tied;
  spec.max_length = static_cast<int>(max_length);
  return spec;
}

}  // namespace linnet::train
