#include "linnet/tasks/text/grammar_notation.h"

#include <algorithm>
#include <map>
#include <optional>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet::grammar {
namespace {

constexpr int kDeepest = 64;             // maximum nesting of parentheses and of repetitions
constexpr size_t kMostRepeats = 10'000;  // in x{N}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

// A recursive-descent parser. Line breaks have no meaning: a rule ends where `name ::=` begins the
// next one.
class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  GrammarRules Parse() {
    Skip();
    while (at_ < text_.size()) ParseRule();
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

  [[noreturn]] void Fail(const std::string& what) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    throw InputError("the grammar, line ", line, ": ", what);
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Require(char c, const char* where) {
    if (!Take(c)) Fail(StrCat("expected '", c, "' ", where));
  }
  // Skips blanks, line breaks and comments.
  void Skip() {
    while (at_ < text_.size()) {
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
    while (at_ < text_.size() && IsNameCharacter(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool TakeDefinition() {
    if (text_.compare(at_, 3, "::=") != 0) return false;
    at_ += 3;
    return true;
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
    if (!TakeDefinition()) Fail("expected '::=' after " + Quote(name));
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
    if (at_ == text_.size() || Peek() == '|' || Peek() == ')') return {};
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
      if (Take('*')) {
        part = Repeat(std::move(part), 0);
      } else if (Take('+')) {
        part = Repeat(std::move(part), 1);
      } else if (Take('?')) {
        part = Optional(std::move(part));
      } else if (Take('{')) {
        const size_t least = Number();
        size_t most = least;
        if (Take(',')) most = Peek() == '}' ? Expression::kUnlimited : Number();
        Require('}', "after the number of repetitions");
        if (most < least) Fail(StrCat("{", least, ",", most, "} is empty"));
        part = Repeat(std::move(part), least, most);
      } else {
        return part;
      }
    }
    Fail("too many repetitions of one item");
  }
  size_t Number() {
    size_t number = 0;
    const size_t begin = at_;
    while (Peek() >= '0' && Peek() <= '9' && number <= kMostRepeats) {
      number = 10 * number + static_cast<size_t>(text_[at_++] - '0');
    }
    if (at_ == begin) Fail("expected a number");
    if (number > kMostRepeats) Fail(StrCat("more than ", kMostRepeats, " repetitions"));
    return number;
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
    if (at_ == text_.size()) Fail("the text or the set of characters does not end");
    if (!Take('\\')) {
      const auto next = NextCodePoint(text_, at_);
      if (!next) Fail("the grammar is not UTF-8");
      at_ += next->bytes;
      return next->value;
    }
    if (at_ == text_.size()) Fail("expected a character after '\\'");
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
        Fail("unknown escape sequence " + Quote(text_.substr(at_ - 1, 2)));
    }
  }
  // A code point of `digits` hexadecimal digits.
  char32_t Hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      const auto letter = static_cast<char>(c | 0x20);  // lower case
      if (c >= '0' && c <= '9') {
        value = 16 * value + static_cast<uint64_t>(c - '0');
      } else if (letter >= 'a' && letter <= 'f') {
        value = 16 * value + static_cast<uint64_t>(letter - 'a' + 10);
      } else {
        Fail(StrCat("expected ", digits, " hexadecimal digits"));
      }
      ++at_;
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) Fail("not a character");
    return static_cast<char32_t>(value);
  }

  const std::string& text_;
  size_t at_ = 0;
  GrammarRules grammar_;
  std::map<std::string, Known> rules_;
};

}  // namespace

GrammarRules ParseGrammar(const std::string& text) { return Parser(text).Parse(); }

}  // namespace linnet::grammar
