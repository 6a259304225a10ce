#include "linnet/train/symbols.h"

#include <torch/utils.h>

#include <algorithm>

#include "linnet/model/vocabulary.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"

namespace linnet::train {

using torch::Tensor;

SymbolLoss Evaluate(nn::Network& network, std::span<const SymbolSequence> sequences) {
  const auto n = static_cast<int64_t>(sequences.size());
  size_t longest = 2;
  for (const SymbolSequence& one : sequences) longest = std::max(longest, one.symbols.size());
  const auto length = static_cast<int64_t>(longest) - 1;
  const Tensor inputs = torch::zeros({n, length}, torch::kInt64);
  std::vector<int64_t> rows, wanted;  // where something is to be predicted, and what
  SymbolLoss loss;
  for (int64_t i = 0; i < n; ++i) {
    const SymbolSequence& one = sequences[static_cast<size_t>(i)];
    int64_t* in = inputs.data_ptr<int64_t>() + i * length;
    for (size_t t = 0; t + 1 < one.symbols.size(); ++t) {
      in[t] = one.symbols[t];
      if (t + 1 < one.counted) continue;
      rows.push_back(i * length + static_cast<int64_t>(t));
      wanted.push_back(one.symbols[t + 1]);
    }
    loss.read += static_cast<int64_t>(one.symbols.size()) - 1;
  }
  loss.counted = static_cast<int64_t>(rows.size());
  const torch::Device device = network.device();
  const Tensor targets = torch::tensor(wanted, torch::kInt64).to(device);
  auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
  const Tensor logits = model.At(inputs.to(device), torch::tensor(rows, torch::kInt64).to(device));
  loss.nats = nn::CrossEntropyNats(logits, targets).sum();
  const Tensor chosen = logits.detach().gather(1, targets.unsqueeze(1)).squeeze(1);
  loss.right = chosen.ge(logits.detach().amax(1)).sum().item<int64_t>();
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
