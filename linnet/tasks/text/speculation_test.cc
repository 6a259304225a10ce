// A text has the same bytes with and without speculative decoding, whatever the drafter guesses.
#include "linnet/tasks/text/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/runtime/test_util.h"
#include "linnet/tasks/text/text.h"

namespace linnet {
namespace {

struct Written {
  std::string text;
  TextEnd end;
  size_t guessed, accepted;
};

Written Write(Engine& engine, const TextOptions& options, const std::string& prompt = "abcab") {
  TextWriter writer(engine);
  std::string text;
  const TextEnd end =
      writer.Write(prompt, options, [&](std::string_view piece) { return text += piece, true; });
  return {text, end, writer.guessed(), writer.accepted()};
}

// The drafters: the repeater, the same model with another thread count, a model with the same
// weights but fewer positions, and one with other weights.
TEST(Speculation, LeavesTheTextAsItIs) {
  Engine engine(RandomModel("text", "character", 400), {.threads = 1});
  Engine same(RandomModel("text", "character", 400), {.threads = 2});
  Engine shorter(RandomModel("text", "character", 50), {.threads = 1});
  Engine other(RandomModel("text", "character", 400, /*seed=*/3), {.threads = 1});
  for (const float temperature : {0.0f, 0.2f, 1.0f}) {
    for (const size_t tokens : {1, 2, 150, 1000}) {
      TextOptions options{.tokens = tokens, .choice = {.temperature = temperature}, .seed = 5};
      const Written plain = Write(engine, options);
      EXPECT_EQ(plain.guessed, 0u);
      for (const size_t guesses : {1, 4, 9, 30}) {
        SCOPED_TRACE(StrCat(temperature, ", ", tokens, " tokens, ", guesses, " guesses"));
        options.guesses = guesses;
        for (Engine* draft : {static_cast<Engine*>(nullptr), &same, &shorter, &other}) {
          const auto drafter = draft ? MakeDrafter(*draft, engine.model()) : MakeRepeater();
          options.drafter = drafter.get();
          const Written got = Write(engine, options);
          EXPECT_EQ(got.text, plain.text);
          EXPECT_EQ(got.end, plain.end);
          EXPECT_LE(got.accepted, got.guessed);
          if (draft != &same) continue;
          // The same model's guesses are right; those beyond the end of the text are not counted.
          EXPECT_LE(got.guessed - got.accepted, guesses);
        }
      }
    }
  }
}

// Guesses what another drafter guesses, but sometimes changes the last token.
class Careless : public Drafter {
 public:
  explicit Careless(Drafter& careful) : careful_(careful) {}
  std::vector<int32_t> Guess(std::span<const int32_t> text, size_t count,
                             const ChoiceOptions& choice, Philox rng) override {
    std::vector<int32_t> guesses = careful_.Guess(text, count, choice, rng);
    if (text.size() % 3 > 0) guesses.back() = guesses.back() == 5 ? 6 : 5;
    return guesses;
  }

