#include "linnet/tasks/text/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numbers>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/runtime/test_util.h"
#include "linnet/sampling.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/couplet/rules.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

TEST(Choice, FrequenciesMatchProbabilities) {
  const std::vector<float> logits = {0, std::log(2.0f), -INFINITY, std::log(5.0f)};
  Philox rng(1);
  std::map<int32_t, int> counts;
  const int draws = 80'000;
  for (int i = 0; i < draws; ++i) ++counts[Choose(logits, {}, rng)];
  EXPECT_EQ(counts.count(2), 0u);
  for (const auto& [token, share] : {std::pair(0, 1 / 8.0), {1, 2 / 8.0}, {3, 5 / 8.0}}) {
    EXPECT_NEAR(counts[token] / double{draws}, share, 0.01) << token;
  }
  counts.clear();
  for (int i = 0; i < draws; ++i) ++counts[Choose(logits, {.temperature = 0.5f}, rng)];
  EXPECT_NEAR(counts[3] / double{draws}, 25 / 30.0, 0.01);  // temperature 0.5 squares the weights
}

// With a vocabulary of thousands of tokens, Choose() draws only tokens of the top-p set, which this
// test computes by sorting, and draws the most likely tokens with the right frequencies.
TEST(Choice, TopPMatchesSorting) {
  std::vector<float> logits(8003);
  Philox values(3);
  for (float& x : logits) x = 3 * values.Normal();
  logits[17] = logits[4000] = 9, logits[5] = -INFINITY;  // two equally likely tokens
  for (const float temperature : {0.3f, 1.0f, 5.0f}) {
    std::vector<std::pair<double, int32_t>> order;
    double all = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      order.emplace_back(-std::exp(static_cast<double>(logits[i]) / temperature), i);
      all -= order.back().first;
    }
    std::sort(order.begin(), order.end());
    for (const float top_p : {1e-9f, 0.1f, 0.5f, 0.95f, 0.9999f}) {
      std::map<int32_t, double> kept;
      double sum = 0;
      for (const auto& [weight, token] : order) {
        kept[token] = -weight, sum -= weight;
        if (sum >= top_p * all) break;
      }
      Philox rng(1);
      std::map<int32_t, int> counts;
      constexpr int kDraws = 4000;
      size_t outside = 0;
      for (int i = 0; i < kDraws; ++i) {
        const int32_t token = Choose(logits, {.temperature = temperature, .top_p = top_p}, rng);
        ++counts[token], outside += kept.count(token) == 0;
      }
      // Because of rounding, Choose() may keep one more token at the limit of top_p.
      EXPECT_LE(outside, kDraws / 1000u) << temperature << " " << top_p;
      for (size_t i = 0; i < std::min<size_t>(kept.size(), 10); ++i) {
        const int32_t token = order[i].second;
        const double expected = kDraws * kept[token] / sum;
        EXPECT_NEAR(counts[token], expected, 5 * std::sqrt(expected) + 1) << token;
      }
    }
  }
}

TEST(Choice, ExtremeLogits) {
  Philox rng(1);
  const auto error = [&](const std::vector<float>& logits) -> std::string {
    try {
      Choose(logits, {.top_p = 0.9f}, rng);
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "";
  };
  EXPECT_NE(error({INFINITY, 0, 0}).find("NaN or infinity"), std::string::npos);
  EXPECT_NE(error({NAN, NAN, -INFINITY}).find("NaN or infinity"), std::string::npos);
  EXPECT_NE(error({-INFINITY, -INFINITY}).find("no token is left"), std::string::npos);
  for (const float wrong : {INFINITY, NAN}) {
    EXPECT_THROW(CheckLogits(std::vector<float>{0, wrong, -INFINITY}), InputError);
  }
  CheckLogits(std::vector<float>{0, -INFINITY});
  // Equal logits, where top_p keeps one token: rounding must not exclude all of them.
  for (size_t n = 1; n < 70; ++n) {
    const int32_t token = Choose(std::vector<float>(n, 0.25f), {.top_p = 1e-9f}, rng);
    EXPECT_LT(static_cast<size_t>(token), n);
  }
}

TEST(Choice, FollowsTemperatureTopKAndTopP) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f), std::log(5.0f)};
  Philox rng(2);
  const auto seen = [&](const ChoiceOptions& options) {
    std::set<int32_t> tokens;
    for (int i = 0; i < 2000; ++i) tokens.insert(Choose(logits, options, rng));
    return tokens;
  };
  EXPECT_EQ(seen({.temperature = 0}), (std::set<int32_t>{3}));
  EXPECT_EQ(seen({.top_k = 1}), (std::set<int32_t>{3}));
  EXPECT_EQ(seen({.top_k = 2}), (std::set<int32_t>{2, 3}));
  EXPECT_EQ(seen({.top_p = 0.4f}), (std::set<int32_t>{3}));        // 5 of 12
  EXPECT_EQ(seen({.top_p = 0.7f}), (std::set<int32_t>{2, 3}));     // 9 of 12
  EXPECT_EQ(seen({.top_p = 0.8f}), (std::set<int32_t>{1, 2, 3}));  // 11 of 12
  EXPECT_EQ(seen({}).size(), 4u);
  const std::vector<float> none(3, -INFINITY);
  EXPECT_THROW(Choose(none, {}, rng), Error);
  EXPECT_THROW(Validate(ChoiceOptions{.temperature = -1}), Error);
  EXPECT_THROW(Validate(ChoiceOptions{.top_p = 0}), Error);
  EXPECT_THROW(Validate(ChoiceOptions{.temperature = NAN}), Error);
}

