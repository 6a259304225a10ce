// Text: evaluates bits per token over a file.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/spec.h"
#include "linnet/tasks/task.h"
#include "linnet/tasks/text/text.h"

namespace linnet {
namespace {

// Bits per token over a file, in consecutive windows that are evaluated independently.
Evaluation EvalText(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const Model& model = engine.model();
  if (options.from.dir.empty()) {
    throw InputError(model.path(), ": a language model; name a file of text with --data FILE");
  }
  const std::string text = ReadFile(options.from.dir);
  const std::vector<int32_t> tokens = VocabularyOf(model).Encode(text);
  const auto window = static_cast<size_t>(model.spec().input.max_length);
  size_t windows = (tokens.size() + window - 1) / window;
  if (options.limit > 0) windows = std::min(windows, options.limit);
  if (windows == 0) throw InputError(options.from.dir, ": is empty");
  const Stopwatch watch;
  double nats = 0;
  size_t counted = 0, unknown = 0;
  for (size_t i = 0; i < windows; ++i) {
    const auto part =
        std::span(tokens).subspan(i * window, std::min(window, tokens.size() - i * window));
    std::vector<int32_t> piece = {Vocabulary::kEnd};  // the token that begins a text
    piece.insert(piece.end(), part.begin(), part.end());
    nats += NatsOf(engine, piece, 1);
    counted += piece.size() - 1;
    unknown +=
        static_cast<size_t>(std::count(piece.begin() + 1, piece.end(), Vocabulary::kUnknown));
    report(i + 1, windows);
  }
  const double bits = nats / static_cast<double>(counted) / std::numbers::ln2;
  CheckMean(model, bits);
  const TextUnit unit = model.spec().text()->unit;
  return {
      .record = {{"bits_per_token", bits},
                 {"tokens", counted},
                 {"unknown", unknown},
                 {"unit", NameOf(unit)},
                 {"seconds", watch.Seconds()}},
      .summary = StrCat("bits/", unit, " ", std::round(bits * 1e4) / 1e4, " over ", counted, " ",
                        unit, "s", unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "")};
}

}  // namespace

TaskLines DescribeText(const ModelSpec& spec) {
  return {{"task", StrCat(", ", spec.input.vocabulary - Vocabulary::kFirst, " ",
                          spec.text()->unit == TextUnit::kByte ? "bytes" : "characters",
                          spec.head.tied ? "; embedding and head share one matrix" : "")}};
}

constinit const Task kTextTask = {
    .name = "text",
    .description = "running text",
    .evaluating = "reading",
    .evaluate = EvalText,
    .describe = DescribeText,
    .path = "/v1/completions",
    .endpoint = server::MakeCompletions,
};

}  // namespace linnet
