// Phone recognition (section 4.3 of the paper): an encoder over frames, trained with CTC.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>

#include "linnet/base/thread_pool.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/speech_model.h"
#include "linnet/rng.h"
#include "linnet/tasks/speech/audio.h"
#include "linnet/tasks/speech/ctc.h"
#include "linnet/tasks/speech/filterbank.h"
#include "linnet/tasks/speech/speech_set.h"
#include "linnet/train/task.h"

namespace linnet::train {
namespace {

using torch::Tensor;

constexpr int kSampleRate = 16'000;
constexpr size_t kPool = 8;   // Shuffle() sorts the utterances of this many batches by length
constexpr size_t kNamed = 5;  // maximum number of utterances that a remark names

// An utterance, at one speed or several.
struct Example {
  std::vector<std::vector<float>> frames;  // [T, bands] for each speed
  std::vector<int64_t> phones;             // classes; 0 is the blank, so these are 1 and up
  std::string id;
};

// Mean and deviation of each band.
struct Statistics {
  std::vector<float> mean, deviation;
};

class SpeechTask : public Task {
 public:
  explicit SpeechTask(const TrainConfig& config) : config_(config), bands_(Size(config.bands)) {
    if (config.data.empty()) {
      throw InputError(
          "--data is missing: name the folder of AN4 ('linnet data an4' downloads it), "
          "or a manifest");
    }
    spec_ = BaseSpec(config);
    spec_.head.kind = HeadKind::kCategorical;
    spec_.part = SpeechSpec{.sample_rate = kSampleRate,
                            .bands = config.bands,
                            .stack = config.stack,
                            .stride = config.stride,
                            .lookahead = config.lookahead,
                            .normalization = ParseName<BandNorm>(config.normalize, "--normalize"),
                            .phones = "-"};
    spec_.head.classes = spec_.input.vocabulary = 2;  // placeholders until the data is read
    // Three quarters of the dimensions are for the frames, which carry more information than the
    // positions.
    spec_.input.value_embedding = config.d_model - (config.d_model / 8) * 2;
    ValidateSpec(spec_);

    SpeechSet train, validation;
    if (An4Present(config.data)) {
      train = LoadAn4(config.data, SpeechSplit::kTrain);
      validation = LoadAn4(config.data, SpeechSplit::kValidation);
    } else {
      if (config.validation.empty()) {
        throw InputError("--validation is missing: name a manifest of utterances for validation");
      }
      const Pronunciations dictionary =
          config.dictionary.empty() ? Pronunciations() : Pronunciations::Read(config.dictionary);
      train = LoadManifest(config.data, dictionary);
      validation = LoadManifest(config.validation, dictionary, train.phones);
    }
    for (const std::string& phone : train.phones) {
      names_ += (names_.empty() ? "" : " ") + phone;
    }
    name_ = train.name;
    std::vector<double> speeds = {1};
    if (config.speed_perturbation > 0) {
      speeds.push_back(1 - config.speed_perturbation);
      speeds.push_back(1 + config.speed_perturbation);
    }
    train_ = Read(train, speeds, true);
    validation_ = Read(validation, {1}, false);
    Normalize();
    if (train_.size() < Size(config.batch)) {
      throw InputError("--batch ", config.batch, " is more than the ", train_.size(),
                       " training utterances");
    }
    size_t longest = 1;
    for (const auto* set : {&train_, &validation_}) {
      for (const Example& example : *set) {
        for (const auto& frames : example.frames) longest = std::max(longest, Positions(frames));
      }
    }
    spec_.input.max_length = static_cast<int>(longest);
    spec_.speech()->phones = names_;
    spec_.head.classes = spec_.input.vocabulary = static_cast<int>(train.phones.size()) + 1;
  }

  ModelSpec Spec() const override { return spec_; }

  int64_t StepsPerEpoch() const override {
    return static_cast<int64_t>(train_.size()) / config_.batch;
  }

  int64_t TokensPerStep() const override {
    double positions = 0;
    for (const Example& example : train_)
      positions += static_cast<double>(Positions(example.frames[0]));
    return std::llround(positions / static_cast<double>(train_.size()) * config_.batch);
  }