TEST(TextPieces, ShowsWholeCharactersAndNoStopWord) {
  const std::string text = "海上 one two stop three";
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    TextPieces pieces({"stop", "zzz"});
    std::string shown;
    for (size_t at = 0; at < text.size(); at += cut) {
      const std::string piece = pieces.Add(std::string_view(text).substr(at, cut));
      EXPECT_TRUE(IsPrintable(piece)) << cut;  // whole characters only
      shown += piece;
    }
    EXPECT_TRUE(pieces.stopped());
    EXPECT_EQ(shown + pieces.Finish(), "海上 one two ") << cut;
  }
  TextPieces open({"stop"});
  std::string shown = open.Add("a sto");
  EXPECT_EQ(shown, "a ");
  EXPECT_EQ(open.Add("ry"), "story");
  EXPECT_EQ(open.Add("st"), "");
  EXPECT_EQ(open.Finish(), "st");
  TextPieces half({"stop"});  // a stop string directly after an incomplete character
  EXPECT_EQ(half.Add("a\xe6stop"), "a\xef\xbf\xbd");
  TextPieces broken({});
  shown = broken.Add("a\xff");
  shown += broken.Add("b\xe6\xb5");
  shown += broken.Finish();
  EXPECT_EQ(shown,
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(TextWriter, SameSeedGivesTheSameText) {
  for (const char* unit : {"byte", "character"}) {
    Engine engine(RandomModel("text", unit), {.threads = 1});
    TextWriter writer(engine);
    const auto write = [&](const TextOptions& options, TextEnd expected) {
      std::string text;
      EXPECT_EQ(writer.Write("ab", options,
                             [&](std::string_view piece) {
                               EXPECT_FALSE(piece.empty());
                               text += piece;
                               return true;
                             }),
                expected);
      return text;
    };
    TextOptions options{.tokens = 20, .choice = {.temperature = 0.3f}, .seed = 5};
    std::string text;
    TextEnd end =
        writer.Write("ab", options, [&](std::string_view piece) { return text += piece, true; });
    EXPECT_EQ(write(options, end), text);
    options.tokens = 1000;
    end = writer.Write("ab", options, [](std::string_view) { return true; });
    EXPECT_TRUE(end == TextEnd::kPositions || end == TextEnd::kEndToken);
    size_t calls = 0;
    EXPECT_EQ(writer.Write("ab", options, [&](std::string_view) { return ++calls, false; }),
              TextEnd::kReader);
    EXPECT_EQ(calls, 1u);
    EXPECT_THROW(writer.Write(std::string(50, 'a'), options, [](std::string_view) { return true; }),
                 Error);
  }
  Engine couplets(RandomModel("couplet", "character"), {.threads = 1});
  EXPECT_THROW(TextWriter writer(couplets), Error);
}

// The text follows the grammar, the same text with a drafter, and ends where nothing can follow.
TEST(TextWriter, FollowsAGrammar) {
  Engine engine(RandomModel("text", "character", 400), {.threads = 1});
  TextWriter writer(engine);
  const auto repeater = MakeRepeater();
  const Grammar pairs = Grammar::Parse(R"(root ::= ("ab" | "cd"){30} "b")");
  const Grammar open = Grammar::Parse(R"(root ::= "ab"*)");
  const std::regex regex("(ab|cd){30}b");
  for (const float temperature : {0.0f, 1.0f}) {
    TextOptions options{.tokens = 100, .choice = {.temperature = temperature}, .seed = 1};
    std::string text, drafted;
    const auto write = [&](std::string& to) {
      to.clear();
      return writer.Write("ab", options, [&](std::string_view piece) { return to += piece, true; });
    };
    options.grammar = &pairs;
    EXPECT_EQ(write(text), TextEnd::kGrammar);
    EXPECT_TRUE(std::regex_match(text, regex)) << text;
    options.drafter = repeater.get();
    EXPECT_EQ(write(drafted), TextEnd::kGrammar);
    EXPECT_EQ(drafted, text);
    options.tokens = 9;
    EXPECT_EQ(write(drafted), TextEnd::kTokens);
    EXPECT_EQ(drafted, text.substr(0, 9));
    // The model may end the text between two repetitions.
    options.tokens = 300, options.grammar = &open;
    const TextEnd end = write(text);
    EXPECT_TRUE(end == TextEnd::kEndToken || end == TextEnd::kTokens);
    EXPECT_TRUE(std::regex_match(text, std::regex("(ab)*"))) << text;
    EXPECT_EQ(end == TextEnd::kTokens, text.size() == 300);
  }
  const Grammar empty = Grammar::Parse("root ::= \"\"");
  const Grammar foreign = Grammar::Parse("root ::= \"a\u2603\"");
  const auto no_text = [](std::string_view) { return ADD_FAILURE(), true; };
  EXPECT_EQ(writer.Write("ab", {.grammar = &empty}, no_text), TextEnd::kGrammar);
  EXPECT_THROW(writer.Write("ab", {.grammar = &foreign}, [](std::string_view) { return true; }),
               InputError);
}

TEST(NatsOf, EqualsTheSumOverSteps) {
  Engine engine(RandomModel("text", "character"), {.threads = 1});
  const std::vector<int32_t> tokens = {0, 5, 7, 3, 9, 4};
  double want = 0;
  State state = engine.NewState(1);
  std::vector<float> logits(engine.output_size());
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    engine.Step(state, {&tokens[t], 1}, logits);
    LogSoftmax(logits);
    if (t + 1 >= 3) want -= logits[static_cast<size_t>(tokens[t + 1])];
  }
  EXPECT_NEAR(NatsOf(engine, tokens, 3), want, 1e-4);
  EXPECT_EQ(NatsOf(engine, std::span(tokens).first(1), 1), 0);
}

