#include "linnet/tasks/copy/copy.h"

#include <algorithm>

#include "linnet/error.h"

namespace linnet {

std::vector<int32_t> CopyTokens(Engine& engine, std::span<const int32_t> tokens) {
  const ModelSpec& spec = engine.model().spec();
  const std::string& path = engine.model().path();
  if (spec.task != "copy") {
    throw InputError(path, ": a model of the task '", spec.task, "' cannot copy tokens");
  }
  if (tokens.empty() || tokens.size() > (static_cast<size_t>(spec.input.max_length) - 1) / 2) {
    throw InputError(path, ": copies between 1 and ", (spec.input.max_length - 1) / 2,
                     " tokens; got ", tokens.size());
  }
  for (int32_t token : tokens) {
    if (token < 1 || token >= spec.input.vocabulary) {
      throw InputError(path, ": tokens to copy are 1 .. ", spec.input.vocabulary - 1, "; got ",
                       token);
    }
  }
  std::vector<int32_t> prompt(tokens.begin(), tokens.end());
  prompt.push_back(0);
  std::vector<float> scores(engine.output_size());
  State state = engine.NewState(1);
  engine.Prefix(state, prompt, prompt.size(), scores);
  std::vector<int32_t> copied;
  while (true) {
    const auto best = std::max_element(scores.begin(), scores.end());
    copied.push_back(static_cast<int32_t>(best - scores.begin()));
    if (copied.size() == tokens.size()) return copied;
    engine.Step(state, std::span(copied).last(1), scores);
  }
}

}  // namespace linnet
