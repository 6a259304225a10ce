#include "linnet/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/rng.h"
#include "linnet/runtime/test_util.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<int32_t>;

// What a history should hold: the calls of Step() (a single token) and Prefix(), replayed from the
// beginning for each comparison.
class Calls {
 public:
  explicit Calls(Engine& engine) : engine_(engine) {}

  void Step(int32_t token) { calls_.push_back({true, {token}}); }
  void Prefix(const Tokens& tokens) { calls_.push_back({false, tokens}); }
  void Undo(size_t count) {
    while (count > 0) {
      Tokens& last = calls_.back().tokens;
      const size_t taken = std::min(count, last.size());
      last.resize(last.size() - taken), count -= taken;
      if (last.empty()) calls_.pop_back();
    }
  }
  size_t size() const {
    size_t size = 0;
    for (const Call& call : calls_) size += call.tokens.size();
    return size;
  }
  void Expect(std::span<const float> outputs, const State& state, const std::string& where) const {
    State mine = engine_.NewState(1);
    Floats want(engine_.output_size());
    for (const Call& call : calls_) {
      if (call.step) {
        engine_.Step(mine, call.tokens, want);
      } else {
        engine_.Prefix(mine, call.tokens, call.tokens.size(), want);
      }
    }
    EXPECT_EQ(Floats(outputs.begin(), outputs.end()), calls_.empty() ? Floats() : want) << where;
    EXPECT_TRUE(state.ToBytes(engine_.model()) == mine.ToBytes(engine_.model())) << where;
  }

 private:
  struct Call {
    bool step;
    Tokens tokens;
  };
  Engine& engine_;
  std::vector<Call> calls_;
};

// Random calls, with outputs and states compared to the bit after each Undo().
void Compare(const std::shared_ptr<const Model>& model, const HistoryOptions& options,
             uint64_t seed) {
  Engine engine(model, {.threads = 1});
  History history(engine, engine.NewState(1), options);
  Calls calls(engine);
  Philox rng(seed, 0);
  const auto vocabulary = static_cast<uint32_t>(model->spec().input.vocabulary);
  const auto draw = [&] { return static_cast<int32_t>(rng.Below(vocabulary)); };
  size_t undoable = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string where =
        StrCat("depth ", options.depth, ", every ", options.every, ", seed ", seed, ", call ", i);
    std::span<const float> outputs;
    const size_t count = 1 + rng.Below(i % 3 == 0 ? 150 : 6);
    if (rng.Below(2) == 0 && calls.size() + count < 500) {
      Tokens tokens(count);
      for (int32_t& token : tokens) token = draw();
      outputs = history.Prefix(tokens);
      calls.Prefix(tokens);
      undoable = std::min(options.depth, undoable + count);
    }
    for (size_t j = 0; j < count && calls.size() < 600; ++j) {
      const int32_t token = draw();
      outputs = history.Step(token);
      calls.Step(token);
      undoable = std::min(options.depth, undoable + 1);
    }
    ASSERT_GE(history.undoable(), undoable) << where;
    ASSERT_LE(history.undoable(), options.depth) << where;
    EXPECT_THROW(history.Undo(history.undoable() + 1), InputError);
    const size_t taken = rng.Below(static_cast<uint32_t>(history.undoable()) + 1);
    outputs = history.Undo(taken);
    calls.Undo(taken);
    undoable -= std::min(undoable, taken);
    EXPECT_TRUE(std::ranges::equal(history.Undo(0), outputs)) << where;
    ASSERT_NO_FATAL_FAILURE(calls.Expect(outputs, history.state(), where));
  }
}

TEST(History, UndoesToTheBit) {
  const auto model = RandomModel("text", "byte", 700);
  uint64_t seed = 0;
  for (const size_t depth : {1, 5, 40, 200, 1000}) {
    for (const size_t every : {1, 3, 16, 50}) Compare(model, {depth, every}, ++seed);
  }
  for (const char* kind : {"full", "gated-delta-net", "hgrn"}) {
    MixerSpec mixer;
    mixer.kind = kind;
    Compare(RandomModel("text", "character", 700, 11, "abcdefgh", mixer), {.depth = 100}, ++seed);
  }
}

TEST(History, KeepsItsTokensWhenACallFails) {
  const auto model = RandomModel("text", "byte", 700);
  Engine engine(model, {.threads = 1});
  History history(engine, engine.NewState(1), {.depth = 300});
  Calls calls(engine);
  Tokens tokens(200, 7);
  history.Prefix(tokens);
  calls.Prefix(tokens);
  tokens[190] = -1;
  for (size_t i = 0; i < 3; ++i) {  // with and without a copy just before the failing call
    EXPECT_THROW(history.Prefix(tokens), InputError);
    EXPECT_THROW(history.Prefix({}), InputError);
    EXPECT_THROW(history.Step(-1), InputError);
    EXPECT_EQ(history.undoable(), 200u + i);
    calls.Expect(history.Undo(0), history.state(), StrCat("after errors ", i));
    history.Step(3);
    calls.Step(3);
  }
  calls.Undo(2);
  history.Undo(2);
  calls.Undo(20);
  calls.Expect(history.Undo(20), history.state(), "after errors");
  calls.Undo(181);
  calls.Expect(history.Undo(181), history.state(), "all");
  EXPECT_EQ(history.undoable(), 0u);
  EXPECT_TRUE(history.Undo(0).empty());
  EXPECT_TRUE(History(engine, engine.NewState(1)).Undo(0).empty());
  EXPECT_THROW(History(engine, engine.NewState(2)), InputError);
  EXPECT_THROW(History(engine, engine.NewState(1), {.depth = 0}), InputError);
  EXPECT_THROW(History(engine, engine.NewState(1), {.every = 0}), InputError);
}

// The memory is that of about depth / every states, however the tokens were read, and also for
// prompts whose length is a multiple of the pieces'.
TEST(History, KeepsFewStates) {
  const auto model = RandomModel("text", "byte", 4000);
  Engine engine(model, {.threads = 1});
  const size_t state = engine.NewState(1).bytes();
  for (const size_t length : {size_t{3200}, size_t{3201}, size_t{3231}}) {
    History history(engine, engine.NewState(1), {.depth = 256});
    history.Prefix(Tokens(length, 7));
    EXPECT_EQ(history.undoable(), 256u);
    EXPECT_LE(history.bytes(), (256 / 32 + 4) * state + 400 * sizeof(int64_t)) << length;
  }
  History steps(engine, engine.NewState(1), {.depth = 256}), prefixes(engine, engine.NewState(1));
  for (int i = 0; i < 1000; ++i) steps.Step(7), prefixes.Prefix(Tokens(1, 7));
  for (const History* history : {&steps, &prefixes}) {
    EXPECT_LE(history->bytes(), (256 / 16 + 2) * state + 300 * sizeof(int64_t));
  }
  constexpr size_t kAll = SIZE_MAX;
  History all(engine, engine.NewState(1), {.depth = kAll, .every = kAll});
  all.Prefix(Tokens(300, 7));
  all.Step(7);
  EXPECT_EQ(all.undoable(), 301u);
  EXPECT_EQ(all.Undo(300).size(), engine.output_size());
}

}  // namespace
}  // namespace linnet
