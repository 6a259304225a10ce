// The common part of parsers of notations for sets of texts (grammar_notation.cc, pattern.cc).
#ifndef LINNET_TASKS_TEXT_SCANNER_H_
#define LINNET_TASKS_TEXT_SCANNER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

class Scanner {
 protected:
  static constexpr int kDeepest = 64;             // maximum nesting of groups and of repetitions
  static constexpr size_t kMostRepeats = 10'000;  // in x{N}

  explicit Scanner(std::string_view text) : text_(text) {}
  virtual ~Scanner() = default;

  // Throws InputError that names the place at_.
  [[noreturn]] virtual void Fail(const std::string& what) const = 0;

  bool ended() const { return at_ == text_.size(); }
  char Peek() const { return ended() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (ended() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Take(std::string_view text) {
    if (text_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void Require(char c, const char* where) {
    if (!Take(c)) Fail(StrCat("expected '", c, "' ", where));
  }
  // Reads the '*', '+', '?' or {...} behind an item. Returns whether there was one.
  bool TakeRepeat(Expression& part) {
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
      return false;
    }
    return true;
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
  // Reads a character that is not an escape sequence.
  char32_t Plain() {
    const auto next = NextCodePoint(text_, at_);
    if (!next) Fail("not UTF-8");
    at_ += next->bytes;
    return next->value;
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

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_SCANNER_H_
