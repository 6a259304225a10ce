// Shared by the text tasks: batches of sequences of unequal length, and their loss.
#ifndef LINNET_TRAIN_TokenS_H_
#define LINNET_TRAIN_TokenS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/train/task.h"

namespace linnet::train {

// A sequence of tokens; those from index `counted` on are predicted from all before them.
struct TokenSequence {
  std::vector<int32_t> tokens;
  size_t counted = 1;
};

// The loss over some sequences: the sum of nats over the predicted tokens, and their number.
struct TokenLoss {
  torch::Tensor nats;
  torch::Tensor right;  // int64: the number of predictions whose most likely token is correct
  int64_t counted = 0;
  int64_t read = 0;
};

// The sequences must have at least two tokens; shorter ones are padded with zeros, which do not
// count. The encoder of an encoder-decoder reads the tokens before the separator, which has index
// counted - 1.
TokenLoss Evaluate(nn::Network& network, std::span<const TokenSequence> sequences);

// BaseSpec() for text: with added positions, weights tied or not, and the vocabulary.
ModelSpec TextModelSpec(const TrainConfig& config, const TextSpec& text, int64_t max_length);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_TokenS_H_
