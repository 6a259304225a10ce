// What the tasks over text share: batches of sequences of unequal length, and their loss.
#ifndef LINNET_TRAIN_SYMBOLS_H_
#define LINNET_TRAIN_SYMBOLS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/train/task.h"

namespace linnet::train {

// Symbols, of which those from `counted` on are to be predicted from the ones before them.
struct SymbolSequence {
  std::vector<int32_t> symbols;
  size_t counted = 1;
};

// What a model made of some sequences: the sum of nats over what is to be predicted, and how much that is.
struct SymbolLoss {
  torch::Tensor nats;
  int64_t counted = 0, right = 0;  // right: where the likeliest symbol was the one
  int64_t read = 0;
};

// Sequences of two symbols at least; shorter ones are padded with zeros, behind which nothing counts.
// An encoder-decoder's encoder reads what stands before the symbol counted - 1, the separator.
SymbolLoss Evaluate(nn::Network& network, std::span<const SymbolSequence> sequences);

// BaseSpec() for text: positions added, weights tied or not, and the vocabulary.
ModelSpec TextModelSpec(const TrainConfig& config, const TextSpec& text, int64_t max_length);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_SYMBOLS_H_
