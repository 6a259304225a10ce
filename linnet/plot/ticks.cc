#include "linnet/plot/ticks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "linnet/error.h"

namespace linnet::plot {
namespace {

constexpr double kLargest = 1e100, kSmallest = 1e-100;
// A range narrower than this fraction of max(|low|, |high|) is treated as a point.
constexpr double kLeastSpan = 1e-9;
// Because of rounding, ticks may lie outside by this fraction of a step (log: of the range's end).
constexpr double kSlack = 1e-6;
// Beyond these bounds labels use powers of ten, as in "10⁻⁴".
constexpr double kSmallPlain = 0.9e-3, kLargePlain = 0.9e15;

// Formats with a real minus sign: "−1.50". Values that round to zero have no sign: "0.00".
std::string Fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, std::abs(value));
  const bool zero = std::string(text).find_first_not_of("0.") == std::string::npos;
  return (value < 0 && !zero ? "−" : "") + std::string(text);
}

// Removes trailing zeros: "1.5" for "1.50", "2" for "2.0".
std::string WithoutZeros(std::string number) {
  if (number.find('.') == std::string::npos) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

std::string PowerOfTen(int exponent) {
  static const char* const kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = exponent < 0 ? "10⁻" : "10";
  for (char digit : std::to_string(std::abs(exponent))) text += kDigits[digit - '0'];
  return text;
}

struct Prefix {
  double scale;
  const char* letter;
};

// Returns the unit prefix for numbers of this size: 10k instead of 10000.
Prefix PrefixFor(double size) {
  for (const Prefix prefix : {Prefix{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}}) {
    if (size < 0.9999999e3 * prefix.scale) return prefix;
  }
  return {1e12, "T"};
}

// m * 10^exponent, correctly rounded for the small exponents of most axes.
double Scaled(double m, int exponent) {
  return exponent < 0 ? m / std::pow(10, -exponent) : m * std::pow(10, exponent);
}

std::vector<Tick> LinearTicks(Range range, size_t most) {
  const double span = range.high - range.low;
  int exponent = static_cast<int>(std::floor(std::log10(span))) - 4;
  int m = 1;  // tries steps m * 10^exponent with m = 1, 2, 5; the first is too small
  double step = 0, first = 0, last = 0;
  while (true) {
    step = Scaled(m, exponent);
    first = std::ceil(range.low / step - kSlack);
    last = std::floor(range.high / step + kSlack);
    if (last - first + 1 <= static_cast<double>(most)) break;
    m = m == 1 ? 2 : m == 2 ? 5 : 1;
    exponent += m == 1;
  }

  const double size = std::max(std::abs(first), std::abs(last)) * step;
  const bool powers = size > 0 && (size < kSmallPlain || size >= kLargePlain);
  const bool prefixes = !powers && size > 0.9999999e4;
  // One power of ten for the whole axis, so that its numbers are easy to compare.
  const int power = powers ? static_cast<int>(std::floor(std::log10(size) + 1e-9)) : 0;
  const int decimals = std::clamp(power - exponent, 0, 20);
  std::vector<Tick> ticks;
  for (double i = first; i <= last; ++i) {
    const double value = Scaled(i * m, exponent);
    std::string label = "0";
    if (i != 0 && prefixes) {
      const Prefix prefix = PrefixFor(std::abs(value));
      const int digits = static_cast<int>(std::lround(std::log10(prefix.scale))) - exponent;
      label = WithoutZeros(Fixed(value / prefix.scale, std::clamp(digits, 0, 20))) + prefix.letter;
    } else if (i != 0) {
      label = Fixed(value / Scaled(1, power), decimals) + (powers ? "·" + PowerOfTen(power) : "");
    }
    ticks.push_back({value, std::move(label)});
  }
  return ticks;
}

std::string LogLabel(int m, int exponent, bool powers) {
  if (powers) return (m == 1 ? "" : StrCat(m, "·")) + PowerOfTen(exponent);
  const double value = Scaled(m, exponent);
  const Prefix prefix = PrefixFor(value);
  return Fixed(value / prefix.scale, std::max(0, -exponent)) + prefix.letter;
}

std::vector<Tick> LogTicks(Range range, size_t most) {
  const int low = static_cast<int>(std::floor(std::log10(range.low))) - 1;
  const int high = static_cast<int>(std::ceil(std::log10(range.high))) + 1;
  const auto visit = [&](auto&& tick) {
    for (int exponent = low; exponent <= high; ++exponent) {
      for (int m = 1; m <= 9; ++m) {
        const double value = Scaled(m, exponent);
        if (value >= range.low * (1 - kSlack) && value <= range.high * (1 + kSlack)) {
          tick(m, exponent, value);
        }
      }
    }
  };
  const auto is_125 = [](int m) { return m == 1 || m == 2 || m == 5; };
  size_t fine = 0, decades = 0;  // numbers of ticks at 1, 2 or 5 * 10^n, and at 10^n
  visit([&](int m, int, double) {
    fine += is_125(m);
    decades += m == 1;
  });
  if (fine < 3) return LinearTicks(range, most);

  const bool label_125 = fine <= most;
  int every = 1;  // decades per label
  for (int next : {2, 3, 5, 10, 20, 50, 100, 200}) {
    if (decades <= most * static_cast<size_t>(every)) break;
    every = next;
  }
  const bool powers = range.low < kSmallPlain || range.high >= kLargePlain;
  std::vector<Tick> ticks;
  visit([&](int m, int exponent, double value) {
    const bool labelled = label_125 ? is_125(m) : m == 1 && exponent % every == 0;
    if (!labelled && every > 1 && m != 1) return;
    ticks.push_back({value, labelled ? LogLabel(m, exponent, powers) : ""});
  });
  return ticks;
}

}  // namespace

double Showable(double value, bool log) {
  if (!(std::abs(value) <= kLargest)) return std::nan("");
  if (log) return value >= kSmallest ? value : std::nan("");
  return std::abs(value) < kSmallest ? 0 : value;
}

Range FitRange(Range data, bool log) {
  constexpr double kPadding = 0.04;
  double low = log ? std::log10(data.low) : data.low;
  double high = log ? std::log10(data.high) : data.high;
  const double size = std::max(std::abs(low), std::abs(high));
  const double span = high - low;
  if (span <= (log ? 0.02 : kLeastSpan * size)) {
    const double room = log ? 0.2 : size > 0 ? 0.05 * size : 1;
    low -= room;
    high += room;
  } else {
    low -= kPadding * span;
    high += kPadding * span;
  }
  if (!log && data.low >= 0) low = std::max(low, 0.0);
  if (!log && data.high <= 0) high = std::min(high, 0.0);
  Range range = log ? Range{std::pow(10, low), std::pow(10, high)} : Range{low, high};
  // Rounding may have left an empty range.
  if (const double end = std::max(std::abs(range.low), std::abs(range.high));
      range.high - range.low <= kLeastSpan * end) {
    range.low = log ? 0.1 * range.high : range.high - std::max(end, 1e9 * kSmallest);
  }
  return range;
}

std::vector<Tick> Ticks(Range range, bool log, size_t most) {
  most = std::max(most, size_t{2});
  return log ? LogTicks(range, most) : LinearTicks(range, most);
}

}  // namespace linnet::plot