  void Prepare(nn::Network& network) const override {
    auto& model = dynamic_cast<nn::SpeechModelImpl&>(network);
    if (model.input_norm.is_empty()) return;
    torch::NoGradGuard no_grad;
    model.input_norm->mean.copy_(torch::tensor(corpus_.mean));
    model.input_norm->deviation.copy_(torch::tensor(corpus_.deviation));
  }

  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override {
    const int64_t epoch = step / StepsPerEpoch(), in_epoch = step % StepsPerEpoch();
    if (epoch != epoch_) Shuffle(epoch);
    const uint32_t* chosen = order_.data() + batches_[Size(in_epoch)] * Size(config_.batch);
    int64_t phones = 0;
    for (int i = 0; i < config_.batch; ++i) {
      phones += static_cast<int64_t>(train_[chosen[i]].phones.size());
    }
    std::vector<Picked> picked;
    for (int64_t i = part.Begin(config_.batch); i < part.End(config_.batch); ++i) {
      const Example& example = train_[chosen[i]];
      Philox rng(config_.seed, static_cast<uint64_t>(step), static_cast<uint64_t>(i) << 32);
      const size_t speed = rng.Below(static_cast<uint32_t>(example.frames.size()));
      std::vector<float> frames = example.frames[speed];
      Mask(frames, rng);
      picked.push_back({std::move(frames), &example});
    }
    const Batch batch = MakeBatch(picked, network.device());
    const Tensor nats = Nats(network, batch);
    const Tensor fits = Fits(nats.detach());
    const Tensor value =
        torch::where(fits, nats, torch::zeros_like(nats)).sum() / static_cast<double>(phones);
    const Tensor skipped = nats.size(0) - fits.sum();
    return {value,
            {{"nats_per_phone", value.detach()}, {"skipped", skipped}},
            batch.lengths.sum().item<int64_t>()};
  }

  std::vector<double> ValidationSums(nn::Network& network, const Part& part) override {
    constexpr size_t kBatch = 16;
    ErrorRate errors;
    double sum = 0;
    for (size_t begin = 0; begin < validation_.size(); begin += kBatch) {
      if (!part.Has(begin / kBatch)) continue;
      std::vector<Picked> picked;
      for (size_t i = begin; i < std::min(begin + kBatch, validation_.size()); ++i) {
        picked.push_back({validation_[i].frames[0], &validation_[i]});
      }
      const Batch batch = MakeBatch(picked, network.device());
      Tensor log_probs;
      const Tensor nats = Nats(network, batch, &log_probs);
      sum += torch::where(Fits(nats), nats, torch::zeros_like(nats)).sum().item<double>();
      const Tensor there = log_probs.to(torch::kCPU).contiguous();
      const size_t classes = Size(spec_.head.classes);
      for (size_t n = 0; n < picked.size(); ++n) {
        const auto row = there.select(0, static_cast<int64_t>(n));
        const size_t length = Size(batch.lengths[static_cast<int64_t>(n)].item<int64_t>());
        const Decoded heard =
            GreedyDecode({row.data_ptr<float>(), length * classes}, classes, /*blank=*/0);
        const auto& said = picked[n].example->phones;
        errors.Add(std::vector<int>(said.begin(), said.end()), heard.labels);
      }
    }
    return {static_cast<double>(errors.errors()), sum, static_cast<double>(errors.reference())};
  }
  Metrics MetricsOf(const std::vector<double>& sums) const override {
    return {{"phone_error_rate", sums[0] / sums[2]}, {"nats_per_phone", sums[1] / sums[2]}};
  }

  std::string Data() const override {
    return StrCat(name_, ": ", train_.size(), " utterances, ", std::lround(seconds_ / 60),
                  " minutes");
  }

  std::vector<std::string> Remarks() const override { return remarks_; }

 private:
  struct Picked {
    std::vector<float> frames;
    const Example* example;
  };
  struct Batch {
    Tensor frames, lengths, phones, phone_lengths;
  };

  static size_t Size(int64_t n) { return static_cast<size_t>(n); }

