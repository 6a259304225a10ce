#include "linnet/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/tasks/text/grammar_test_util.h"

namespace linnet {
namespace {

std::string Fault(const std::string& text) { return FaultOf(Grammar::Parse, text); }

TEST(Grammar, AcceptsTheTextsOfTheRuleRoot) {
  const Grammar grammar = Grammar::Parse(R"(
    # a list of numbers
    root   ::= "[" (number ("," number)*)? "]"
    number ::= "-"? digit+   # at least one digit
      | "NaN"
    digit  ::= [0-9]
  )");
  for (const char* right : {"[]", "[1]", "[-12,3]", "[NaN,0]"})
    EXPECT_TRUE(Accepts(grammar, right));
  for (const char* wrong : {"", "[", "[1", "[,]", "[1,]", "[--1]", "[Na]", "[1] ", "1"}) {
    EXPECT_FALSE(Accepts(grammar, wrong)) << wrong;
  }
}

TEST(Grammar, RulesCanBeRecursive) {
  const Grammar grammar = Grammar::Parse(R"x(root ::= ("(" root ")")? | "x" root "y")x");
  EXPECT_TRUE(Accepts(grammar, ""));
  EXPECT_TRUE(Accepts(grammar, "((x()y))"));
  EXPECT_FALSE(Accepts(grammar, "((x(y)))"));
  EXPECT_FALSE(Accepts(grammar, "(()"));
  // A recursion at the end of a rule takes no space, and may be deeper than others.
  const Grammar tail = Grammar::Parse(R"(root ::= "a" root | "b")");
  EXPECT_TRUE(Accepts(tail, std::string(1000, 'a') + "b"));
  const std::string open(999, '('), shut(999, ')');
  EXPECT_TRUE(Accepts(grammar, open + shut));
  EXPECT_FALSE(Accepts(grammar, open + "((((" + "))))" + shut));  // too deep
}

TEST(Grammar, RepetitionsAreCounted) {
  const Grammar grammar = Grammar::Parse(R"(root ::= "a"{2} "b"{1,3} "c"{2,} ("de"){0,1})");
  EXPECT_TRUE(Accepts(grammar, "aabcc"));
  EXPECT_TRUE(Accepts(grammar, "aabbbcccccde"));
  for (const char* wrong : {"abcc", "aaabcc", "aacc", "aabbbbcc", "aabc", "aabccdede"}) {
    EXPECT_FALSE(Accepts(grammar, wrong)) << wrong;
  }
}

TEST(Grammar, EscapesAndSets) {
  const Grammar grammar =
      Grammar::Parse(R"(root ::= "\x41\u6d77\U0001F600\n\"\\" [^a-c\]\-] [x-] .)");
  EXPECT_TRUE(Accepts(grammar, "A海😀\n\"\\d-."));
  EXPECT_TRUE(Accepts(grammar, "A海😀\n\"\\月x月"));
  EXPECT_FALSE(Accepts(grammar, "A海😀\n\"\\ax."));
  EXPECT_FALSE(Accepts(grammar, "A海😀\n\"\\]x."));
  EXPECT_FALSE(Accepts(grammar, "A海😀\n\"\\dy."));
}

// Sets against all code points: `inside` is what the set must accept.
TEST(Grammar, SetsOfCodePointsAreExact) {
  const auto check = [](const std::string& set, auto inside) {
    const Grammar grammar = Grammar::Parse("root ::= " + set);
    for (char32_t c = 0; c <= 0x10ffff; c += c < 0x3000 ? 1 : 7) {
      if (c >= 0xd800 && c <= 0xdfff) continue;
      std::string text;
      AppendUtf8(c, text);
      GrammarMatcher one(grammar, ByteVocabulary());
      bool fits = true;
      for (const char byte : text) {
        try {
          if (fits) one.Add(ByteToken(byte));
        } catch (const InputError&) {
          fits = false;
        }
      }
      ASSERT_EQ(fits && one.finished(), inside(c)) << set << " " << static_cast<uint32_t>(c);
    }
  };
  check(".", [](char32_t) { return true; });
  check("[\\u0041-\\u07ff]", [](char32_t c) { return c >= 0x41 && c <= 0x7ff; });
  check("[\\u0123-\\U00012345]", [](char32_t c) { return c >= 0x123 && c <= 0x12345; });
  check("[^\\u0080-\\uffff]", [](char32_t c) { return c < 0x80 || c > 0xffff; });
}

// A random expression of a, b and c, as a grammar and as a regular expression.
struct Both {
  std::string grammar, regex;
};
Both RandomExpression(std::mt19937& random, int depth) {
  const auto draw = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  switch (depth == 0 ? draw(2) : draw(6)) {
    case 0: {
      const std::string text(1, static_cast<char>('a' + draw(3)));
      return {'"' + text + '"', text};
    }
    case 1:
      return draw(2) == 0 ? Both{"[ab]", "[ab]"} : Both{"[^b]", "[^b]"};
    case 2:
    case 3: {
      const Both a = RandomExpression(random, depth - 1), b = RandomExpression(random, depth - 1);
      return {a.grammar + " " + b.grammar, a.regex + b.regex};
    }
    case 4: {
      const Both a = RandomExpression(random, depth - 1), b = RandomExpression(random, depth - 1);
      return {"(" + a.grammar + " | " + b.grammar + ")", "(?:" + a.regex + "|" + b.regex + ")"};
    }
    default: {
      const Both a = RandomExpression(random, depth - 1);
      const char* repeats[] = {"*", "+", "?", "{2}", "{1,2}", "{0,2}"};
      const std::string repeat = repeats[draw(6)];
      return {"(" + a.grammar + ")" + repeat, "(?:" + a.regex + ")" + repeat};
    }
  }
}

TEST(Grammar, EqualsRegularExpressions) {
  std::mt19937 random(1);
  for (int round = 0; round < 150; ++round) {
    const Both both = RandomExpression(random, 3);
    SCOPED_TRACE(both.regex);
    const Grammar grammar = Grammar::Parse("root ::= " + both.grammar);
    const std::regex regex(both.regex);
    // All texts of up to five characters.
    std::vector<std::string> texts = {""};
    for (size_t i = 0; i < texts.size(); ++i) {
      ASSERT_EQ(Accepts(grammar, texts[i]), std::regex_match(texts[i], regex)) << texts[i];
      if (texts[i].size() == 5) continue;
      for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
    }
  }
}

TEST(Grammar, ErrorsNameTheLine) {
  EXPECT_EQ(Fault("a ::= \"x\""), "the grammar has no rule 'root'");
  EXPECT_EQ(Fault(""), "the grammar has no rule 'root'");
  EXPECT_EQ(Fault("root ::= a\nb ::= \"x\""), "the grammar, line 1: the rule 'a' is not defined");
  EXPECT_EQ(Fault("root ::= \"a\"\nroot ::= \"b\""),
            "the grammar, line 2: the rule 'root' is defined twice");
  EXPECT_EQ(Fault("root ::= (\"a\""), "the grammar, line 1: expected ')' at the end of the group");
  EXPECT_EQ(Fault("root ::= \"a\")"), "the grammar, line 1: ')' without '('");
  EXPECT_EQ(Fault("root ::=\n\"a"),
            "the grammar, line 2: the text or the set of characters does not end");
  EXPECT_EQ(Fault("root ::= \"\\q\""), "the grammar, line 1: unknown escape sequence '\\q'");
  EXPECT_EQ(Fault("root ::= [z-a]"), "the grammar, line 1: a range of characters is reversed");
  EXPECT_EQ(Fault("root ::= \"\\ud800\""), "the grammar, line 1: not a character");
  EXPECT_EQ(Fault("root ::= \"a\"{3,2}"), "the grammar, line 1: {3,2} is empty");
  EXPECT_EQ(Fault("root ::= \"a\"{99999}"), "the grammar, line 1: more than 10000 repetitions");
  EXPECT_EQ(Fault("root = \"a\""), "the grammar, line 1: expected '::=' after 'root'");
  EXPECT_NE(Fault("root ::= ((\"\"{9999}){9999}){9999}").find("too large"), std::string::npos);
  EXPECT_NE(Fault("root ::= (\"ab\"{9999}){9999}").find("too large"), std::string::npos);
  EXPECT_NE(Fault("root ::= " + std::string(1000, '(')).find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(Fault("root ::= \"a\"" + std::string(1000, '*')).find("too many repetitions"),
            std::string::npos);
}

TEST(Grammar, LeftRecursionIsAnError) {
  const std::string direct = Fault("root ::= root \"a\" | \"b\"");
  EXPECT_NE(direct.find("the rule 'root' can begin with itself"), std::string::npos) << direct;
  EXPECT_NE(Fault("root ::= a\na ::= \"x\"? b\nb ::= root | \"y\"").find("begin with itself"),
            std::string::npos);
  EXPECT_NE(Fault("root ::= e root \"a\" | \"b\"\ne ::= f?\nf ::= \"x\"").find("begin with itself"),
            std::string::npos);
  EXPECT_EQ(Fault("root ::= e root \"a\" | \"b\"\ne ::= \"x\""), "");
}

TEST(Grammar, AlternativesThatNeverEndAreLeftOut) {
  for (const char* none : {"root ::= []", "root ::= \"a\" root",
                           "root ::= \"a\" b\nb ::= \"x\" b | []", "root ::= root"}) {
    EXPECT_NE(Fault(none).find("the grammar has no text"), std::string::npos) << none;
  }
  const Grammar grammar =
      Grammar::Parse("root ::= (\"a\" [] | \"b\" c | \"d\" c?) \"e\"\nc ::= \"f\" c");
  GrammarMatcher matcher(grammar, ByteVocabulary());
  EXPECT_EQ(AllowedBytes(matcher), "d");
  matcher.Add(ByteToken('d'));
  EXPECT_EQ(AllowedBytes(matcher), "e");
}

// Grammars that clients send are compiled on the server's threads, so no grammar may take long.
TEST(Grammar, CompilationIsLinear) {
  const auto milliseconds = [](const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    Fault(text);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  std::string chain = "root ::= a0";
  for (int i = 0; i < 3000; ++i) {
    chain += "\na" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "?";
  }
  const std::string grammars[] = {"root ::= (a?){10000} \"z\"\na ::= \"x\"",
                                  "root ::= a{10000} \"z\"\na ::= \"\"",
                                  "root ::= ((a?){10000}){2}\na ::= \"x\"?",
                                  "root ::= [" + std::string(100'000, 'a') + "]{10000}",
                                  "root ::= ([^a]{100}){100}",
                                  chain + "\na3000 ::= \"x\""};
  // Quadratic time would be minutes.
  for (const std::string& text : grammars)
    EXPECT_LT(milliseconds(text), 5000) << text.substr(0, 50);
}

TEST(Grammar, AmbiguityIsLimited) {
  // After n times "a", the automaton has 2^n stacks.
  const Grammar grammar = Grammar::Parse(R"(root ::= "a" root "b" | "a" root "c" | "d")");
  GrammarMatcher matcher(grammar, ByteVocabulary());
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) matcher.Add(ByteToken('a'));
      },
      InputError);
}

// A matcher forgets places that it does not need.
TEST(GrammarMatcher, LongTexts) {
  const Grammar grammar =
      Grammar::Parse(R"x(root ::= item* item ::= "(" item* ")" | [a-z]{0,9} ("," | ";"))x");
  GrammarMatcher matcher(grammar, ByteVocabulary());
  std::mt19937 random(2);
  int depth = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string allowed = AllowedBytes(matcher);
    ASSERT_FALSE(allowed.empty());
    const bool opens = allowed.find('(') != std::string::npos;  // not within an item
    ASSERT_EQ(matcher.complete(), depth == 0 && opens);
    const char c =
        depth < 150 && random() % 3 == 0 && opens ? '(' : allowed[random() % allowed.size()];
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    matcher.Add(ByteToken(c));
  }
}

