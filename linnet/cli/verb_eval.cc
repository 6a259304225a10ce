// linnet eval: how good a model is, measured with the runtime that will run it.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/image_options.h"
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"
#include "linnet/data/copy_task.h"
#include "linnet/data/couplets.h"
#include "linnet/io/file.h"
#include "linnet/kernels/isa.h"
#include "linnet/runtime/copy.h"
#include "linnet/runtime/images.h"
#include "linnet/runtime/text.h"

namespace linnet::cli {
namespace {

struct Options {
  std::string model;
  DatasetOptions from;
  size_t limit = 0, batch = 64;
  std::optional<Precision> precision;
  int threads = 0, show = 0;
  uint64_t seed = 0;
  bool json = false;
  std::string dictionary;
  int beam = 1;
};

constexpr size_t kCopySequences = 200;
// Training draws its sequences from streams 0, 1, 2, ... of its seed: these are far from them.
constexpr uint64_t kFreshStreams = uint64_t{1} << 62;

void EvalImages(const Options& options, const std::shared_ptr<const Model>& model) {
  if (options.from.dir.empty()) {
    throw InputError(model->path(),
                     ": an image model; name the folder of its data set with --data DIR");
  }
  const ImageSet images = LoadImagesFor(model->spec(), options.from);
  const size_t count = options.limit > 0 ? std::min(options.limit, images.size()) : images.size();
  const ImageDataset& dataset = FindImageDataset(images.name);
  const size_t whole = options.from.split == "train" ? dataset.train_images : dataset.test_images;
  Engine engine(model, {.threads = options.threads});

  const Stopwatch watch;
  double bits = 0;
  WithProgress("evaluating", [&](const auto& report) {
    const auto pixels = std::span(images.pixels).first(count * images.image_bytes());
    bits = BitsPerDim(engine, pixels, {.batch = options.batch, .progress = &report}).mean;
  });
  const double seconds = watch.Seconds();
  if (!std::isfinite(bits)) {
    throw RuntimeError(model->path(), ": predicts no numbers (", bits, "); its weights are broken");
  }
  if (options.json) {
    PrintJson({{"bits_per_dim", bits},
               {"nats_per_dim", bits * std::numbers::ln2},
               {"images", count},
               {"split_images", whole},
               {"seconds", seconds},
               {"split", options.from.split},
               {"dataset", images.name},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << StrCat("bits/dim ", std::round(bits * 1e4) / 1e4, " over ", count,
                        count < whole ? StrCat(" of the ", whole) : "", " ", options.from.split,
                        " images of ", images.name, " (", FormatSeconds(seconds), ")\n");
  }
}

std::string Join(std::span<const int32_t> symbols) {
  std::string text;
  for (int32_t symbol : symbols) text += (text.empty() ? "" : " ") + std::to_string(symbol);
  return text;
}

void EvalCopy(const Options& options, const std::shared_ptr<const Model>& model) {
  if (!options.from.dir.empty()) {
    throw InputError(model->path(), ": a model of the task 'copy', which needs no data; leave out ",
                     "--data");
  }
  CopyTask task;
  task.symbols = model->spec().vocabulary - 1;
  task.max_length = std::max(1, model->spec().max_length / 2);
  const size_t count = options.limit > 0 ? options.limit : kCopySequences;
  Engine engine(model, {.threads = options.threads});

  const Stopwatch watch;
  size_t symbols = 0, right = 0, whole = 0;
  std::string shown;
  WithProgress("copying", [&](const auto& report) {
    for (size_t i = 0; i < count; ++i) {
      const CopyBatch sample = MakeCopyBatch(task, 1, Philox(options.seed, kFreshStreams + i));
      const size_t n = static_cast<size_t>(sample.lengths[0]);
      const std::vector<int32_t> given(sample.tokens.begin(),
                                       sample.tokens.begin() + sample.lengths[0]);
      const std::vector<int32_t> copied = CopySymbols(engine, given);
      size_t same = 0;
      for (size_t t = 0; t < n; ++t) same += given[t] == copied[t];
      symbols += n;
      right += same;
      whole += same == n;
      if (i < static_cast<size_t>(options.show)) {
        shown +=
            StrCat("given   ", Join(given), "\ncopied  ", Join(copied), "\n",
                   same == n ? "" : StrCat("        ", n - same, " of ", n, " differ\n"), "\n");
      }
      report(i + 1, count);
    }
  });
  const double seconds = watch.Seconds();
  const double accuracy = static_cast<double>(right) / static_cast<double>(symbols);
  if (options.json) {
    PrintJson({{"accuracy", accuracy},
               {"sequences", count},
               {"sequences_right", whole},
               {"symbols", symbols},
               {"seconds", seconds},
               {"seed", options.seed},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << shown
              << StrCat("accuracy ", std::round(accuracy * 1e4) / 100, "% of ", symbols,
                        " symbols; ", whole, " of ", count, " sequences without a mistake (",
                        FormatSeconds(seconds), ")\n");
  }
}

// Bits a symbol over a file, in windows one behind the other, each on its own.
void EvalText(const Options& options, const std::shared_ptr<const Model>& model) {
  if (options.from.dir.empty()) {
    throw InputError(model->path(), ": a language model; name a file of text with --data FILE");
  }
  const std::string text = ReadFile(options.from.dir);
  const std::vector<int32_t> symbols = VocabularyOf(*model).Encode(text);
  const auto window = static_cast<size_t>(model->spec().max_length);
  size_t windows = (symbols.size() + window - 1) / window;
  if (options.limit > 0) windows = std::min(windows, options.limit);
  if (windows == 0) throw InputError(options.from.dir, ": is empty");
  Engine engine(model, {.threads = options.threads});
  const Stopwatch watch;
  double nats = 0;
  size_t counted = 0, unknown = 0;
  WithProgress("reading", [&](const auto& report) {
    for (size_t i = 0; i < windows; ++i) {
      const auto part =
          std::span(symbols).subspan(i * window, std::min(window, symbols.size() - i * window));
      std::vector<int32_t> piece = {Vocabulary::kEnd};  // what a text begins with
      piece.insert(piece.end(), part.begin(), part.end());
      nats += NatsOf(engine, piece, 1);
      counted += piece.size() - 1;
      unknown +=
          static_cast<size_t>(std::count(piece.begin() + 1, piece.end(), Vocabulary::kUnknown));
      report(i + 1, windows);
    }
  });
  const double bits = nats / static_cast<double>(counted) / std::numbers::ln2;
  if (!std::isfinite(bits)) {
    throw RuntimeError(model->path(), ": predicts no numbers (", bits, "); its weights are broken");
  }
  if (options.json) {
    PrintJson({{"bits_per_symbol", bits},
               {"symbols", counted},
               {"unknown", unknown},
               {"unit", model->spec().text.unit},
               {"seconds", watch.Seconds()},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << StrCat("bits/", model->spec().text.unit, " ", std::round(bits * 1e4) / 1e4,
                        " over ", counted, " ", model->spec().text.unit, "s",
                        unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "", " (",
                        FormatSeconds(watch.Seconds()), ")\n");
  }
}

// Perplexity a character of second lines, the end not counted: how long they are is no secret.
void EvalCouplets(const Options& options, const std::shared_ptr<const Model>& model) {
  if (options.from.dir.empty()) {
    throw InputError(model->path(), ": a model of couplets; name their folder with --data DIR");
  }
  const CoupletSplit split = options.from.split == "train"        ? CoupletSplit::kTrain
                             : options.from.split == "validation" ? CoupletSplit::kValidation
                                                                  : CoupletSplit::kTest;
  CoupletSet set = LoadCouplets(options.from.dir, split);
  if (options.limit > 0 && options.limit < set.pairs.size()) set.pairs.resize(options.limit);
  const Vocabulary vocabulary = VocabularyOf(*model);
  Engine engine(model, {.threads = options.threads});
  const Stopwatch watch;
  double nats = 0;
  size_t characters = 0, unknown = 0, too_long = 0;
  WithProgress("reading", [&](const auto& report) {
    for (size_t i = 0; i < set.pairs.size(); ++i) {
      std::vector<int32_t> symbols = vocabulary.Encode(set.pairs[i].first);
      symbols.push_back(Vocabulary::kSeparator);
      const size_t counted = symbols.size();
      for (const int32_t symbol : vocabulary.Encode(set.pairs[i].second)) symbols.push_back(symbol);
      if (symbols.size() > static_cast<size_t>(model->spec().max_length) + 1) {
        ++too_long;
      } else {
        nats += NatsOf(engine, symbols, counted);
        characters += symbols.size() - counted;
        unknown += static_cast<size_t>(std::count(symbols.begin() + static_cast<ptrdiff_t>(counted),
                                                  symbols.end(), Vocabulary::kUnknown));
      }
      report(i + 1, set.pairs.size());
    }
  });
  if (characters == 0)
    throw InputError(options.from.dir, ": no couplet is short enough for the model");
  const double mean = nats / static_cast<double>(characters);
  if (!std::isfinite(mean)) {
    throw RuntimeError(model->path(), ": predicts no numbers; its weights are broken");
  }
  if (options.json) {
    PrintJson({{"perplexity", std::exp(mean)},
               {"nats_per_character", mean},
               {"characters", characters},
               {"unknown", unknown},
               {"pairs", set.pairs.size() - too_long},
               {"left_out", set.left_out + too_long},
               {"split", options.from.split},
               {"seconds", watch.Seconds()},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << StrCat(
        "perplexity ", std::round(std::exp(mean) * 100) / 100, " a character over ", characters,
        " characters of ", set.pairs.size() - too_long, " second lines",
        unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "",
        set.left_out + too_long > 0 ? StrCat("; ", set.left_out + too_long, " pairs left out") : "",
        " (", FormatSeconds(watch.Seconds()), ")\n");
  }
}

// A model of speech is heard by the program that reads sound, with what was given here.
[[noreturn]] void EvalSpeech(const Options& options) {
  for (const auto& [given, flag] :
       {std::pair(options.show != 0, "--show"), std::pair(options.seed != 0, "--seed"),
        std::pair(!options.from.name.empty(), "--dataset"),
        std::pair(options.batch != Options().batch, "--batch")}) {
    if (given)
      throw InputError(options.model, ": a model of speech, to which ", flag, " means nothing");
  }
  std::vector<std::string> arguments = {options.model, "--split", options.from.split};
  const auto give = [&](bool given, const char* flag, const std::string& value) {
    if (!given) return;
    arguments.push_back(flag);
    if (!value.empty()) arguments.push_back(value);
  };
  give(!options.from.dir.empty(), "--data", options.from.dir);
  give(!options.dictionary.empty(), "--dictionary", options.dictionary);
  give(options.limit > 0, "--limit", std::to_string(options.limit));
  give(options.beam > 1, "--beam", std::to_string(options.beam));
  give(options.precision.has_value(), "--precision",
       options.precision ? PrecisionName(*options.precision) : "");
  give(options.threads > 0, "--threads", std::to_string(options.threads));
  give(options.json, "--json", "");
  Become(SpeechSibling("eval"), arguments);
}

void Run(const Options& options) {
  if (Checkpoint::Open(options.model).spec().task == "speech") EvalSpeech(options);
  if (!options.dictionary.empty() || options.beam > 1) {
    throw InputError(options.model,
                     ": no model of speech, and --dictionary and --beam are for those");
  }
  const auto model = Model::Open(options.model, {options.precision});
  const std::string& task = model->spec().task;
  if (task == "images") {
    EvalImages(options, model);
  } else if (task == "copy") {
    EvalCopy(options, model);
  } else if (task == "text") {
    EvalText(options, model);
  } else if (task == "couplet") {
    EvalCouplets(options, model);
  } else {
    throw InputError(model->path(), ": linnet eval knows no measure for the task '", task, "'");
  }
}

}  // namespace

void AddEval(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "eval", "Measure how good a model is",
      "Image models: bits/dim over a data set's images. Copy models: the share of symbols that\n"
      "they repeat rightly, over random sequences that they never saw. Models of speech: the phone "
      "error\n"
      "rate over AN4's test set (--data its folder) or a manifest's recordings.",
      "  linnet eval models/digits.safetensors --data data/mnist\n"
      "  linnet eval models/digits.safetensors --data data/mnist --limit 100 --json\n"
      "  linnet eval runs/copy/model.safetensors --show 3\n"
      "  linnet eval models/phones.safetensors --data data/an4\n");
  auto options = std::make_shared<Options>();
  AddModelArgument(verb, options->model);
  AddDatasetOptions(verb, options->from);
  verb->add_option("--limit", options->limit,
                   StrCat("Only the first N images or utterances (default: all); or N sequences "
                          "(default: ",
                          kCopySequences, ")"))
      ->type_name("N")
      ->check(Between(1, 100'000'000));
  AddBatchOption(verb, options->batch);
  verb->add_option("--seed", options->seed, "Copy models: which random sequences")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  verb->add_option("--show", options->show, "Copy models: print the first N sequences and copies")
      ->type_name("N")
      ->check(Between(0, 1000));
  verb->add_option("--dictionary", options->dictionary,
                   "Speech: words and their phones, for a manifest's texts")
      ->type_name("FILE");
  verb->add_option("--beam", options->beam, "Speech: weigh this many prefixes")
      ->type_name("N")
      ->check(Between(1, 1000))
      ->capture_default_str();
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
