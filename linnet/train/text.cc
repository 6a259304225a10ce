// Language models of any text, read as bytes, characters or byte-pair tokens.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/rng.h"
#include "linnet/train/tokens.h"
#include "linnet/vocabulary.h"

namespace linnet::train {
namespace {

class TextTask : public Task {
 public:
  explicit TextTask(const TrainConfig& config) : config_(config) {
    if (config.data.empty())
      throw InputError(
          "--data is missing: name a file with the text "
          "('linnet data shakespeare' downloads one)");
    const std::string text = ReadFile(config.data);
    const Vocabulary vocabulary = VocabularyFor(config, text);
    text_ = vocabulary.Save(), begin_ = vocabulary.begin();
    std::vector<int32_t> tokens = vocabulary.Encode(text);
    // Holds out the end of the text for validation.
    const auto kept =
        static_cast<size_t>(config.validation_share * static_cast<double>(tokens.size()));
    validation_.assign(tokens.end() - static_cast<ptrdiff_t>(kept), tokens.end());
    tokens.resize(tokens.size() - kept);
    train_ = std::move(tokens);
    const auto least = static_cast<size_t>(config.context);
    if (train_.size() < least) {
      throw InputError(config.data, ": ", train_.size(),
                       " training tokens are fewer than --context ", config.context,
                       "; lower --context or --validation-share");
    }
    if (validation_.empty()) {
      throw InputError(config.data, ": too short to hold out a share of ", config.validation_share,
                       " for validation");
    }
  }

  ModelSpec Spec() const override { return TextModelSpec(config_, text_, config_.context); }

  int64_t StepsPerEpoch() const override {
    return std::max<int64_t>(1, static_cast<int64_t>(train_.size()) / TokensPerStep());
  }

  int64_t TokensPerStep() const override { return int64_t{config_.batch} * config_.context; }

  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override {
    std::vector<TokenSequence> batch;
    for (int64_t i = part.Begin(config_.batch); i < part.End(config_.batch); ++i) {
      batch.push_back({Window(step, i)});
    }
    const TokenLoss loss = Evaluate(network, batch, part);
    return Mean(loss.nats, loss.read);
  }

  std::vector<torch::Tensor> BatchTensors(int64_t step) override {
    std::vector<torch::Tensor> windows;
    for (int64_t i = 0; i < config_.batch; ++i) {
      windows.push_back(torch::tensor(Window(step, i), torch::kInt64));
    }
    return {torch::stack(windows)};
  }

  StepLoss LossOf(nn::Network& network, const std::vector<torch::Tensor>& batch) override {
    return Mean(NatsOf(network, batch[0]), TokensPerStep());
  }

  bool TakesPieces() const override { return true; }

  // Evaluates consecutive windows of the validation text, each without the text before it.
  std::vector<double> ValidationSums(nn::Network& network, const Part& part) override {
    constexpr size_t kBatch = 16;
    const auto window = static_cast<size_t>(config_.context);
    double nats = 0, counted = 0;
    int64_t windows = 0;
    size_t batches = 0;
    std::vector<TokenSequence> batch;
    for (size_t begin = 0; begin < validation_.size() && windows < config_.validation_windows;
         begin += window) {
      batch.push_back({Piece(validation_, begin, window)});
      ++windows;
      const bool last =
          begin + window >= validation_.size() || windows == config_.validation_windows;
      if (batch.size() < kBatch && !last) continue;
      if (part.Has(batches++)) {
        const TokenLoss loss = Evaluate(network, batch, part);
        nats += loss.nats.item<double>();
        counted += static_cast<double>(loss.counted);
      }
      batch.clear();
    }
    return {nats, counted};
  }
  Metrics MetricsOf(const std::vector<double>& sums) const override {
    return {{"bits_per_token", sums[0] / sums[1] / std::numbers::ln2}};
  }

  std::string Data() const override {
    return StrCat("a text of ", train_.size() + validation_.size(), " ", config_.unit, "s");
  }

