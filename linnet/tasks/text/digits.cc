#include "linnet/tasks/text/digits.h"

#include <algorithm>
#include <string>
#include <utility>

namespace linnet::grammar {
namespace {

Expression Digit(char low, char high) {
  return Set({{static_cast<char32_t>(low), static_cast<char32_t>(high)}});
}

// The digit strings between `low` and `high`, which have equal lengths.
Expression Between(const std::string& low, const std::string& high) {
  if (low.empty()) return Text("");
  const size_t rest = low.size() - 1;
  const std::string zeros(rest, '0'), nines(rest, '9');
  if (low[0] == high[0]) {
    return Sequence(Text(low.substr(0, 1)), Between(low.substr(1), high.substr(1)));
  }
  std::vector<Expression> parts;
  char begin = low[0], end = high[0];
  if (low.substr(1) != zeros) {
    parts.push_back(Sequence(Text(std::string(1, begin++)), Between(low.substr(1), nines)));
  }
  if (high.substr(1) != nines) {
    parts.push_back(Sequence(Text(std::string(1, end--)), Between(zeros, high.substr(1))));
  }
  if (begin <= end) {
    parts.push_back(Sequence(Digit(begin, end), Repeat(Digit('0', '9'), rest, rest)));
  }
  return ChoiceOf(std::move(parts));
}

// The integers low to high, 0 <= low <= high, without leading zeros.
void AppendWhole(int64_t low, int64_t high, std::vector<Expression>& parts) {
  // The integers that have as many digits as `low`, then those that have one digit more, ...
  while (low <= high) {
    const std::string first = std::to_string(low);
    const int64_t last = std::stoll(std::string(first.size(), '9'));
    parts.push_back(Between(first, std::to_string(std::min(high, last))));
    low = last + 1;
  }
}

}  // namespace

Expression DigitsBetween(int64_t low, int64_t high, size_t width) {
  const auto padded = [&](int64_t value) {
    const std::string text = std::to_string(value);
    return std::string(width - std::min(width, text.size()), '0') + text;
  };
  return Between(padded(low), padded(high));
}

Expression IntegersBetween(int64_t low, int64_t high) {
  std::vector<Expression> parts, negative;
  if (low < 0) AppendWhole(std::max<int64_t>(1, -high), -low, negative);
  if (!negative.empty()) parts.push_back(Sequence(Text("-"), ChoiceOf(std::move(negative))));
  if (high >= 0) AppendWhole(std::max<int64_t>(0, low), high, parts);
  return ChoiceOf(std::move(parts));
}

}  // namespace linnet::grammar