std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = NextCodePoint(text, at)->bytes;
    characters.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

// Windows and the tokens that begin a text fit into a table of learned positions.
TEST(TextTask, EvaluatesWindowsThatFitTheModel) {
  const TextSpec spec = TwoTokensBegin();
  const Vocabulary vocabulary(spec);
  // A window's last token is not read, so 2 begin tokens and 11 - 1 tokens need 12 positions.
  constexpr size_t kPositions = 12, kWindow = 11;
  Engine engine(RandomModel("text", spec, kPositions), {.threads = 1});
  ASSERT_EQ(engine.model().most_positions(), kPositions);
  const std::string text = "Before we proceed any further, hear me speak.";
  const std::vector<int32_t> tokens = vocabulary.Encode(text);
  ASSERT_GT(tokens.size(), kWindow);
  double nats = 0;
  for (size_t at = 0; at < tokens.size(); at += kWindow) {
    std::vector<int32_t> read = vocabulary.begin();
    const size_t end = std::min(tokens.size(), at + kWindow);
    for (size_t i = at; i < end; ++i) read.push_back(tokens[i]);
    nats += NatsOf(engine, read, vocabulary.begin().size());
  }
  const std::string path =
      std::filesystem::temp_directory_path() / ("linnet_text_test." + std::to_string(getpid()));
  std::ofstream(path) << text;
  EvalOptions options;
  options.from.dir = path;
  const Evaluation result = kTextTask.evaluate(options, engine, [](size_t, size_t) {});
  std::filesystem::remove(path);
  EXPECT_EQ(result.record.at("tokens"), tokens.size());
  const double want = nats / static_cast<double>(tokens.size()) / std::numbers::ln2;
  EXPECT_NEAR(result.record.at("bits_per_token").get<double>(), want, 1e-9);
}

// Without rules, a second line ends at the model's last position at the latest: also after a first
// line that is shorter than the longest possible one.
TEST(CoupletWriter, FreeLinesFitThePositions) {
  for (const std::string name : {"couplet-encoder-decoder", "couplet-causal-linear"}) {
    Engine engine(Model::Open("tests/checkpoints/" + name + ".safetensors"), {.threads = 1});
    CoupletWriter writer(engine);
    const bool pair = name == "couplet-encoder-decoder";
    const size_t positions = 31, longest = pair ? positions : positions / 2;
    const auto line = [](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += "明";
      return text;
    };
    size_t most = 0;
    for (const size_t length : {2 * longest / 3, longest}) {
      const auto answers = writer.Write(
          line(length), {.candidates = 100, .choice = {.temperature = 20}, .rules = false});
      ASSERT_FALSE(answers.empty());
      for (const CoupletAnswer& answer : answers) {
        const size_t size = Characters(answer.text).size();
        EXPECT_LE(size, pair ? positions : positions - length) << name << " " << length;
        most = std::max(most, size);
      }
    }
    EXPECT_GT(most, longest / 2) << name << ": no line was long enough for this test";
    EXPECT_THROW(writer.Write(line(longest + 1), {.rules = false}), InputError);
  }
}

