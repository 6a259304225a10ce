// Couplets: predicts the second line character by character, after the first line and a separator.
#include <algorithm>
#include <cmath>
#include <set>

#include "linnet/error.h"
#include "linnet/rng.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/train/tokens.h"
#include "linnet/vocabulary.h"

namespace linnet::train {
namespace {

constexpr char kComma[] = "，";
// OfOtherLength() joins at most kMostPieces parts of at most kLongestPiece characters.
constexpr size_t kMostPieces = 4, kLongestPiece = 7;

class CoupletTask : public Task {
 public:
  explicit CoupletTask(const TrainConfig& config) : config_(config) {
    if (config.data.empty()) {
      throw InputError(
          "--data is missing: name a folder with train/in.txt and train/out.txt "
          "('linnet data couplets' downloads one)");
    }
    CoupletSet train = LoadCouplets(config.data, CoupletSplit::kTrain);
    const CoupletSet validation = LoadCouplets(config.data, CoupletSplit::kValidation);
    if (train.left_out > 0) {
      remarks_.push_back(StrCat("left out ", train.left_out,
                                " training pairs whose lines are empty or differ in length"));
    }
    std::string text;
    for (const Couplet& pair : train.pairs) {
      text += pair.first + pair.second;
      if (config.other_lengths > 0) text += kComma;
    }
    const Vocabulary vocabulary = Vocabulary::OfText(text, static_cast<size_t>(config.characters),
                                                     static_cast<size_t>(config.min_count));
    text_ = vocabulary.Save();
    train_ = Encode(train, vocabulary);
    validation_ = Encode(validation, vocabulary);
    if (config.validation_pairs > 0) {
      validation_.resize(
          std::min(validation_.size(), static_cast<size_t>(config.validation_pairs)));
    }
    size_t unknown = 0, all = 0;
    for (const auto* set : {&train_, &validation_}) {
      for (const TokenSequence& one : *set) {
        longest_ = std::max(longest_, one.tokens.size());
        for (const int32_t token : one.tokens) {
          if (set == &validation_) unknown += token == Vocabulary::kUnknown, ++all;
        }
      }
    }
    if (config.other_lengths > 0) {
      longest_ = std::max(longest_, 2 * (kMostPieces * (kLongestPiece + 1) - 1) + 2);
      comma_ = vocabulary.Encode(kComma)[0];
    }
    if (unknown > 0) {
      char share[32];
      std::snprintf(share, sizeof(share), "%.2f",
                    100 * static_cast<double>(unknown) / static_cast<double>(all));
      remarks_.push_back(StrCat(share, "% of the validation tokens are unknown characters"));
    }
    if (train_.size() < static_cast<size_t>(config.batch)) {
      throw InputError("--batch ", config.batch, " is more than the ", train_.size(),
                       " training pairs");
    }
  }

  ModelSpec Spec() const override {
    return TextModelSpec(config_, text_,
                         std::max<int64_t>(config_.max_length, static_cast<int64_t>(longest_)));
  }

  int64_t StepsPerEpoch() const override {
    return static_cast<int64_t>(train_.size()) / config_.batch;
  }

  int64_t TokensPerStep() const override {
    double tokens = 0;
    for (const TokenSequence& one : train_) tokens += static_cast<double>(one.tokens.size()) - 1;
    return std::llround(tokens / static_cast<double>(train_.size()) * config_.batch);
  }

  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override {
    const int64_t epoch = step / StepsPerEpoch(), in_epoch = step % StepsPerEpoch();
    if (epoch != epoch_) {
      order_ = RandomPermutation(static_cast<uint32_t>(train_.size()),
                                 Philox(config_.seed, static_cast<uint64_t>(epoch)));
      epoch_ = epoch;
    }
    const uint32_t* chosen = order_.data() + in_epoch * config_.batch;
    // The random streams of updates begin at 2^40, because streams 0, 1, ... shuffle the pairs of
    // epochs 0, 1, ... All examples of an update have the same number of pieces, so that the batch
    // has little padding.
    Philox rng(config_.seed, (uint64_t{1} << 40) + static_cast<uint64_t>(step));
    static constexpr size_t kPieces[] = {1, 1, 2, 2, 2, 2, 3, kMostPieces};
    const bool whole = rng.Uniform() >= config_.other_lengths;
    const size_t pieces = whole ? 0 : kPieces[rng.Below(std::size(kPieces))];
    size_t counted = 0;
    std::vector<TokenSequence> batch;
    for (int64_t i = 0; i < config_.batch; ++i) {
      const TokenSequence one =
          pieces > 0 ? OfOtherLength(chosen[i], pieces, rng) : train_[chosen[i]];
      counted += one.tokens.size() - one.counted;
      if (i >= part.Begin(config_.batch) && i < part.End(config_.batch)) batch.push_back(one);
    }
    const TokenLoss loss = Evaluate(network, batch);
    const torch::Tensor value = loss.nats / static_cast<double>(counted);
    return {value,
            {{"nats_per_character", value.detach()},
             {"accuracy", loss.right.to(torch::kFloat64) / static_cast<double>(counted)}},
            loss.read};
  }

