// Loss over token sequences of unequal length, and model specs, for the tasks on text.
#ifndef LINNET_TRAIN_TOKENS_H_
#define LINNET_TRAIN_TOKENS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linnet/train/task.h"

namespace linnet::train {

// A sequence. The loss counts its tokens from index `counted` on, each predicted from all tokens
// before it.
struct TokenSequence {
  std::vector<int32_t> tokens;
  size_t counted = 1;
};

// The loss over a batch of sequences.
struct TokenLoss {
  torch::Tensor nats;   // sum over the predicted tokens
  torch::Tensor right;  // int64: number of tokens that the argmax predicts correctly
  int64_t counted = 0;  // predicted tokens
  int64_t read = 0;     // input tokens: all but the last of each sequence
};

// The loss of a batch. Each sequence has at least two tokens. Shorter sequences are padded with
// zeros, which the loss does not count. The encoder of an encoder-decoder reads the tokens before
// the separator, which has index counted - 1. If `part` is a piece of the sequences, the losses of
// all pieces add up to that of the whole sequences.
TokenLoss Evaluate(nn::Network& network, std::span<const TokenSequence> sequences,
                   const Part& part = {});

// The sum of the loss over all tokens but the first of each sequence of `tokens`, int64 [N, L].
torch::Tensor NatsOf(nn::Network& network, const torch::Tensor& tokens);

// BaseSpec() with the vocabulary of `text`, a categorical head over it, and sinusoidal positions
// (if the config has any) added to the embeddings.
ModelSpec TextModelSpec(const TrainConfig& config, const TextSpec& text, int64_t max_length);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_TOKENS_H_
