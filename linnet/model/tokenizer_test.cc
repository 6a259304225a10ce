#include "linnet/model/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

using nlohmann::json;
using Tokens = std::vector<int32_t>;

std::string FileOf(const std::string& name) {
  return ReadFile("tests/golden/tokenizer/" + name + ".json");
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTokenizer,
                         testing::Values("byte_level", "split", "byte_fallback", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(GoldenTokenizer, EncodesAndDecodesLikeTheTokenizersLibrary) {
  const Tokenizer tokenizer(FileOf(GetParam()), GetParam());
  const json cases = json::parse(FileOf(StrCat(GetParam(), "_cases")));
  ASSERT_GT(cases.size(), 50u);
  for (const json& one : cases) {
    const std::string text = one[0];
    const Tokens tokens = tokenizer.Encode(text);
    EXPECT_EQ(tokens, one[1].get<Tokens>()) << text;
    EXPECT_EQ(tokenizer.Decode(tokens), one[2].get<std::string>()) << text;
  }
}

TEST_P(GoldenTokenizer, IsTheSameAfterSaving) {
  const Vocabulary vocabulary = Vocabulary::OfTokenizer(FileOf(GetParam()), -1, GetParam());
  const Vocabulary again(vocabulary.Save());
  const std::string text = "Before we proceed any further, hear me speak. <|endoftext|>";
  EXPECT_EQ(again.Encode(text), vocabulary.Encode(text));
  EXPECT_EQ(again.Save().tokenizer, vocabulary.Save().tokenizer);
  EXPECT_EQ(again.end(), vocabulary.end());
  EXPECT_EQ(again.begin(), vocabulary.begin());
  EXPECT_EQ(again.unit(), TextUnit::kToken);
}

TEST(Tokenizer, KnowsTheTokensThatBeginAndEndAText) {
  const auto begin = [](const char* name) {
    return Vocabulary::OfTokenizer(FileOf(name), -1, name).begin();
  };
  EXPECT_EQ(begin("split"), Tokens{457});
  EXPECT_EQ(begin("byte_fallback"), Tokens{1});
  // Without a template, the token that ends a text also begins one.
  EXPECT_EQ(begin("byte_level"), Tokens{456});
  EXPECT_EQ(Vocabulary::OfTokenizer(FileOf("byte_level"), 7, "test").end(), 7);
  EXPECT_THROW(Vocabulary::OfTokenizer(FileOf("byte_level"), 5000, "test"), InputError);
}

TEST(Tokenizer, NamesTokens) {
  const Vocabulary vocabulary = Vocabulary::OfTokenizer(FileOf("byte_fallback"), -1, "test");
  EXPECT_EQ(vocabulary.Name(2), "</s>");
  EXPECT_EQ(vocabulary.Name(3 + 0xe6), "bytes:\\xe6");
  EXPECT_EQ(vocabulary.Name(vocabulary.Encode("the")[0]), " the");
  EXPECT_EQ(vocabulary.Decode(2), "");
  EXPECT_EQ(vocabulary.Decode(-1), "");
  EXPECT_EQ(vocabulary.Decode(1'000'000), "");
}

TEST(Tokenizer, RejectsTextThatIsNotUtf8) {
  const Tokenizer tokenizer(FileOf("byte_level"), "test");
  EXPECT_THROW(tokenizer.Encode("a\xff"), InputError);
}

// The error message for a valid file in which `value` replaces the value at `pointer`.
std::string Fault(const std::string& pointer, const json& value) {
  json changed = json::parse(FileOf("split"));
  changed[json::json_pointer(pointer)] = value;
  try {
    Tokenizer(changed.dump(), "t.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST(Tokenizer, RefusesWhatItDoesNotSupportByName) {
  const auto replace = [](const std::string& content) {
    return json{{"type", "Replace"}, {"pattern", {{"String", "e"}}}, {"content", content}};
  };
  // Makes 10^9 bytes of each 'e'.
  const auto tower = [&](const char* steps) {
    return json{
        {"type", "Sequence"},
        {steps, json::array({replace(std::string(1000, 'e')), replace(std::string(1000, 'e')),
                             replace(std::string(1000, 'e'))})}};
  };
  const std::pair<std::string, json> cases[] = {
      {"/model/type", "WordPiece"},
      {"/model/type", "Unigram"},
      {"/model/dropout", 0.1},
      {"/model/end_of_word_suffix", "</w>"},
      {"/model/vocab", json::array()},
      {"/model/vocab/the", "three"},
      {"/model/vocab/the", 1 << 30},
      {"/model/merges", json::array({"zz qq"})},
      {"/model/merges", json::array({"single"})},
      {"/model/unk_token", "<none>"},
      {"/normalizer", {{"type", "Lowercase"}}},
      {"/normalizer", replace(std::string(2000, 'e'))},
      {"/decoder", tower("decoders")},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}}},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"/pre_tokenizer", 3},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Contiguous"},
      {"/post_processor", {{"type", "BertProcessing"}}},
      {"/decoder", {{"type", "WordPiece"}}},
      {"/decoder", nullptr},
      {"/added_tokens/0/single_word", true},
      {"/added_tokens/0/id", -5},
      {"/end", 100'000},
  };
  for (const auto& [pointer, value] : cases) {
    const std::string fault = Fault(pointer, value);
    EXPECT_TRUE(fault.starts_with("t.json: ")) << pointer << " " << value << ": " << fault;
    EXPECT_EQ(fault.find('\n'), fault.npos) << fault;
  }
  EXPECT_EQ(Fault("/model/type", "Unigram"),
            "t.json: a tokenizer of type 'Unigram'; only BPE is supported");
  for (const char* text : {"", "[]", "{}", "{\"model\": 1}", "{"}) {
    EXPECT_THROW(Tokenizer(text, "t.json"), InputError) << text;
  }
  json growing = json::parse(FileOf("split"));
  growing["normalizer"] = tower("normalizers");
  EXPECT_THROW(Tokenizer(growing.dump(), "t.json").Encode("eee"), InputError);
}

TEST(Vocabulary, NeedsATokenizerForTokensOnly) {
  EXPECT_THROW(Vocabulary({.unit = TextUnit::kToken}), InputError);
  EXPECT_THROW(Vocabulary({.unit = TextUnit::kByte, .tokenizer = FileOf("split")}), InputError);
}

}  // namespace
}  // namespace linnet
