#include "linnet/train/tokens.h"

#include <torch/utils.h>

#include <algorithm>
#include <utility>

#include "linnet/nn/encoder_decoder.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/vocabulary.h"

namespace linnet::train {

using torch::Tensor;

namespace {

// A batch: input tokens [N, L], padded with zeros, and the predictions that the loss counts.
struct Batch {
  Tensor inputs;
  std::vector<int64_t> rows, wanted;  // indices n * L + t into inputs, and the tokens to predict
};

// Makes a batch of the sequences, each without its tokens before index begin(sequence).
template <class BeginOf>
Batch Padded(std::span<const TokenSequence> sequences, BeginOf begin) {
  const auto n = static_cast<int64_t>(sequences.size());
  size_t longest = 2;
  for (const TokenSequence& one : sequences) {
    longest = std::max(longest, one.tokens.size() - begin(one));
  }
  const auto length = static_cast<int64_t>(longest) - 1;
  Batch batch{torch::zeros({n, length}, torch::kInt64), {}, {}};
  for (int64_t i = 0; i < n; ++i) {
    const TokenSequence& one = sequences[static_cast<size_t>(i)];
    const size_t first = begin(one);
    int64_t* in = batch.inputs.data_ptr<int64_t>() + i * length;
    for (size_t t = first; t + 1 < one.tokens.size(); ++t) {
      in[t - first] = one.tokens[t];
      if (t + 1 < one.counted) continue;
      batch.rows.push_back(i * length + static_cast<int64_t>(t - first));
      batch.wanted.push_back(one.tokens[t + 1]);
    }
  }
  return batch;
}

// The tokens before each sequence's separator, padded with zeros, and the number of these tokens.
std::pair<Tensor, Tensor> FirstLines(std::span<const TokenSequence> sequences) {
  std::vector<int64_t> lengths;
  for (const TokenSequence& one : sequences) {
    lengths.push_back(static_cast<int64_t>(one.counted) - 1);
  }
  const auto n = static_cast<int64_t>(sequences.size());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  Tensor lines = torch::zeros({n, longest}, torch::kInt64);
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<int32_t>& tokens = sequences[static_cast<size_t>(i)].tokens;
    std::copy_n(tokens.begin(), lengths[static_cast<size_t>(i)],
                lines.data_ptr<int64_t>() + i * longest);
  }
  return {lines, torch::tensor(lengths, torch::kInt64)};
}

// The part's pieces of the sequences: of each, the same range of positions, which begins with
// `first`. A sequence that ends before or within the range has no tokens there, or fewer.
std::vector<TokenSequence> Pieces(std::span<const TokenSequence> sequences, const Part& part,
                                  int64_t& first) {
  size_t longest = 2;
  for (const TokenSequence& one : sequences) longest = std::max(longest, one.tokens.size());
  const auto positions = static_cast<int64_t>(longest) - 1;
  first = positions * part.piece / part.pieces;
  const auto begin = static_cast<size_t>(first);
  const auto end = static_cast<size_t>(positions * (part.piece + 1) / part.pieces);
  std::vector<TokenSequence> pieces;
  for (const TokenSequence& one : sequences) {
    const size_t last = std::min(end, one.tokens.size() - 1);  // index of the last token to predict
    TokenSequence piece = {.tokens = {0}, .counted = one.counted > begin ? one.counted - begin : 1};
    if (begin < last) {
      piece.tokens.assign(one.tokens.begin() + static_cast<ptrdiff_t>(begin),
                          one.tokens.begin() + static_cast<ptrdiff_t>(last + 1));
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace

TokenLoss Evaluate(nn::Network& network, std::span<const TokenSequence> sequences,
                   const Part& part) {
  const torch::Device device = network.device();
  nn::SequencePiece place = {.exchange = part.exchange};
  std::vector<TokenSequence> pieces;
  if (part.pieces > 1) sequences = pieces = Pieces(sequences, part, place.first);
  TokenLoss loss;
  for (const TokenSequence& one : sequences) {
    loss.read += static_cast<int64_t>(one.tokens.size()) - 1;
  }
  Tensor logits, targets;
  const auto to = [&](const std::vector<int64_t>& values) {
    return ToDevice(torch::tensor(values, torch::kInt64), device);
  };
  if (auto* pair = dynamic_cast<nn::EncoderDecoderImpl*>(&network)) {
    const auto [first, lengths] = FirstLines(sequences);
    const Batch batch = Padded(sequences, [](const TokenSequence& one) { return one.counted - 1; });
    logits = pair->At(ToDevice(first, device), ToDevice(lengths, device),
                      ToDevice(batch.inputs, device), to(batch.rows));
    targets = to(batch.wanted);
  } else {
    const Batch batch = Padded(sequences, [](const TokenSequence&) { return size_t{0}; });
    auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
    const Tensor inputs = ToDevice(batch.inputs, device), rows = to(batch.rows);
    logits = part.pieces > 1 ? model.At(inputs, rows, place) : model.At(inputs, rows);
    targets = to(batch.wanted);
  }
  loss.counted = targets.numel();
  loss.nats = nn::CrossEntropyNats(logits, targets).sum();
  loss.right = logits.detach().argmax(1).eq(targets).sum();
  return loss;
}

Tensor NatsOf(nn::Network& network, const Tensor& tokens) {
  const int64_t length = tokens.size(1) - 1;
  auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
  const Tensor logits = model.forward(tokens.narrow(1, 0, length));
  return nn::CrossEntropyNats(logits.flatten(0, 1), tokens.narrow(1, 1, length).flatten()).sum();
}

ModelSpec TextModelSpec(const TrainConfig& config, const TextSpec& text, int64_t max_length) {
  ModelSpec spec = BaseSpec(config);
  spec.part = text;
  spec.input.vocabulary = spec.head.classes = static_cast<int>(Vocabulary(text).size());
  spec.head.kind = HeadKind::kCategorical;
  if (spec.PositionDims() > 0 && spec.input.positions == Positions::kSequence) {
    spec.input.positions = Positions::kAdded;
  }
  spec.input.value_embedding = spec.stack.d_model;
  spec.head.tied = config.tied, spec.head.bias = config.head_bias;
  spec.input.max_length = static_cast<int>(max_length);
  return spec;
}

}  // namespace linnet::train