  size_t Positions(const std::vector<float>& frames) const {
    const size_t stride = Size(config_.stride);
    return (frames.size() / bands_ + stride - 1) / stride;
  }

  // Reads the frames of all usable utterances; adds remarks on the others.
  std::vector<Example> Read(const SpeechSet& set, const std::vector<double>& speeds,
                            bool training) {
    const char* what = training ? "training" : "validation";
    const size_t count = set.utterances.size();
    std::vector<Example> read(count);
    std::vector<std::string> faults(count);
    std::vector<double> seconds(count);
    ThreadPool pool(config_.threads);
    pool.For(count, [&](size_t begin, size_t end) {
      Filterbank bank({.rate = kSampleRate, .bins = config_.bands});
      for (size_t i = begin; i < end; ++i) {
        faults[i] = ReadExample(set.utterances[i], speeds, bank, read[i], seconds[i]);
      }
    });
    std::vector<Example> good;
    std::vector<std::string> bad;
    for (size_t i = 0; i < count; ++i) {
      if (!faults[i].empty()) {
        bad.push_back(faults[i]);
        continue;
      }
      if (training) seconds_ += seconds[i];
      good.push_back(std::move(read[i]));
    }
    RemarkOnMissing(set, bad, what);
    if (good.empty()) {
      throw InputError(set.name, ": none of its ", count, " ", what, " utterances can be used",
                       bad.empty() ? "" : "; the first: " + bad[0]);
    }
    return good;
  }

  // Reads an utterance at each speed into `example`, and its duration into `seconds`. Returns the
  // reason if the utterance cannot be used, else "".
  std::string ReadExample(const Utterance& utterance, const std::vector<double>& speeds,
                          Filterbank& bank, Example& example, double& seconds) const {
    example.id = utterance.id;
    for (const int phone : utterance.phones) example.phones.push_back(phone + 1);
    try {
      const Audio audio = ReadAudio(utterance.audio, kSampleRate);
      seconds = audio.seconds();
      if (seconds > config_.max_seconds) {
        return StrCat(utterance.id, ": longer than --max-seconds ", config_.max_seconds);
      }
      for (const double speed : speeds) {
        const int from = static_cast<int>(std::lround(kSampleRate * speed));
        example.frames.push_back(
            bank.Compute(speed == 1 ? audio.samples : Resample(audio.samples, from, kSampleRate)));
      }
    } catch (const Error& error) {
      return error.what();
    }
    size_t positions = SIZE_MAX, needed = example.phones.size();
    for (const auto& frames : example.frames) positions = std::min(positions, Positions(frames));
    for (size_t p = 1; p < example.phones.size(); ++p) {  // CTC needs a blank between equal phones
      needed += example.phones[p] == example.phones[p - 1];
    }
    if (needed == 0) return StrCat(utterance.id, ": has no phones");
    if (positions < needed) {
      return StrCat(utterance.id, ": its ", example.phones.size(), " phones do not fit into ",
                    positions, " positions");
    }
    return "";
  }

  // Adds remarks on the utterances of a set that are left out: those with words that the dictionary
  // lacks, and those with a fault in `faults`.
  void RemarkOnMissing(const SpeechSet& set, const std::vector<std::string>& faults,
                       const char* what) {
    if (!set.unknown_words.empty()) {
      std::string words;
      for (const std::string& word : set.unknown_words) words += StrCat(" ", Printable(word));
      remarks_.push_back(StrCat("left out ", set.left_out, " ", what,
                                " utterances with words that the dictionary lacks:", words));
    }
    if (faults.empty()) return;
    remarks_.push_back(StrCat("left out ", faults.size(), " ", what, " utterances:"));
    for (size_t i = 0; i < std::min(faults.size(), kNamed); ++i) {
      remarks_.push_back(StrCat("  ", Printable(faults[i])));
    }
    if (faults.size() > kNamed) {
      remarks_.push_back(StrCat("  and ", faults.size() - kNamed, " more"));
    }
  }

