// The copy task: evaluates the fraction of tokens copied correctly, over sequences not used in
// training.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/error.h"
#include "linnet/rng.h"
#include "linnet/tasks/copy/copy.h"
#include "linnet/tasks/copy/copy_task.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

std::string Join(std::span<const int32_t> tokens) {
  std::string text;
  for (int32_t token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
  return text;
}

// The setting --min-length of the model's training, or its default.
int MinLength(const Model& model) {
  const auto training = nlohmann::json::parse(model.training(), nullptr, /*exceptions=*/false);
  const nlohmann::json::json_pointer setting("/config/min_length");
  const bool given =
      training.is_object() && training.contains(setting) && training[setting].is_number_integer();
  return given ? training[setting].get<int>() : CopyTask().min_length;
}

Evaluation EvalCopy(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const Model& model = engine.model();
  if (!options.from.dir.empty()) {
    throw InputError(model.path(), ": a model of the task 'copy', which needs no data; leave out ",
                     "--data");
  }
  CopyTask task = {.min_length = MinLength(model)};
  task.symbols = model.spec().input.vocabulary - 1;
  task.max_length = std::max(1, model.spec().input.max_length / 2);
  const size_t count = options.limit > 0 ? options.limit : kCopySequences;
  const Stopwatch watch;
  // right: tokens copied correctly; whole: sequences without a mistake.
  size_t tokens = 0, right = 0, whole = 0;
  std::string shown;
  for (size_t i = 0; i < count; ++i) {
    const CopyBatch sample = MakeCopyBatch(task, 1, Philox(options.seed, kFreshStreams + i));
    const size_t n = static_cast<size_t>(sample.lengths[0]);
    const std::vector<int32_t> given(sample.tokens.begin(),
                                     sample.tokens.begin() + sample.lengths[0]);
    const std::vector<int32_t> copied = CopyTokens(engine, given);
    size_t same = 0;
    for (size_t t = 0; t < n; ++t) same += given[t] == copied[t];
    tokens += n;
    right += same;
    whole += same == n;
    if (i < static_cast<size_t>(options.show)) {
      shown += StrCat("given   ", Join(given), "\ncopied  ", Join(copied), "\n",
                      same == n ? "" : StrCat("        ", n - same, " of ", n, " differ\n"), "\n");
    }
    report(i + 1, count);
  }
  const double accuracy = static_cast<double>(right) / static_cast<double>(tokens);
  return {.record = {{"accuracy", accuracy},
                     {"sequences", count},
                     {"sequences_right", whole},
                     {"tokens", tokens},
                     {"seconds", watch.Seconds()},
                     {"seed", options.seed}},
          .summary = StrCat("accuracy ", std::round(accuracy * 1e4) / 100, "% of ", tokens,
                            " tokens; ", whole, " of ", count, " sequences without a mistake"),
          .examples = shown};
}

}  // namespace

constinit const Task kCopyTask = {
    .name = "copy",
    .description = "tokens repeated after a separator",
    .evaluating = "copying",
    .evaluate = EvalCopy,
    .describe = [](const ModelSpec& spec) -> TaskLines {
      return {{"task", StrCat(", ", spec.input.vocabulary - 1, " tokens")}};
    },
};

}  // namespace linnet
