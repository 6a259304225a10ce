// For runtime tests: runs a model on a prefix and then in steps.
//
//   CheckCut(model, want, tokens, /*cut=*/7, /*threads=*/2);      // against the reference
//   EXPECT_EQ(RunOne(Grid(), 3, 5, 2, 20, 20), RunOne(Grid(), 1, 1, 0, 20, 20));
#ifndef LINNET_RUNTIME_TEST_RUNS_H_
#define LINNET_RUNTIME_TEST_RUNS_H_

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/runtime/test_models.h"

namespace linnet {

// Reads the first `cut` tokens as a prefix and the others in steps, and compares the outputs with
// those of the reference, `want`.
inline void CheckCut(const std::shared_ptr<const Model>& model, const std::vector<Doubles>& want,
                     const Tokens& tokens, size_t cut, int threads, double tolerance = 1e-4) {
  Engine engine(model, {.threads = threads});
  const size_t width = engine.output_size();
  State state = engine.NewState(1);
  Floats got(tokens.size() * width);
  if (cut > 0) {
    engine.Prefix(state, std::span(tokens).first(cut), cut, std::span(got).first(cut * width));
  }
  for (size_t t = cut; t < tokens.size(); ++t) {
    engine.Step(state, std::span(tokens).subspan(t, 1), std::span(got).subspan(t * width, width));
  }
  EXPECT_EQ(state.position(), tokens.size());
  EXPECT_LT(Worst(got, want), tolerance) << "cut at " << cut << ", threads " << threads;
}

// The outputs of sequence `which` in a batch of `batch` that reads a prefix and then steps. `as`:
// the model in another precision; null: model.model.
inline Floats RunOne(const TestModel& model, int threads, size_t batch, size_t which, size_t prefix,
                     size_t steps, std::shared_ptr<const Model> as = nullptr) {
  Engine engine(as ? as : model.model, {.threads = threads});
  const size_t width = engine.output_size();
  std::vector<Tokens> tokens;
  Tokens block;
  for (size_t i = 0; i < batch; ++i) {
    // The tested sequence is the same in every batch.
    tokens.push_back(model.RandomTokens(prefix + steps, i == which ? 1000 : i));
    block.insert(block.end(), tokens[i].begin(),
                 tokens[i].begin() + static_cast<ptrdiff_t>(prefix));
  }
  State state = engine.NewState(batch);
  Floats out(batch * prefix * width), result;
  const auto keep = [&](size_t rows) {
    const auto begin = out.begin() + static_cast<ptrdiff_t>(which * rows * width);
    result.insert(result.end(), begin, begin + static_cast<ptrdiff_t>(rows * width));
  };
  engine.Prefix(state, block, prefix, out);
  keep(prefix);
  out.resize(batch * width);
  for (size_t t = prefix; t < prefix + steps; ++t) {
    Tokens next;
    for (const Tokens& sequence : tokens) next.push_back(sequence[t]);
    engine.Step(state, next, out);
    keep(1);
  }
  return result;
}

}  // namespace linnet

#endif  // LINNET_RUNTIME_TEST_RUNS_H_