  void Normalize() {
    if (spec_.speech()->normalization == BandNorm::kUtterance) {
      for (auto* set : {&train_, &validation_}) {
        for (Example& example : *set) {
          for (auto& frames : example.frames) NormalizeFrames(frames, bands_);
        }
      }
      return;
    }
    std::vector<double> sums(bands_), squares(bands_);
    double count = 0;
    for (const Example& example : train_) {
      for (size_t i = 0; i < example.frames[0].size(); ++i) {
        sums[i % bands_] += example.frames[0][i];
        squares[i % bands_] += double{example.frames[0][i]} * example.frames[0][i];
      }
      count += static_cast<double>(example.frames[0].size() / bands_);
    }
    for (size_t b = 0; b < bands_; ++b) {
      const double mean = sums[b] / count;
      corpus_.mean.push_back(static_cast<float>(mean));
      corpus_.deviation.push_back(static_cast<float>(
          std::max(std::sqrt(std::max(squares[b] / count - mean * mean, 0.0)), 1e-5)));
    }
    for (auto* set : {&train_, &validation_}) {
      for (Example& example : *set) {
        for (auto& frames : example.frames) {
          NormalizeFrames(frames, corpus_.mean, corpus_.deviation);
        }
      }
    }
  }

  // Groups utterances of similar length into batches, and shuffles the batches.
  void Shuffle(int64_t epoch) {
    const auto count = static_cast<uint32_t>(train_.size());
    order_ = RandomPermutation(count, Philox(config_.seed, static_cast<uint64_t>(epoch)));
    // The rest is left out at random, not the longest utterances of the last pool.
    order_.resize(Size(StepsPerEpoch()) * Size(config_.batch));
    const size_t pool = kPool * Size(config_.batch);
    for (size_t begin = 0; begin < order_.size(); begin += pool) {
      const auto end =
          order_.begin() + static_cast<ptrdiff_t>(std::min(order_.size(), begin + pool));
      std::stable_sort(order_.begin() + static_cast<ptrdiff_t>(begin), end,
                       [&](uint32_t a, uint32_t b) {
                         return train_[a].frames[0].size() < train_[b].frames[0].size();
                       });
    }
    batches_ = RandomPermutation(static_cast<uint32_t>(StepsPerEpoch()),
                                 Philox(config_.seed, ~static_cast<uint64_t>(epoch)));
    epoch_ = epoch;
  }

  // SpecAugment (Park et al., 2019): sets ranges of bands and of frames to 0, the normalized mean.
  void Mask(std::vector<float>& frames, Philox& rng) const {
    const size_t count = frames.size() / bands_;
    const auto range = [&](size_t whole, size_t most) {
      const size_t width = rng.Below(static_cast<uint32_t>(std::min(most, whole)) + 1);
      const size_t begin = rng.Below(static_cast<uint32_t>(whole - width) + 1);
      return std::pair(begin, begin + width);
    };
    for (int i = 0; i < config_.band_masks; ++i) {
      const auto [begin, end] = range(bands_, Size(config_.band_mask_width));
      for (size_t t = 0; t < count; ++t) {
        for (size_t b = begin; b < end; ++b) frames[t * bands_ + b] = 0;
      }
    }
    for (int i = 0; i < config_.time_masks; ++i) {
      const auto [begin, end] =
          range(count, static_cast<size_t>(config_.time_mask_share * static_cast<double>(count)));
      std::fill(frames.begin() + static_cast<ptrdiff_t>(begin * bands_),
                frames.begin() + static_cast<ptrdiff_t>(end * bands_), 0.0f);
    }
  }