// Even with random weights, the second line is as long as the first and has the same punctuation.
// All characters except punctuation differ from the first line's characters at the same positions.
// Two characters of the second line are equal only if the first line's at the same two positions
// are equal.
TEST(CoupletWriter, KeepsTheRules) {
  Engine engine(RandomModel("couplet", "character"), {.threads = 1});
  CoupletWriter writer(engine);
  for (const std::string first : {"海上明月", "abcab，cd。", "a", "海海海", "zz，yx!", "。"}) {
    for (const size_t beam : {0u, 1u, 7u}) {
      const std::vector<CoupletAnswer> answers =
          writer.Write(first, {.candidates = 6, .beam = beam, .seed = 3});
      ASSERT_FALSE(answers.empty()) << first;
      const std::vector<std::string> given = Characters(first);
      std::set<std::string> texts;
      for (size_t a = 0; a < answers.size(); ++a) {
        EXPECT_TRUE(texts.insert(answers[a].text).second) << answers[a].text;
        if (a > 0) {
          EXPECT_GE(answers[a - 1].log_probability, answers[a].log_probability);
        }
        const std::vector<std::string> answer = Characters(answers[a].text);
        ASSERT_EQ(answer.size(), given.size());
        size_t counted = 0;
        for (size_t i = 0; i < given.size(); ++i) {
          const bool mark = IsPunctuation(NextCodePoint(given[i], 0)->value);
          EXPECT_EQ(mark, answer[i] == given[i]) << first << " " << answers[a].text;
          EXPECT_EQ(mark, IsPunctuation(NextCodePoint(answer[i], 0)->value));
          counted += !mark;
          for (size_t j = 0; j < i && !mark; ++j) {
            if (answer[j] == answer[i]) {
              EXPECT_EQ(given[j], given[i]) << answers[a].text;
            }
          }
        }
        EXPECT_EQ(counted, answers[a].characters);
        EXPECT_EQ(answers[a].scores.size(), answer.size());
        double sum = 0;
        for (const double score : answers[a].scores) sum += score;
        EXPECT_NEAR(sum, answers[a].log_probability, 1e-6);
        EXPECT_LE(answers[a].log_probability, 0);
      }
    }
  }
}

// A beam that keeps every continuation finds the most likely line.
TEST(CoupletWriter, AWideBeamIsExact) {
  Engine engine(RandomModel("couplet", "character"), {.threads = 1});
  CoupletWriter writer(engine);
  const CoupletAnswer wide = writer.Write("ab", {.beam = 1000})[0];
  const Vocabulary& vocabulary = writer.vocabulary();
  double best = -INFINITY;
  std::string text;
  for (int32_t x = Vocabulary::kFirst; x < static_cast<int32_t>(vocabulary.size()); ++x) {
    for (int32_t y = Vocabulary::kFirst; y < static_cast<int32_t>(vocabulary.size()); ++y) {
      const std::string first = vocabulary.Decode(x), second = vocabulary.Decode(y);
      if (x == y || first == "a" || second == "b" ||
          IsPunctuation(NextCodePoint(first, 0)->value) ||
          IsPunctuation(NextCodePoint(second, 0)->value)) {
        continue;
      }
      std::vector<int32_t> tokens = vocabulary.Encode("ab");
      tokens.insert(tokens.end(), {Vocabulary::kSeparator, x, y});
      const double log_probability = -NatsOf(engine, tokens, 3);
      if (log_probability > best) best = log_probability, text = first + second;
    }
  }
  EXPECT_EQ(wide.text, text);
  EXPECT_NEAR(wide.log_probability, best, 1e-4);
}

TEST(CoupletWriter, RefusesInvalidLines) {
  Engine engine(RandomModel("couplet", "character"), {.threads = 1});
  CoupletWriter writer(engine);
  EXPECT_THROW(writer.Write(""), Error);
  EXPECT_THROW(writer.Write("\xff"), Error);
  EXPECT_THROW(writer.Write(std::string(30, 'a')), Error);
  EXPECT_THROW(writer.Write("a", {.candidates = 0}), Error);
  Engine text(RandomModel("text", "byte"), {.threads = 1});
  EXPECT_THROW(CoupletWriter other(text), Error);
}

}  // namespace
}  // namespace linnet
