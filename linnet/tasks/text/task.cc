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
  const Vocabulary vocabulary = VocabularyOf(model);
  const std::vector<int32_t> tokens = vocabulary.Encode(text);
  // For each window, the model reads the tokens that begin a text and all tokens of the window
  // except the last. These are max_length tokens, since a model may have no more positions.
  const auto trained = static_cast<size_t>(model.spec().input.max_length);
  const size_t window = trained - std::min(trained, vocabulary.begin().size()) + 1;
  size_t windows = (tokens.size() + window - 1) / window;
  if (options.limit > 0) windows = std::min(windows, options.limit);
  if (windows == 0) throw InputError(options.from.dir, ": is empty");
  const Stopwatch watch;
  double nats = 0;
  size_t counted = 0, unknown = 0, bytes = 0;
  for (size_t i = 0; i < windows; ++i) {
    const auto part =
        std::span(tokens).subspan(i * window, std::min(window, tokens.size() - i * window));
    std::vector<int32_t> piece = vocabulary.begin();
    piece.insert(piece.end(), part.begin(), part.end());
    nats += NatsOf(engine, piece, vocabulary.begin().size());
    counted += part.size();
    unknown += vocabulary.CountUnknown(part);
    for (const int32_t token : part) bytes += vocabulary.Decode(token).size();
    report(i + 1, windows);
  }
  const double bits = nats / static_cast<double>(counted) / std::numbers::ln2;
  CheckMean(model, bits);
  const TextUnit unit = vocabulary.unit();
  const auto rounded = [](double x) { return std::round(x * 1e4) / 1e4; };
  Evaluation evaluation = {
      .record = {{"bits_per_token", bits},
                 {"tokens", counted},
                 {"unknown", unknown},
                 {"unit", NameOf(unit)},
                 {"seconds", watch.Seconds()}},
      .summary = StrCat("bits/", unit, " ", rounded(bits), " over ", counted, " ", unit, "s",
                        unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "")};
  if (unit == TextUnit::kToken && bytes > 0) {
    const double per_byte = nats / static_cast<double>(bytes) / std::numbers::ln2;
    evaluation.record["bits_per_byte"] = per_byte;
    evaluation.summary += StrCat(", ", rounded(per_byte), " bits/byte");
  }
  return evaluation;
}

}  // namespace

TaskLines DescribeText(const ModelSpec& spec) {
  const TextUnit unit = spec.text()->unit;
  const int special = unit == TextUnit::kToken ? 0 : Vocabulary::kFirst;
  return {{"task", StrCat(", ", spec.input.vocabulary - special, " ", unit, "s",
                          spec.head.tied ? "; embedding and head share one matrix" : "")}};
}

namespace {

constexpr MorePath kMore[] = {
    {"/v1/chat/completions", server::MakeChats,
     [](const server::ServedModel& model) { return model.chat != nullptr; },
     "this server answers no chats; start it with --chat FORMAT"},
    {"/v1/responses", server::MakeResponses,
     [](const server::ServedModel& model) { return model.chat != nullptr; },
     "this server answers no chats; start it with --chat FORMAT"},
    {"/v1/states", server::MakeStates,
     [](const server::ServedModel& model) { return model.keeper != nullptr; },
     "this server keeps no states; start it with --state-folder DIR"},
};

}  // namespace

constinit const Task kTextTask = {
    .name = "text",
    .description = "running text",
    .evaluating = "reading",
    .evaluate = EvalText,
    .describe = DescribeText,
    .path = "/v1/completions",
    .endpoint = server::MakeCompletions,
    .more = kMore,
};

}  // namespace linnet