  Batch MakeBatch(const std::vector<Picked>& picked, torch::Device device) const {
    const auto n = static_cast<int64_t>(picked.size());
    const size_t stack = Size(config_.stack), inputs = stack * bands_;
    std::vector<int64_t> lengths, phone_lengths;
    for (const Picked& one : picked) {
      lengths.push_back(static_cast<int64_t>(Positions(one.frames)));
      phone_lengths.push_back(static_cast<int64_t>(one.example->phones.size()));
    }
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const int64_t most = *std::max_element(phone_lengths.begin(), phone_lengths.end());
    Tensor frames = torch::zeros({n, longest, static_cast<int64_t>(inputs)});
    Tensor phones = torch::zeros({n, most}, torch::kInt64);
    for (size_t i = 0; i < picked.size(); ++i) {
      float* to = frames.data_ptr<float>() + i * Size(longest) * inputs;
      for (int64_t p = 0; p < lengths[i]; ++p) {
        StackFrames(picked[i].frames, bands_, p * config_.stride + spec_.speech()->FirstFrame(),
                    stack, {to + Size(p) * inputs, inputs});
      }
      std::copy(picked[i].example->phones.begin(), picked[i].example->phones.end(),
                phones.data_ptr<int64_t>() + i * Size(most));
    }
    return {frames.to(device), torch::tensor(lengths).to(device), phones.to(device),
            torch::tensor(phone_lengths).to(device)};
  }

  // Whether the frames are enough for the phones: if not, CTC is infinite. A NaN stays in the loss,
  // so that training stops.
  static Tensor Fits(const Tensor& nats) { return nats != std::numeric_limits<double>::infinity(); }

  static Tensor Nats(nn::Network& network, const Batch& batch, Tensor* kept = nullptr) {
    auto& model = dynamic_cast<nn::SpeechModelImpl&>(network);
    const Tensor log_probs = torch::log_softmax(model.forward(batch.frames, batch.lengths), 2);
    if (kept != nullptr) *kept = log_probs;
    return nn::CtcNats(log_probs, batch.phones, batch.lengths, batch.phone_lengths);
  }

  TrainConfig config_;
  size_t bands_;
  ModelSpec spec_;
  std::string name_, names_;  // of the data set; of the phones, separated by spaces
  std::vector<Example> train_, validation_;
  Statistics corpus_;
  double seconds_ = 0;
  std::vector<std::string> remarks_;
  int64_t epoch_ = -1;
  std::vector<uint32_t> order_, batches_;  // orders in this epoch: of utterances, of batches
};

}  // namespace

const TaskInfo kSpeechTask = {
    "speech",
    "Train a phone recognizer with CTC (the paper's section 4.3)",
    "linnet train speech --preset small --data an4/ --out runs/phones",
    {{"paper",
      "the paper's encoder: 9 layers x 6 heads of 32, RAdam at a rate of 1e-4, halved on plateaus",
      R"({"attention": "linear", "layers": 9, "heads": 6, "d_model": 192, "batch": 16, "lr": 1e-4,
          "lr_patience": 5, "epochs": 100, "validate_every": 200})"},
     {"lstm",
      "the paper's baseline: 3 bidirectional layers x 320, Adam at a rate of 1e-3, halved on "
      "plateaus",
      R"({"network": "lstm", "layers": 3, "heads": 1, "d_model": 320, "batch": 16,
          "optimizer": "adam", "lr": 1e-3, "lr_patience": 5, "epochs": 100,
          "validate_every": 200})"},
     {"small",
      "6 layers x 192 with convolutions, for small data sets: 15 minutes on one core for an hour "
      "of speech",
      R"({"attention": "linear", "layers": 6, "heads": 6, "d_model": 192, "activation": "gelu",
          "norm_first": true, "convolution": 15, "dropout": 0.1, "batch": 16, "optimizer": "adam",
          "beta2": 0.98, "clip": 5, "lr": 1e-3, "lr_warmup": 200, "lr_decay": 1000000,
          "lr_decay_form": "cosine", "epochs": 60, "validate_every": 200})"},
     {"causal", "like small, but causal with a lookahead of 150 ms, for streams",
      R"({"attention": "causal-linear", "normalize": "corpus", "stack": 20, "lookahead": 15,
          "layers": 6, "heads": 6, "d_model": 192, "activation": "gelu", "norm_first": true,
          "convolution": 15, "dropout": 0.1, "batch": 16, "optimizer": "adam", "beta2": 0.98,
          "clip": 5, "lr": 1e-3, "lr_warmup": 200, "lr_decay": 1000000,
          "lr_decay_form": "cosine", "epochs": 60, "validate_every": 200})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<SpeechTask>(config);
    }};

}  // namespace linnet::train
