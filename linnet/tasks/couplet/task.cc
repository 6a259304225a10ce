// Couplets: evaluates the perplexity per character of second lines.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/error.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/tasks/task.h"
#include "linnet/tasks/text/text.h"

namespace linnet {
namespace {

// Perplexity per character of second lines. The end token is not counted, because the length of a
// second line is known from the first line.
Evaluation EvalCouplets(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const Model& model = engine.model();
  const DatasetOptions& from = options.from;
  if (from.dir.empty()) {
    throw InputError(model.path(), ": a couplet model; name a folder of couplets with --data DIR");
  }
  const CoupletSplit split = from.split == "train"        ? CoupletSplit::kTrain
                             : from.split == "validation" ? CoupletSplit::kValidation
                                                          : CoupletSplit::kTest;
  CoupletSet set = LoadCouplets(from.dir, split);
  if (options.limit > 0 && options.limit < set.pairs.size()) set.pairs.resize(options.limit);
  const Vocabulary vocabulary = VocabularyOf(model);
  const Stopwatch watch;
  double nats = 0;
  size_t characters = 0, unknown = 0, too_long = 0;
  for (size_t i = 0; i < set.pairs.size(); ++i) {
    std::vector<int32_t> tokens = vocabulary.Encode(set.pairs[i].first);
    tokens.push_back(Vocabulary::kSeparator);
    const size_t counted = tokens.size();  // index of the second line's first token
    for (const int32_t token : vocabulary.Encode(set.pairs[i].second)) tokens.push_back(token);
    // `read` is the number of positions that the model needs; it does not read the last token. The
    // encoder and the decoder of an encoder-decoder have separate positions.
    const size_t read = model.spec().encoder_decoder()
                            ? std::max(counted - 1, tokens.size() - counted)
                            : tokens.size() - 1;
    if (read > static_cast<size_t>(model.spec().input.max_length)) {
      ++too_long;
    } else {
      nats += NatsOf(engine, tokens, counted);
      characters += tokens.size() - counted;
      unknown += static_cast<size_t>(std::count(tokens.begin() + static_cast<ptrdiff_t>(counted),
                                                tokens.end(), Vocabulary::kUnknown));
    }
    report(i + 1, set.pairs.size());
  }
  if (characters == 0) throw InputError(from.dir, ": no couplet is short enough for the model");
  const double mean = nats / static_cast<double>(characters);
  CheckMean(model, mean);
  const size_t pairs = set.pairs.size() - too_long, left_out = set.left_out + too_long;
  return {.record = {{"perplexity", std::exp(mean)},
                     {"nats_per_character", mean},
                     {"characters", characters},
                     {"unknown", unknown},
                     {"pairs", pairs},
                     {"left_out", left_out},
                     {"split", from.split},
                     {"seconds", watch.Seconds()}},
          .summary =
              StrCat("perplexity ", std::round(std::exp(mean) * 100) / 100, " per character over ",
                     characters, " characters of ", pairs, " second lines",
                     unknown > 0 ? StrCat(", ", unknown, " of them unknown") : "",
                     left_out > 0 ? StrCat("; ", left_out, " pairs left out") : "")};
}

}  // namespace

constinit const Task kCoupletTask = {
    .name = "couplet",
    .description = "second lines of couplets",
    .evaluating = "reading",
    .evaluate = EvalCouplets,
    .describe = DescribeText,
    .path = "/v1/couplets",
    .endpoint = server::MakeCouplets,
};

}  // namespace linnet