 private:
  Drafter& careful_;
};

// After wrong guesses, every kind of state goes back: a growing cache, a ring of recent keys, a
// recurrent state, and the list of tokens of a model that reads them all again (reformer).
TEST(Speculation, LeavesTheTextOfOtherAttentionAsItIs) {
  const MixerSpec mixers[] = {{.kind = "full"},
                              {.kind = "full", .window = 5},
                              {.kind = "gated-delta-net"},
                              {.kind = "reformer", .lsh_buckets = 4, .lsh_chunk = 4}};
  for (const MixerSpec& mixer : mixers) {
    SCOPED_TRACE(StrCat(mixer.kind, ", window ", mixer.window));
    const auto model = RandomModel("text", "character", 200, /*seed=*/1, "abcdefghijkl", mixer);
    Engine engine(model, {.threads = 2}), same(model, {.threads = 1});
    const auto careful = MakeDrafter(same, *model);
    Careless drafter(*careful);
    TextOptions options{.tokens = 150, .choice = {.temperature = 0.3f}, .seed = 4};
    const std::string plain = Write(engine, options).text;
    options.drafter = &drafter, options.guesses = 4;
    const Written got = Write(engine, options);
    EXPECT_EQ(got.text, plain);
    EXPECT_GT(got.accepted, 0u);
    EXPECT_LT(got.accepted, got.guessed);
  }
}

TEST(Speculation, StopsAtStopWords) {
  Engine engine(RandomModel("text", "character", 400), {.threads = 1});
  TextOptions options{.tokens = 200, .choice = {.temperature = 0.8f}, .seed = 2};
  const std::string text = Write(engine, options).text;
  ASSERT_GT(text.size(), 30u);
  options.stop = {text.substr(17, 4)};
  const Written plain = Write(engine, options);
  EXPECT_EQ(plain.end, TextEnd::kStop);
  Engine same(RandomModel("text", "character", 400), {.threads = 1});
  const auto drafter = MakeDrafter(same, engine.model());
  options.drafter = drafter.get();
  EXPECT_EQ(Write(engine, options).text, plain.text);
}

// Always guesses the same tokens, and records how many were requested.
class Stubborn : public Drafter {
 public:
  explicit Stubborn(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  std::vector<int32_t> Guess(std::span<const int32_t>, size_t count, const ChoiceOptions&,
                             Philox) override {
    counts.push_back(count);
    return tokens_;
  }
  std::vector<size_t> counts;

 private:
  const std::vector<int32_t> tokens_;
};

TEST(Speculation, RefusesAnotherVocabulary) {
  Engine engine(RandomModel("text", "character"), {.threads = 1});
  Engine bytes(RandomModel("text", "byte"), {.threads = 1});
  EXPECT_THROW(MakeDrafter(bytes, engine.model()), InputError);
  Stubborn stranger({1 << 20});
  EXPECT_THROW(Write(engine, {.drafter = &stranger}), Error);
}

TEST(Speculation, IgnoresGuessesBeyondTheCount) {
  Engine engine(RandomModel("text", "character"), {.threads = 1});
  TextOptions options{.tokens = 12, .choice = {.temperature = 0}};
  const std::string plain = Write(engine, options).text;
  Stubborn stubborn(std::vector<int32_t>(100, 5));
  options.drafter = &stubborn, options.guesses = 3;
  const Written got = Write(engine, options);
  EXPECT_EQ(got.text, plain);
  ASSERT_FALSE(stubborn.counts.empty());
  size_t wanted = 0;
  for (const size_t count : stubborn.counts) wanted += count;
  EXPECT_EQ(got.guessed, wanted);
}

// The last token is drawn from the outputs at the token before it, and is not read.
TEST(Speculation, GuessesOnlyTokensThatWillBeRead) {
  Engine engine(RandomModel("text", "character"), {.threads = 1});
  Stubborn stubborn({5});
  TextOptions options{.tokens = 2, .choice = {.temperature = 0}, .drafter = &stubborn};
  ASSERT_EQ(Write(engine, options).end, TextEnd::kTokens);
  EXPECT_EQ(stubborn.counts, std::vector<size_t>{});
  options.tokens = 3, options.guesses = 9;
  ASSERT_EQ(Write(engine, options).end, TextEnd::kTokens);
  EXPECT_EQ(stubborn.counts, std::vector<size_t>{1});
}

TEST(GuessCount, HalvesPausesAndGrows) {
  GuessCount count(8);
  const auto next = [&](size_t right) {
    const size_t guesses = count.Next();
    if (guesses > 0) count.Guessed(guesses, std::min(right, guesses));
    return guesses;
  };
  std::vector<size_t> counts;
  for (int i = 0; i < 10; ++i) counts.push_back(next(0));
  EXPECT_EQ(counts, (std::vector<size_t>{8, 4, 2, 1, 1, 0, 1, 0, 0, 0}));
  size_t passes = 0, guessed = 0;
  for (; passes < 320; ++passes) guessed += next(0);
  EXPECT_LE(guessed, 14u);  // the longest pauses have 31 passes
  while (next(9) == 0) {
  }
  counts.clear();
  for (int i = 0; i < 9; ++i) counts.push_back(next(9));
  EXPECT_EQ(counts, (std::vector<size_t>{2, 3, 4, 5, 6, 7, 8, 8, 8}));
  EXPECT_EQ(next(1), 8u);  // some were right: the number stays
  EXPECT_EQ(next(0), 8u);
  EXPECT_EQ(next(0), 4u);
}

// A drafter may be called for any text, in any order.
TEST(Speculation, AModelDraftsWhatItWouldWrite) {
  const auto model = RandomModel("text", "character", 100);
  const Vocabulary vocabulary = VocabularyOf(*model);
  Engine engine(model, {.threads = 1}), again(model, {.threads = 1});
  const std::unique_ptr<Drafter> drafter = MakeDrafter(engine, *model);
  std::vector<int32_t> text = {5, 6, 7, 8, 9, 10, 11};
  for (const auto& [length, count, change] : std::vector<std::tuple<size_t, size_t, int32_t>>{
           {3, 5, 0}, {4, 5, 0}, {7, 2, 0}, {7, 3, 1}, {2, 4, 0}, {6, 30, 2}, {6, 30, 0}}) {
    text[1] += change;
    const std::span<const int32_t> read = std::span(text).first(length);
    const ChoiceOptions choice{.temperature = 0.5f};
    const std::unique_ptr<Drafter> fresh = MakeDrafter(again, *model);
    const std::vector<int32_t> got = drafter->Guess(read, count, choice, Philox(length));
    EXPECT_EQ(got, fresh->Guess(read, count, choice, Philox(length)));
    EXPECT_TRUE(got.size() == count || got.back() == vocabulary.end());
  }
}

TEST(Speculation, ARepeaterGuessesWhatFollowedBefore) {
  const std::unique_ptr<Drafter> drafter = MakeRepeater();
  const auto guess = [&](const std::vector<int32_t>& text, size_t count) {
    return drafter->Guess(text, count, {}, Philox(0));
  };
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(guess({1, 2, 3}, 3), Tokens{});
  EXPECT_EQ(guess({1, 2, 3, 4, 5, 6}, 3), Tokens{});
  EXPECT_EQ(guess({1, 2, 3, 4, 5, 6, 1, 2, 3, 4}, 3), (Tokens{5, 6, 1}));
  EXPECT_EQ(guess({1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 7, 1, 2, 3, 4}, 9), (Tokens{7, 1, 2, 3, 4}));
  EXPECT_EQ(guess({9, 1, 2, 3, 4}, 9), Tokens{});  // another text, which is shorter
  EXPECT_EQ(guess({9, 1, 2, 3, 4, 8, 1, 2, 3, 4}, 1), Tokens{8});
}

}  // namespace
}  // namespace linnet
