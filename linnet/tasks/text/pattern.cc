#include "linnet/tasks/text/pattern.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/tasks/text/scanner.h"

namespace linnet::grammar {
namespace {

using Ranges = std::vector<CodeRange>;

constexpr char kOnlyAtTheEnds[] =
    "'^' and '$' are supported only at the beginning and the end of the pattern or of one of its "
    "alternatives";

// The set that a letter behind a backslash stands for, as in "\d".
std::optional<Ranges> ClassOf(char letter) {
  static const Ranges digits = {{'0', '9'}};
  static const Ranges word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static const Ranges space = {
      {'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  switch (letter) {
    case 'd':
      return digits;
    case 'D':
      return NotIn(digits).ranges;
    case 'w':
      return word;
    case 'W':
      return NotIn(word).ranges;
    case 's':
      return space;
    case 'S':
      return NotIn(space).ranges;
    default:
      return {};
  }
}

// One character of the set, as it is written in a JSON string.
Expression Written(const Ranges& set) {
  static const std::pair<char32_t, const char*> escapes[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
      {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
  // What is neither outside the set nor among the characters that cannot be themselves.
  Ranges outside = NotIn(set).ranges;
  outside.insert(outside.end(), {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x9f}});
  std::vector<Expression> ways;
  if (Expression plain = NotIn(std::move(outside)); !plain.ranges.empty()) {
    ways.push_back(std::move(plain));
  }
  for (const auto& [code, text] : escapes) {
    const auto holds = [code = code](const CodeRange& range) {
      return range.low <= code && code <= range.high;
    };
    if (std::any_of(set.begin(), set.end(), holds)) ways.push_back(Text(text));
  }
  return ways.size() == 1 ? std::move(ways[0]) : ChoiceOf(std::move(ways));
}

class PatternParser : Scanner {
 public:
  PatternParser(const std::string& pattern, const Expression& any, const std::string& where)
      : Scanner(pattern), any_(any), where_(where) {}

  // Without '^' and '$', any characters may be before and behind the match.
  Expression Parse() {
    std::vector<Expression> parts;
    do {
      const bool begins = Take('^');
      Expression match = ParseSequence(0);
      const bool ends = Take('$');
      parts.push_back(Sequence(begins ? Text("") : Repeat(any_, 0), std::move(match),
                               ends ? Text("") : Repeat(any_, 0)));
    } while (Take('|'));
    if (Peek() == ')') Fail("')' without '('");
    if (!ended()) Fail(kOnlyAtTheEnds);  // behind a '$'
    return ChoiceOf(std::move(parts));
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const override {
    throw InputError(where_, "the pattern, at byte ", at_ + 1, ": ", what);
  }

  Expression ParseGroup(int depth) {
    if (depth > kDeepest) Fail("groups are nested too deeply");
    if (Peek() == '?' && !Take("?:")) SkipName();
    std::vector<Expression> parts;
    do {
      parts.push_back(ParseSequence(depth));
    } while (Take('|'));
    Require(')', "at the end of a group");
    return ChoiceOf(std::move(parts));
  }
  // Skips the name of a group, as in "(?<year>...)".
  void SkipName() {
    if (!Take("?<") || Peek() == '=' || Peek() == '!') {
      Fail("assertions and flags are not supported");
    }
    while (!ended() && Peek() != '>') ++at_;
    Require('>', "after the name of a group");
  }
  // Ends before '|', ')', '$' or the end of the pattern. May be empty.
  Expression ParseSequence(int depth) {
    std::vector<Expression> parts;
    while (!ended() && Peek() != '|' && Peek() != ')' && Peek() != '$') {
      parts.push_back(ParseItem(depth));
      if (TakeRepeat(parts.back())) Take('?');  // lazy repetitions match the same texts
    }
    if (Peek() == '$' && depth > 0) Fail(kOnlyAtTheEnds);
    return SequenceOf(std::move(parts));
  }
  Expression ParseItem(int depth) {
    if (Take('(')) return ParseGroup(depth + 1);
    if (Take('[')) return Written(ParseSet());
    if (Take('.')) {
      return Written(NotIn({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).ranges);
    }
    if (Peek() == '^') Fail(kOnlyAtTheEnds);
    if (std::string_view("*+?{").find(Peek()) != std::string_view::npos) {
      Fail("nothing to repeat");
    }
    if (Peek() == ']' || Peek() == '}') Fail("write '\\' before this character");
    return Written(ParseElement());
  }
  Ranges ParseSet() {
    const bool inverse = Take('^');
    Ranges set;
    while (!Take(']')) {
      if (ended()) Fail("the set of characters does not end");
      Ranges element = ParseElement(/*in_set=*/true);
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const Ranges last = ParseElement(/*in_set=*/true);
        if (!IsCharacter(element) || !IsCharacter(last)) {
          Fail("the ends of a range are not characters");
        }
        if (last[0].low < element[0].low) Fail("a range of characters is reversed");
        element[0].high = last[0].high;
      }
      set.insert(set.end(), element.begin(), element.end());
    }
    return inverse ? NotIn(std::move(set)).ranges : set;
  }
  static bool IsCharacter(const Ranges& set) {
    return set.size() == 1 && set[0].low == set[0].high;
  }
  // A character, or a set such as "\d".
  Ranges ParseElement(bool in_set = false) {
    if (!Take('\\')) {
      const char32_t c = Plain();
      return {{c, c}};
    }
    if (ended()) Fail("expected a character after '\\'");
    if (auto set = ClassOf(Peek())) {
      ++at_;
      return *set;
    }
    const char32_t c = Escaped(in_set);
    return {{c, c}};
  }
  // The character behind a backslash.
  char32_t Escaped(bool in_set) {
    static const std::pair<char, char32_t> letters[] = {
        {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}};
    for (const auto& [letter, code] : letters) {
      if (Take(letter)) return code;
    }
    if (in_set && Take('b')) return '\b';
    if (Take('x')) return Hex(2);
    if (Take("u{")) {
      size_t digits = 0;
      while (at_ + digits < text_.size() && text_[at_ + digits] != '}') ++digits;
      const char32_t code = Hex(static_cast<int>(std::clamp<size_t>(digits, 1, 7)));
      Require('}', "after the number of a character");
      return code;
    }
    if (Take('u')) return Hex(4);
    const char c = Peek();
    if (static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
        (c >= 'A' && c <= 'Z')) {
      Fail("the escape sequence " + Quote(std::string("\\") + c) + " is not supported");
    }
    ++at_;
    return static_cast<char32_t>(c);
  }

  const Expression& any_;
  const std::string& where_;
};

}  // namespace

Expression StringsMatching(const std::string& pattern, const Expression& any,
                           const std::string& where) {
  return PatternParser(pattern, any, where).Parse();
}

}  // namespace linnet::grammar
