// linnet eval of language models: bits a symbol over a file.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/eval.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/kernels/isa.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/text/text.h"

namespace linnet::cli {
namespace {

// Bits a symbol over a file, in windows one behind the other, each on its own.
void EvalText(const EvalOptions& options, const std::shared_ptr<const Model>& model) {
  if (options.from.dir.empty()) {
    throw InputError(model->path(), ": a language model; name a file of text with --data FILE");
  }
  const std::string text = ReadFile(options.from.dir);
  const std::vector<int32_t> symbols = VocabularyOf(*model).Encode(text);
  const auto window = static_cast<size_t>(model->spec().input.max_length);
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
               {"unit", model->spec().text()->unit},
               {"seconds", watch.Seconds()},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << StrCat("bits/", model->spec().text()->unit, " ", std::round(bits * 1e4) / 1e4,
                        " over ", counted, " ", model->spec().text()->unit, "s",
                        unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "", " (",
                        FormatSeconds(watch.Seconds()), ")\n");
  }
}

}  // namespace

const EvalTask kEvalText = {"text", EvalText};

}  // namespace linnet::cli
