// linnet eval of models of couplets: perplexity a character.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/eval.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/isa.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/tasks/text/text.h"

namespace linnet::cli {
namespace {

// Perplexity a character of second lines, the end not counted: how long they are is no secret.
void EvalCouplets(const EvalOptions& options, const std::shared_ptr<const Model>& model) {
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
      // An encoder-decoder has a row of positions for either line.
      const size_t read = model->spec().encoder_decoder()
                              ? std::max(counted - 1, symbols.size() - counted)
                              : symbols.size() - 1;
      if (read > static_cast<size_t>(model->spec().input.max_length)) {
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

}  // namespace

const EvalTask kEvalCouplet = {"couplet", EvalCouplets};

}  // namespace linnet::cli
