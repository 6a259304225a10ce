// Associative recall: evaluates the fraction of values that a model recalls correctly, over
// sequences not used in training.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/error.h"
#include "linnet/rng.h"
#include "linnet/tasks/recall/recall_task.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

constexpr size_t kSequences = 256;  // number of evaluated sequences if there is no limit

Evaluation EvalRecall(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const ModelSpec& spec = engine.model().spec();
  if (!options.from.dir.empty()) {
    throw InputError(engine.model().path(),
                     ": a model of associative recall, which needs no data; leave out --data");
  }
  const RecallTask task{.pairs = std::max(1, spec.input.max_length / 4),
                        .symbols = (spec.input.vocabulary - 1) / 2};
  const size_t count = options.limit > 0 ? options.limit : kSequences;
  const Stopwatch watch;
  size_t asked = 0, right = 0;
  std::string shown;
  for (size_t i = 0; i < count; ++i) {
    const MaskedBatch sample = MakeRecallBatch(task, 1, Philox(options.seed, kFreshStreams + i));
    const std::vector<int32_t> tokens(sample.tokens.begin(), sample.tokens.end());
    const size_t width = engine.output_size();
    std::vector<float> scores(tokens.size() * width);
    State state = engine.NewState(1);
    engine.Prefix(state, tokens, tokens.size(), scores);
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (sample.mask[t] == 0) continue;
      const auto row = scores.begin() + static_cast<ptrdiff_t>(t * width);
      const auto best = std::max_element(row, row + static_cast<ptrdiff_t>(width)) - row;
      ++asked, right += best == sample.targets[t];
      if (i < static_cast<size_t>(options.show)) {
        shown +=
            StrCat("key ", tokens[t], ": value ", sample.targets[t], ", recalled ", best, "\n");
      }
    }
    report(i + 1, count);
  }
  const double accuracy = static_cast<double>(right) / static_cast<double>(asked);
  return {.record = {{"accuracy", accuracy},
                     {"sequences", count},
                     {"asked", asked},
                     {"seconds", watch.Seconds()},
                     {"seed", options.seed}},
          .summary = StrCat("accuracy ", std::round(accuracy * 1e4) / 100, "% of ", asked,
                            " values recalled"),
          .examples = shown};
}

}  // namespace

constinit const Task kRecallTask = {
    .name = "recall",
    .description = "values recalled by their keys",
    .evaluating = "recalling",
    .evaluate = EvalRecall,
    .describe = [](const ModelSpec& spec) -> TaskLines {
      const int symbols = (spec.input.vocabulary - 1) / 2;
      return {{"task", StrCat(", ", spec.input.max_length / 4, " key-value pairs, from ", symbols,
                              " keys and ", symbols, " values")}};
    },
};

}  // namespace linnet
