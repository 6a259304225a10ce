#include "linnet/tasks/text/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "linnet/tasks/text/text.h"

namespace linnet {
namespace {

using nlohmann::ordered_json;

TEST(Vocabulary, NamesATokenByItsTextOrItsBytes) {
  const Vocabulary bytes = Vocabulary::Bytes();
  EXPECT_EQ(bytes.Name(bytes.Encode("a")[0]), "a");
  EXPECT_EQ(bytes.Name(bytes.Encode("\n")[0]), "\n");
  EXPECT_EQ(bytes.Name(bytes.Encode("海")[0]), "bytes:\\xe6");
  EXPECT_EQ(bytes.Name(Vocabulary::kFirst + 0xff), "bytes:\\xff");
  EXPECT_EQ(bytes.Name(Vocabulary::kEnd), "<|end|>");
  EXPECT_EQ(bytes.Name(Vocabulary::kSeparator), "<|separator|>");
  EXPECT_EQ(bytes.Name(Vocabulary::kUnknown), "<|unknown|>");
  const Vocabulary characters = Vocabulary::OfText("海上", 10);
  EXPECT_EQ(characters.Name(characters.Encode("海")[0]), "海");
}

TEST(TokenScores, ListsTheMostLikelyTokensAndTheSampledOne) {
  const Vocabulary vocabulary = Vocabulary::OfText("abbcccdddd", 10);  // tokens 3 .. 6: d, c, b, a
  const float e1 = -1, e2 = -2;
  const std::vector<float> outputs = {e2, -9, -9, e1, e2, 0, -5};  // end, -, -, d, c, b, a
  double sum = 0;
  for (const float x : outputs) sum += std::exp(static_cast<double>(x));
  const double log_sum = std::log(sum);
  TokenScores scores(vocabulary, 3);
  scores.Add(6, outputs);
  const ordered_json taken = scores.Take("a");
  EXPECT_EQ(taken["tokens"], ordered_json({"a"}));
  EXPECT_NEAR(taken["token_logprobs"][0], -5 - log_sum, 1e-5);
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& [name, value] : taken["top_logprobs"][0].items()) {
    names.push_back(name);
    values.push_back(value);
  }
  // The three most likely tokens, then the drawn token a. <|end|> and c are equally likely; the one
  // with the lower index is listed.
  EXPECT_EQ(names, (std::vector<std::string>{"b", "d", "<|end|>", "a"}));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(values[i], std::vector<double>({0, -1, -2, -5})[i] - log_sum, 1e-5);
  }
  EXPECT_TRUE(scores.Take("")["tokens"].empty());
}

// The results of all calls of Take(), joined.
struct Taken {
  std::vector<std::string> tokens;
  std::vector<size_t> offsets;
  std::string shown;
};
// Adds the bytes of `text` one by one, as TextWriter draws them, and takes the scores of the text
// shown after each byte.
Taken Write(const std::string& text, const std::vector<std::string>& stop) {
  const Vocabulary bytes = Vocabulary::Bytes();
  TokenScores scores(bytes, 0);
  TextPieces pieces(stop);
  Taken taken;
  const auto take = [&](const std::string& shown) {
    const ordered_json part = scores.Take(shown);
    for (const auto& token : part["tokens"]) taken.tokens.push_back(token);
    for (const auto& offset : part["text_offset"]) taken.offsets.push_back(offset);
    taken.shown += shown;
  };
  const std::vector<float> outputs(bytes.size());
  for (const int32_t token : bytes.Encode(text)) {
    scores.Add(token, outputs);
    take(pieces.Add(bytes.Decode(token)));
    if (pieces.stopped()) return taken;
  }
  take(pieces.Finish());
  return taken;
}

using Offsets = std::vector<size_t>;

TEST(TokenScores, OffsetsCountCharacters) {
  const Taken plain = Write("a海b", {});
  EXPECT_EQ(plain.shown, "a海b");
  EXPECT_EQ(plain.tokens,
            (std::vector<std::string>{"a", "bytes:\\xe6", "bytes:\\xb5", "bytes:\\xb7", "b"}));
  EXPECT_EQ(plain.offsets, (Offsets{0, 1, 1, 1, 2}));
  // Each byte that belongs to no character is shown as U+FFFD.
  EXPECT_EQ(Write("\xe6\xb5"
                  "ab\xffz",
                  {})
                .offsets,
            (Offsets{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Write("a\xe6\xb5", {}).offsets, (Offsets{0, 1, 2}));
  EXPECT_EQ(Write("\xf0\x9f\x98\x80\xf0\x9f"
                  "abc",
                  {})
                .offsets,
            (Offsets{0, 0, 0, 0, 1, 2, 3, 4, 5}));
}

TEST(TokenScores, LeaveOutAStopString) {
  const Taken cut = Write("海ab.c", {"ab"});
  EXPECT_EQ(cut.shown, "海");
  EXPECT_EQ(cut.offsets, (Offsets{0, 0, 0}));
  // The beginning of a stop string is held back. It is shown once the text continues differently.
  const Taken whole = Write("xaac", {"ab"});
  EXPECT_EQ(whole.shown, "xaac");
  EXPECT_EQ(whole.offsets, (Offsets{0, 1, 2, 3}));
  // The stop string comes directly after an incomplete character.
  const Taken broken = Write(
      "x\xe6\xb5"
      "ab",
      {"ab"});
  EXPECT_EQ(broken.offsets, (Offsets{0, 1, 2}));
}

}  // namespace
}  // namespace linnet
