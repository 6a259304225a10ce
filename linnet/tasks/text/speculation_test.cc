// A text has the same bytes with and without speculative decoding, whatever the drafter guesses.
#include "linnet/tasks/text/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
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

// The drafters differ from the model by nothing, by another thread count, or in all their weights.
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
          const auto drafter = draft ? MakeDrafter(*draft) : MakeRepeater();
          options.drafter = drafter.get();
          const Written got = Write(engine, options);
          EXPECT_EQ(got.text, plain.text);
          EXPECT_EQ(got.end, plain.end);
          EXPECT_LE(got.accepted, got.guessed);
          if (draft != &same) continue;
          // Tokens guessed beyond the end of the text are not counted as right.
          EXPECT_LE(got.guessed - got.accepted, guesses);
        }
      }
    }
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
  const auto drafter = MakeDrafter(same);
  options.drafter = drafter.get();
  EXPECT_EQ(Write(engine, options).text, plain.text);
}

// A guess that is not in the model's vocabulary.
class Stranger : public Drafter {
  std::vector<int32_t> Guess(std::span<const int32_t>, size_t, const ChoiceOptions&,
                             Philox) override {
    return {1 << 20};
  }
};

TEST(Speculation, RefusesAnotherVocabulary) {
  Engine engine(RandomModel("text", "character"), {.threads = 1});
  Stranger stranger;
  EXPECT_THROW(Write(engine, {.drafter = &stranger}), Error);
}

// A drafter may be called for any text, in any order.
TEST(Speculation, AModelDraftsWhatItWouldWrite) {
  const auto model = RandomModel("text", "character", 100);
  const Vocabulary vocabulary = VocabularyOf(*model);
  Engine engine(model, {.threads = 1}), again(model, {.threads = 1});
  const std::unique_ptr<Drafter> drafter = MakeDrafter(engine);
  std::vector<int32_t> text = {5, 6, 7, 8, 9, 10, 11};
  for (const auto& [length, count, change] : std::vector<std::tuple<size_t, size_t, int32_t>>{
           {3, 5, 0}, {4, 5, 0}, {7, 2, 0}, {7, 3, 1}, {2, 4, 0}, {6, 30, 2}, {6, 30, 0}}) {
    text[1] += change;
    const std::span<const int32_t> read = std::span(text).first(length);
    const ChoiceOptions choice{.temperature = 0.5f};
    const std::unique_ptr<Drafter> fresh = MakeDrafter(again);
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
