#include "linnet/tasks/couplet/rules.h"

#include <algorithm>

#include "linnet/base/utf8.h"

namespace linnet {

bool IsPunctuation(char32_t c) {
  const auto in = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  return in(0x21, 0x2f) || in(0x3a, 0x40) || in(0x5b, 0x60) || in(0x7b, 0x7e) || c == 0xb7 ||
         in(0x2010, 0x2027) || in(0x3001, 0x3003) || in(0x3008, 0x3011) || in(0x3014, 0x301f) ||
         in(0xff01, 0xff0f) || in(0xff1a, 0xff20) || in(0xff3b, 0xff40) || in(0xff5b, 0xff65);
}

CoupletRules KeptRules(const std::string& first, const std::string& second) {
  const std::u32string a = CodePoints(first), b = CodePoints(second);
  CoupletRules kept{.length = a.size() == b.size()};
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const char32_t x = i < a.size() ? a[i] : 0, y = i < b.size() ? b[i] : 0;
    const bool mark = IsPunctuation(x);
    if (mark ? x != y : IsPunctuation(y)) kept.punctuation = false;
    if (!mark && x == y) kept.places = false;
    for (size_t j = 0; j < i && i < b.size(); ++j) {
      if (mark || IsPunctuation(y) || IsPunctuation(b[j])) continue;
      const bool repeated = i < a.size() && a[j] == x;
      if (b[j] == y && !repeated) kept.repeats = false;
      if (repeated && b[j] != y) kept.mirrored = false;
    }
  }
  return kept;
}

}  // namespace linnet