  std::vector<double> ValidationSums(nn::Network& network, const Part& part) override {
    constexpr size_t kBatch = 64;
    double nats = 0;
    int64_t counted = 0, right = 0;
    for (size_t begin = 0; begin < validation_.size(); begin += kBatch) {
      if (!part.Has(begin / kBatch)) continue;
      const TokenLoss loss = Evaluate(
          network,
          std::span(validation_).subspan(begin, std::min(kBatch, validation_.size() - begin)));
      nats += loss.nats.item<double>();
      counted += loss.counted, right += loss.right.item<int64_t>();
    }
    return {nats, static_cast<double>(counted), static_cast<double>(right)};
  }
  Metrics MetricsOf(const std::vector<double>& sums) const override {
    const double mean = sums[0] / sums[1];
    return {{"nats_per_character", mean},
            {"perplexity", std::exp(mean)},
            {"accuracy", sums[2] / sums[1]}};
  }

  std::string Data() const override { return StrCat("couplets: ", train_.size(), " pairs"); }
  std::vector<std::string> Remarks() const override { return remarks_; }

 private:
  // Encodes each pair as its first line, the separator, its second line and the end token. The loss
  // counts the tokens after the separator.
  static std::vector<TokenSequence> Encode(const CoupletSet& set, const Vocabulary& vocabulary) {
    std::vector<TokenSequence> sequences;
    for (const Couplet& pair : set.pairs) {
      TokenSequence one;
      one.tokens = vocabulary.Encode(pair.first);
      one.tokens.push_back(Vocabulary::kSeparator);
      one.counted = one.tokens.size();
      for (const int32_t token : vocabulary.Encode(pair.second)) one.tokens.push_back(token);
      one.tokens.push_back(Vocabulary::kEnd);
      sequences.push_back(std::move(one));
    }
    return sequences;
  }

  // A training example of a length that pairs may not have. If `pieces` is 1, it is a Piece
  // (couplets.h) of pair `index`. Otherwise it joins up to `pieces` pieces or whole pairs, most of
  // them separated by commas: the first is from pair `index`, the others are from random pairs.
  // Random pairs without pieces are skipped; if pair `index` has no pieces, the example is that
  // whole pair.
  TokenSequence OfOtherLength(uint32_t index, size_t pieces, Philox& rng) const {
    std::vector<int32_t> first, second;
    for (size_t i = 0; i < pieces; ++i) {
      const TokenSequence& pair =
          train_[i == 0 ? index : rng.Below(static_cast<uint32_t>(train_.size()))];
      const size_t characters = pair.counted - 1;
      const std::span<const Piece> cuts = PiecesOf(characters);
      if (cuts.empty()) {
        if (i == 0) return pair;
        continue;
      }
      Piece piece{0, characters};
      if (pieces == 1 || rng.Below(2) == 0)
        piece = cuts[rng.Below(static_cast<uint32_t>(cuts.size()))];
      if (i > 0 && rng.Below(4) > 0) first.push_back(comma_), second.push_back(comma_);
      const auto begin = pair.tokens.begin();
      const auto copy = [&](std::vector<int32_t>& to, size_t line) {
        to.insert(to.end(), begin + static_cast<ptrdiff_t>(line + piece.begin),
                  begin + static_cast<ptrdiff_t>(line + piece.end));
      };
      copy(first, 0), copy(second, pair.counted);
    }
    TokenSequence one{std::move(first), 0};
    one.tokens.push_back(Vocabulary::kSeparator);
    one.counted = one.tokens.size();
    one.tokens.insert(one.tokens.end(), second.begin(), second.end());
    one.tokens.push_back(Vocabulary::kEnd);
    return one;
  }

  TrainConfig config_;
  TextSpec text_;
  int32_t comma_ = 0;
  std::vector<TokenSequence> train_, validation_;
  size_t longest_ = 0;
  std::vector<std::string> remarks_;
  int64_t epoch_ = -1;
  std::vector<uint32_t> order_;
};

}  // namespace

const TaskInfo kCoupletTask = {
    "couplet",
    "Train a model that writes the second line of a Chinese couplet, given the first",
    "linnet train couplet --preset small --data couplets/ --out runs/couplet",
    {{"report",
      "the model of a report that replicates the paper: 8 layers x 8 heads of 32, RAdam at 1e-4, "
      "20 epochs; two cores of a Xeon take 13 minutes for 250,000 pairs",
      R"({"batch": 64, "epochs": 20, "lr": 1e-4, "max_length": 128, "validate_every": 500})"},
     {"small",
      "4 layers x 192, gelu, pre-norm, 8 epochs; two cores of a Xeon take 7 minutes for 250,000 "
      "pairs; with --d-model 256 --heads 8, perplexity 101 per character on regulated verse",
      R"({"layers": 4, "heads": 6, "d_model": 192, "activation": "gelu", "norm_first": true,
          "batch": 64, "optimizer": "adam", "beta2": 0.98, "lr": 1e-3, "lr_warmup": 500,
          "lr_decay": 100000000, "lr_decay_form": "cosine", "dropout": 0.1, "epochs": 8,
          "max_length": 128, "other_lengths": 0.25, "validate_every": 500})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<CoupletTask>(config);
    }};

}  // namespace linnet::train
