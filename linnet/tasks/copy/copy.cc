#include "linnet/tasks/copy/copy.h"

#include <algorithm>

#include "linnet/base/error.h"

namespace linnet {

std::vector<int32_t> CopySymbols(Engine& engine, std::span<const int32_t> symbols) {
  const ModelSpec& spec = engine.model().spec();
  const std::string& path = engine.model().path();
  if (spec.task != "copy") {
    throw InputError(path, ": a model of the task '", spec.task, "', which cannot copy symbols");
  }
  if (symbols.empty() || symbols.size() > (static_cast<size_t>(spec.input.max_length) - 1) / 2) {
    throw InputError(path, ": copies between 1 and ", (spec.input.max_length - 1) / 2,
                     " symbols; got ", symbols.size());
  }
  for (int32_t symbol : symbols) {
    if (symbol < 1 || symbol >= spec.input.vocabulary) {
      throw InputError(path, ": symbols to copy are 1 .. ", spec.input.vocabulary - 1, "; got ",
                       symbol);
    }
  }
  std::vector<int32_t> tokens(symbols.begin(), symbols.end());
  tokens.push_back(0);
  std::vector<float> scores(engine.output_size());
  State state = engine.NewState(1);
  engine.Prefix(state, tokens, tokens.size(), scores);
  std::vector<int32_t> copied;
  while (true) {
    const auto best = std::max_element(scores.begin(), scores.end());
    copied.push_back(static_cast<int32_t>(best - scores.begin()));
    if (copied.size() == symbols.size()) return copied;
    engine.Step(state, std::span(copied).last(1), scores);
  }
}

}  // namespace linnet
