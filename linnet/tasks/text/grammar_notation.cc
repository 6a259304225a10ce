#include "linnet/tasks/text/grammar_notation.h"

#include <algorithm>
#include <map>
#include <optional>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/tasks/text/scanner.h"

namespace linnet::grammar {
namespace {

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

// A recursive-descent parser. Line breaks have no meaning: a rule ends where `name ::=` begins the
// next one.
class Parser : Scanner {
 public:
  explicit Parser(const std::string& text) : Scanner(text) {}

  GrammarRules Parse() {
    Skip();
    while (!ended()) ParseRule();
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined) {
        at_ = rule.first_use;
        Fail("the rule " + Quote(name) + " is not defined");
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) throw InputError("the grammar has no rule 'root'");
    grammar_.root = root->second.index;
    return std::move(grammar_);
  }

 private:
  struct Known {
    size_t index, first_use;
    bool defined;
  };

  [[noreturn]] void Fail(const std::string& what) const override {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw InputError("the grammar, line ", line, ": ", what);
  }
  // Skips blanks, line breaks and comments.
  void Skip() {
    while (!ended()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }
  // Reads a name; "" if there is none.
  std::string Name() {
    const size_t begin = at_;
    while (!ended() && IsNameCharacter(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  Known& RuleOf(const std::string& name) {
    const auto [found, added] = rules_.try_emplace(name, Known{0, at_, false});
    if (added) found->second.index = grammar_.Declare(name);
    return found->second;
  }

  void ParseRule() {
    const std::string name = Name();
    if (name.empty()) Fail("expected the name of a rule");
    Skip();
    if (!Take("::=")) Fail("expected '::=' after " + Quote(name));
    Known& rule = RuleOf(name);
    if (rule.defined) Fail("the rule " + Quote(name) + " is defined twice");
    rule.defined = true;
    const size_t index = rule.index;
    grammar_.Define(index, ParseChoice(0));
    if (Peek() == ')') Fail("')' without '('");
  }
  Expression ParseChoice(int depth) {
    if (depth > kDeepest) Fail("parentheses are nested too deeply");
    std::vector<Expression> parts;
    do {
      Skip();
      parts.push_back(ParseSequence(depth));
    } while (Take('|'));
    return parts.size() == 1 ? std::move(parts[0]) : ChoiceOf(std::move(parts));
  }
  // Ends before '|', ')', the next rule or the end of the text. May be empty.
  Expression ParseSequence(int depth) {
    std::vector<Expression> parts;
    while (true) {
      Skip();
      std::optional<Expression> part = ParseItem(depth);
      if (!part) break;
      parts.push_back(ParseRepeats(std::move(*part)));
    }
    return parts.size() == 1 ? std::move(parts[0]) : SequenceOf(std::move(parts));
  }
  std::optional<Expression> ParseItem(int depth) {
    if (ended() || Peek() == '|' || Peek() == ')') return {};
    if (Take('"')) return ParseText();
    if (Take('[')) return ParseSet();
    if (Take('.')) return NotIn({});
    if (Take('(')) {
      Expression inner = ParseChoice(depth + 1);
      Require(')', "at the end of the group");
      return inner;
    }
    const size_t begin = at_;
    const std::string name = Name();
    if (name.empty()) Fail(StrCat("unexpected ", Quote(std::string(1, text_[at_]))));
    const size_t end = at_;
    Skip();
    if (text_.compare(at_, 3, "::=") == 0) {  // the next rule
      at_ = begin;
      return {};
    }
    at_ = end;
    return Rule(RuleOf(name).index);
  }
  // Reads any number of '*', '+', '?' and {...}.
  Expression ParseRepeats(Expression part) {
    for (int repeats = 0; repeats <= kDeepest; ++repeats) {
      Skip();
      if (!TakeRepeat(part)) return part;
    }
    Fail("too many repetitions of one item");
  }
  Expression ParseText() {
    std::string bytes;
    while (!Take('"')) AppendUtf8(Character(), bytes);
    return Text(std::move(bytes));
  }
  Expression ParseSet() {
    const bool inverse = Take('^');
    std::vector<CodeRange> ranges;
    while (!Take(']')) {
      const char32_t low = Character();
      char32_t high = low;
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = Character();
      }
      if (high < low) Fail("a range of characters is reversed");
      ranges.push_back({low, high});
    }
    return inverse ? NotIn(std::move(ranges)) : Set(std::move(ranges));
  }
  // Reads a character or an escape sequence.
  char32_t Character() {
    if (ended()) Fail("the text or the set of characters does not end");
    if (!Take('\\')) return Plain();
    if (ended()) Fail("expected a character after '\\'");
    switch (const char c = text_[at_++]) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<char32_t>(c);
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      default:
        --at_;
        Fail("unknown escape sequence " + Quote(std::string(text_.substr(at_ - 1, 2))));
    }
  }
  GrammarRules grammar_;
  std::map<std::string, Known> rules_;
};

}  // namespace

GrammarRules ParseGrammar(const std::string& text) { return Parser(text).Parse(); }

}  // namespace linnet::grammar
