#include "linnet/base/units.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "linnet/error.h"

namespace linnet {
namespace {

std::string Printf(const char* format, double a) {
  char text[64];
  std::snprintf(text, sizeof(text), format, a);
  return text;
}

std::string TwoUnits(int64_t high, const char* high_unit, int64_t low, const char* low_unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%lld%s%02lld%s", static_cast<long long>(high), high_unit,
                static_cast<long long>(low), low_unit);
  return text;
}

std::string WithPrefix(double value, const char* separator) {
  static const char* const kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  int prefix = 0;
  while (std::abs(value) >= 999.5 && prefix < 5) {
    value /= 1000;
    ++prefix;
  }
  const double magnitude = std::abs(value);
  const bool whole = prefix == 0 && value == std::floor(value);
  const char* format = whole || magnitude >= 99.95 ? "%.0f" : magnitude >= 9.995 ? "%.1f" : "%.2f";
  return Printf(format, value) + separator + kPrefixes[prefix];
}

}  // namespace

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return Printf("%.1fs", seconds);
  const int64_t s = std::llround(seconds);
  if (s < 60) return StrCat(s, "s");
  if (s < 3600) return TwoUnits(s / 60, "m", s % 60, "s");
  if (s < 86400) return TwoUnits(s / 3600, "h", s % 3600 / 60, "m");
  return TwoUnits(s / 86400, "d", s % 86400 / 3600, "h");
}

std::string FormatCount(double count) { return WithPrefix(count, ""); }

std::string FormatBytes(double bytes) { return WithPrefix(bytes, " ") + "B"; }

double ParseSeconds(const std::string& text) {
  // Accepts digits with an optional fraction (90, 1.5). std::strtod() would accept other forms too.
  const auto digits_end = [&](size_t begin) {
    return std::min(text.find_first_not_of("0123456789", begin), text.size());
  };
  size_t used = digits_end(0);
  if (used > 0 && used < text.size() && text[used] == '.') {
    const size_t end = digits_end(used + 1);
    used = end > used + 1 ? end : 0;
  }
  const std::string unit = text.substr(used);
  const double scale = unit.empty() || unit == "s" ? 1
                       : unit == "m"               ? 60
                       : unit == "h"               ? 3600
                       : unit == "d"               ? 86400
                                                   : -1;
  const double seconds = scale * std::strtod(text.substr(0, used).c_str(), nullptr);
  if (used == 0 || scale < 0 || !std::isfinite(seconds)) {
    throw InputError("'", text, "' is not a duration; write e.g. 90, 90s, 15m or 2h");
  }
  return seconds;
}

}  // namespace linnet
