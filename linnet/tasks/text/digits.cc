#include "linnet/tasks/text/digits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "linnet/error.h"

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

int64_t PowerOfTen(size_t exponent) {
  int64_t power = 1;
  for (size_t i = 0; i < exponent; ++i) power *= 10;
  return power;
}

// whole + fraction / 10^places, fraction < 10^places.
struct Decimal {
  int64_t whole = 0, fraction = 0;
  size_t places = 0;

  bool operator==(const Decimal&) const = default;
  // Compares with a decimal of the same places.
  bool operator<(const Decimal& other) const {
    return std::tie(whole, fraction) < std::tie(other.whole, other.fraction);
  }
  Decimal Next() const {
    const bool carry = fraction + 1 == PowerOfTen(places);
    return {whole + (carry ? 1 : 0), carry ? 0 : fraction + 1, places};
  }
  Decimal Before() const {
    const bool borrow = fraction == 0;
    return {whole - (borrow ? 1 : 0), borrow ? PowerOfTen(places) - 1 : fraction - 1, places};
  }
  // With more places, the same number. With fewer, the largest one that is not above it.
  Decimal With(size_t other) const {
    if (other >= places) return {whole, fraction * PowerOfTen(other - places), other};
    return {whole, fraction / PowerOfTen(places - other), other};
  }
};

// The decimal with the fewest places, at most kMostDigits, that is read as `value`, which is below
// 10^kMostDigits.
Decimal DecimalOf(double value) {
  for (size_t places = 0; places <= kMostDigits; ++places) {
    char text[48];
    std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(places), value);
    if (std::strtod(text, nullptr) != value) continue;
    const std::string digits = text;
    const size_t point = std::min(digits.find('.'), digits.size());
    return {std::stoll(digits.substr(0, point)),
            places == 0 ? 0 : std::stoll(digits.substr(point + 1)), places};
  }
  throw InputError("the limit ", value, " has more than ", kMostDigits, " digits after the point");
}

// Numbers that are not negative, between two decimals of the same places. above, below: as in
// NumberLimits. high.whole may be 10^kMostDigits if `below`.
struct Magnitudes {
  Decimal low, high;
  bool above = false, below = false;
  size_t most = 0;  // digits after the point

  Expression Numbers() const {
    std::vector<Expression> parts;
    const size_t places = low.places;
    for (size_t p = 0; p <= places; ++p) AppendWithPlaces(p, parts);
    if (places < most) {
      // Numbers with more places: those of `places` places, and digits after them. These are zeros
      // after `high`, and not all zeros after `low` if that is excluded.
      const Expression point = Text(places == 0 ? "." : "");
      const Expression more = Repeat(Digit('0', '9'), 1, most - places);
      std::vector<Expression> begin;
      AppendBetween(above ? low.Next() : low, high.Before(), begin);
      if (!begin.empty()) parts.push_back(Sequence(ChoiceOf(std::move(begin)), point, more));
      const auto at = [&](const Decimal& limit, Expression rest) {
        std::vector<Expression> number;
        AppendBetween(limit, limit, number);
        parts.push_back(Sequence(ChoiceOf(std::move(number)), point, std::move(rest)));
      };
      if (above && low < high) at(low, NotZeros(most - places));
      if (!below) at(high, Repeat(Text("0"), 1, most - places));
    }
    return ChoiceOf(std::move(parts));
  }

 private:
  // 1 to `most` digits, not all of them zeros.
  static Expression NotZeros(size_t most) {
    Expression rest = Sequence(Digit('1', '9'), Repeat(Digit('0', '9'), 0, most - 1));
    return most == 1 ? rest : Choice(std::move(rest), Sequence(Text("0"), NotZeros(most - 1)));
  }
  // The numbers with this many places, at most those of the limits.
  void AppendWithPlaces(size_t places, std::vector<Expression>& parts) const {
    const Decimal from = low.With(places), to = high.With(places);
    const bool skips = above || from.With(low.places) != low;
    const bool stops = below && to.With(high.places) == high;
    AppendBetween(skips ? from.Next() : from, stops ? to.Before() : to, parts);
  }
  // The numbers from..to with their places; none if from > to.
  static void AppendBetween(const Decimal& from, const Decimal& to,
                            std::vector<Expression>& parts) {
    if (to < from) return;
    if (from.places == 0) return AppendWhole(from.whole, to.whole, parts);
    const auto append = [&](int64_t low, int64_t high, int64_t first, int64_t last) {
      std::vector<Expression> whole;
      AppendWhole(low, high, whole);
      parts.push_back(
          Sequence(ChoiceOf(std::move(whole)), Text("."), DigitsBetween(first, last, from.places)));
    };
    const int64_t last = PowerOfTen(from.places) - 1;
    if (from.whole == to.whole) return append(from.whole, to.whole, from.fraction, to.fraction);
    append(from.whole, from.whole, from.fraction, last);
    if (from.whole + 1 < to.whole) append(from.whole + 1, to.whole - 1, 0, last);
    append(to.whole, to.whole, 0, to.fraction);
  }
};

}  // namespace

Expression NumbersBetween(const NumberLimits& limits) {
  const double beyond = std::pow(10, kMostDigits);  // exact
  if (!(limits.low < beyond && limits.high > -beyond) || limits.low > limits.high ||
      (limits.low == limits.high && (limits.above || limits.below))) {
    throw InputError("no number of at most ", kMostDigits, " digits lies between these limits");
  }
  size_t before = 0, places = 0;  // the limits' digits before and after the point
  for (const double limit : {limits.low, limits.high}) {
    if (std::abs(limit) >= beyond) continue;
    const Decimal decimal = DecimalOf(std::abs(limit));
    if (decimal.whole > 0) before = std::max(before, std::to_string(decimal.whole).size());
    places = std::max(places, decimal.places);
  }
  if (before + places > kMostDigits) {
    throw InputError("limits with more than ", kMostDigits, " digits are not supported");
  }
  // The magnitudes from `low` to `high`, with the sign before them.
  const auto magnitudes = [&](double low, bool above, double high, bool below) {
    const bool open = high >= beyond;
    const Decimal most = open ? Decimal{PowerOfTen(kMostDigits)} : DecimalOf(high);
    return Magnitudes{DecimalOf(low).With(places), most.With(places), above, below || open,
                      kMostDigits - before}
        .Numbers();
  };
  std::vector<Expression> parts;
  if (limits.high > 0 || (limits.high == 0 && !limits.below)) {
    const bool positive = limits.low >= 0;
    parts.push_back(
        magnitudes(positive ? limits.low : 0, positive && limits.above, limits.high, limits.below));
  }
  if (limits.low < 0) {
    const bool negative = limits.high <= 0;
    parts.push_back(
        Sequence(Text("-"), magnitudes(negative ? -limits.high : 0, negative && limits.below,
                                       -limits.low, limits.above)));
  }
  return ChoiceOf(std::move(parts));
}

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
