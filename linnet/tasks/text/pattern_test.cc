#include "linnet/tasks/text/pattern.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "linnet/tasks/text/grammar_test_util.h"

namespace linnet {
namespace {

using json = nlohmann::ordered_json;

std::string SchemaOf(const std::string& pattern) {
  return json({{"type", "string"}, {"pattern", pattern}}).dump();
}

void CheckPattern(const std::string& pattern, const std::vector<std::string>& right,
                  const std::vector<std::string>& wrong) {
  SCOPED_TRACE(pattern);
  const Grammar grammar = Grammar::OfJsonSchema(SchemaOf(pattern));
  for (const std::string& text : right) EXPECT_TRUE(Accepts(grammar, "\"" + text + "\"")) << text;
  for (const std::string& text : wrong) EXPECT_FALSE(Accepts(grammar, "\"" + text + "\"")) << text;
}

std::string PatternFault(const std::string& pattern) {
  return FaultOf(Grammar::OfJsonSchema, SchemaOf(pattern));
}

TEST(Pattern, Examples) {
  CheckPattern("^[A-Z]{2}-\\d{3,4}$", {"AB-123", "XY-0000"},
               {"", "AB-12", "ab-123", "AB-12345", "AB_123"});
  CheckPattern("^(\\+\\d{1,3} )?(?:\\d{2} ?)+$", {"+49 12 34", "1234"}, {"+1234 12", "123"});
  CheckPattern("^(?<first>a|b)c*?$", {"a", "bccc"}, {"ab", "c"});
  CheckPattern("b", {"b", "abc", "\\u0041b\\\"", "海b"}, {"", "ac"});
  CheckPattern("^a|b$|^$", {"a", "ab", "xb", ""}, {"xa", "bx"});
  CheckPattern("^\\w+@[\\w.\\-]+\\.[a-z]{2,}$", {"a_1@b-c.de"}, {"@b.de", "a@b", "a@b.c"});
  CheckPattern("^[^a-c]$", {"d", "\\\"", "\\\\", "\\n", "海"}, {"a", "b", "dd", ""});
  CheckPattern("^[\\]x^\\-a]$", {"]", "x", "^", "-", "a"}, {"b"});
  CheckPattern("^[\\w-]$", {"-", "a"}, {"+"});
  CheckPattern("^.$", {"a", "\\\"", "\\t", "海"}, {"\\n", "\\r", "", "ab"});
  CheckPattern("^\\s$", {" ", "\\t", "\\n", "\xe3\x80\x80"}, {"a", ""});
  CheckPattern("^\\u6d77\\x41\\u{1F600}\\/\\n$", {"海A😀/\\n"}, {"海A😀\\/\\n"});
  CheckPattern("^\"\\\\$", {"\\\"\\\\"}, {});
}

// Random patterns over the letters a and b, for all short texts, against the standard library.
TEST(Pattern, MatchesAsTheStandardLibrary) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const std::function<std::string(int)> make = [&](int depth) {
    std::string text;
    const uint32_t alternatives = depth < 2 ? 1 + below(2) : 1;
    for (uint32_t i = 0; i < alternatives; ++i) {
      if (i > 0) text += '|';
      if (depth == 0 && below(2) == 0) text += '^';
      for (uint32_t n = below(4); n > 0; --n) {
        static const char* const items[] = {"a", "b", ".", "[ab]", "[^a]", "\\w", "\\D"};
        text += depth < 2 && below(4) == 0 ? (below(2) == 0 ? "(" : "(?:") + make(depth + 1) + ")"
                                           : items[below(7)];
        static const char* const repeats[] = {"*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"};
        if (below(3) == 0) text += repeats[below(7)];
      }
      if (depth == 0 && below(2) == 0) text += '$';
    }
    return text;
  };
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i) {
    for (const char c : {'a', 'b'}) texts.push_back(texts[i] + c);
  }
  for (int round = 0; round < 50; ++round) {
    const std::string pattern = make(0);
    const std::regex regex(pattern, std::regex::ECMAScript);
    std::optional<Grammar> grammar;
    try {
      grammar = Grammar::OfJsonSchema(SchemaOf(pattern));
    } catch (const InputError& error) {
      for (const std::string& text : texts) {
        ASSERT_FALSE(std::regex_search(text, regex)) << pattern << ": " << error.what();
      }
      continue;
    }
    for (const std::string& text : texts) {
      ASSERT_EQ(Accepts(*grammar, "\"" + text + "\""), std::regex_search(text, regex))
          << pattern << " " << text;
    }
  }
}

TEST(Pattern, Faults) {
  EXPECT_EQ(PatternFault("^(a"),
            "the schema, #: the pattern, at byte 4: expected ')' at the end of a group");
  for (const char* pattern :
       {"a)",    "*a",     "a**",   "[a",      "[b-a]",       "[\\d-a]", "\\",       "\\1",
        "\\k",   "\\p{L}", "\\b",   "(?=a)",   "(?!a)",       "(?<=a)",  "(?<!a)",   "(?<n",
        "(?i)a", "a^b",    "a$b",   "(^a)",    "(a$)",        "a{2,1}",  "a{99999}", "a{",
        "]",     "}",      "\\u12", "\\ud83d", "\\u{110000}", "\\u{}",   "\\cA"}) {
    EXPECT_NE(PatternFault(pattern).find("the pattern, at byte "), std::string::npos)
        << pattern << " " << PatternFault(pattern);
  }
  EXPECT_NE(PatternFault("[]"), "");  // no text fits
  EXPECT_NE(PatternFault(std::string(100, '(') + std::string(100, ')')), "");
  EXPECT_NE(PatternFault("a{9999}b{9999}c{9999}d{9999}e{9999}f{9999}g{9999}"), "");
  EXPECT_NE(FaultOf(Grammar::OfJsonSchema, R"({"pattern": 1})"), "");
  EXPECT_NE(FaultOf(Grammar::OfJsonSchema, R"({"pattern": "a", "maxLength": 3})"), "");
  EXPECT_NE(FaultOf(Grammar::OfJsonSchema, R"({"pattern": "a", "format": "date"})"), "");
}

}  // namespace
}  // namespace linnet