// Tokens of several characters, some of which cross the borders of the grammar's parts.
TEST(GrammarMatcher, TokensOfSeveralBytes) {
  const Vocabulary characters = Vocabulary::OfText("海上明月是非", 100);
  const Grammar grammar = Grammar::Parse(R"(root ::= [海月] "上"+)");
  GrammarMatcher matcher(grammar, characters);
  const auto allowed = [&] {
    std::vector<float> logits(characters.size(), 0);
    matcher.Mask(logits);
    std::string text;
    for (size_t i = Vocabulary::kFirst; i < logits.size(); ++i) {
      if (logits[i] == 0) text += characters.Decode(static_cast<int32_t>(i));
    }
    return text;
  };
  EXPECT_EQ(allowed(), "月海");  // in the order of the vocabulary
  EXPECT_THROW(matcher.Add(Vocabulary::kUnknown), InputError);
  EXPECT_THROW(matcher.Add(Vocabulary::kEnd), InputError);
  matcher.Add(characters.Encode("月")[0]);
  EXPECT_EQ(allowed(), "上");
  EXPECT_FALSE(matcher.complete());
  matcher.Add(characters.Encode("上")[0]);
  EXPECT_TRUE(matcher.complete());
  EXPECT_FALSE(matcher.finished());
  EXPECT_EQ(allowed(), "上");
  GrammarMatcher latin(Grammar::Parse("root ::= \"a\""), characters);
  std::vector<float> logits(characters.size(), 0);
  EXPECT_THROW(latin.Mask(logits), InputError);
  // A model may have more outputs than its vocabulary has tokens.
  logits.assign(characters.size() + 3, 0);
  matcher.Mask(logits);
  EXPECT_EQ(std::count(logits.begin(), logits.end(), 0), 2);  // an item and the end token
  EXPECT_THROW(matcher.Mask(std::span(logits).first(characters.size() - 1)), InputError);
}

}  // namespace
}  // namespace linnet