 private:
  static Vocabulary VocabularyFor(const TrainConfig& config, const std::string& text) {
    const auto unit = ParseName<TextUnit>(config.unit, "--unit");
    if ((unit == TextUnit::kToken) == config.tokenizer.empty()) {
      throw InputError(config.tokenizer.empty()
                           ? "--unit token needs --tokenizer FILE, a tokenizer.json"
                           : "--tokenizer is for --unit token");
    }
    switch (unit) {
      case TextUnit::kByte:
        return Vocabulary::Bytes();
      case TextUnit::kCharacter:
        return Vocabulary::OfText(text, static_cast<size_t>(config.characters),
                                  static_cast<size_t>(config.min_count));
      case TextUnit::kToken:
        break;
    }
    return Vocabulary::OfTokenizer(ReadFile(config.tokenizer), /*end=*/-1, config.tokenizer);
  }

  // Sequence i of an update.
  std::vector<int32_t> Window(int64_t step, int64_t i) const {
    const auto window = static_cast<size_t>(config_.context);
    Philox rng(config_.seed, static_cast<uint64_t>(step), static_cast<uint64_t>(i) << 32);
    return Piece(train_, rng.Below(static_cast<uint32_t>(train_.size() - window + 1)), window);
  }

  // The loss of an update from the sum over its predictions, of which the part read `read` tokens.
  StepLoss Mean(const torch::Tensor& nats, int64_t read) const {
    const torch::Tensor value = nats / static_cast<double>(TokensPerStep());
    const torch::Tensor bits = value.detach().to(torch::kFloat64) / std::numbers::ln2;
    return {value, {{"bits_per_token", bits}}, read};
  }

  // The last token of begin_, then up to `most` tokens from index `begin` on. Each window thus
  // starts as a whole text does, so models learn to begin a text.
  std::vector<int32_t> Piece(const std::vector<int32_t>& tokens, size_t begin, size_t most) const {
    const size_t end = std::min(tokens.size(), begin + most);
    std::vector<int32_t> piece = {begin_.back()};
    piece.insert(piece.end(), tokens.begin() + static_cast<ptrdiff_t>(begin),
                 tokens.begin() + static_cast<ptrdiff_t>(end));
    return piece;
  }

  TrainConfig config_;
  TextSpec text_;
  std::vector<int32_t> begin_;  // the tokens that a model reads before a text
  std::vector<int32_t> train_, validation_;
};

}  // namespace

const TaskInfo kTextTask = {
    "text",
    "Train a language model of bytes, characters or byte-pair tokens on a text",
    "linnet train text --preset small --data shakespeare/input.txt --out runs/text",
    {{"base", "6 layers x 256, windows of 256 tokens: an hour on two cores",
      R"({"layers": 6, "batch": 16, "activation": "gelu", "norm_first": true, "optimizer": "adam",
          "beta2": 0.98, "lr": 1e-3, "lr_warmup": 200, "lr_decay": 100000000,
          "lr_decay_form": "cosine", "steps": 3000, "validate_every": 250})"},
     {"small",
      "4 layers x 128: 2.29 bits a byte on Tiny Shakespeare after ten minutes on two cores",
      R"({"layers": 4, "heads": 4, "d_model": 128, "convolution": 4, "batch": 16,
          "activation": "gelu", "norm_first": true, "optimizer": "adam", "beta2": 0.98, "lr": 2e-3,
          "lr_warmup": 200, "lr_decay": 100000000, "lr_decay_form": "cosine",
          "steps": 2000, "validate_every": 250})"},
     {"demo",
      "the network of small, trained by muon: 2.25 to 2.28 bits a byte on Tiny Shakespeare "
      "after eight minutes in fp32 on one core",
      R"({"layers": 4, "heads": 4, "d_model": 128, "convolution": 4, "batch": 16,
          "activation": "gelu", "norm_first": true, "optimizer": "muon", "beta2": 0.98,
          "lr": 1.6e-2, "lr_warmup": 200, "lr_decay": 100000000, "lr_decay_form": "cosine",
          "steps": 1000, "validate_every": 250})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<TextTask>(config);
    }};

}  // namespace linnet::train
