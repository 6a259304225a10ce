// Grammars of numbers within limits.
#ifndef LINNET_TASKS_TEXT_DIGITS_H_
#define LINNET_TASKS_TEXT_DIGITS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

constexpr size_t kMostDigits = 15;  // so that a double holds every integer
constexpr int64_t kMostInteger = 999'999'999'999'999;

// The numbers low to high, 0 <= low <= high, with leading zeros to `width` digits.
Expression DigitsBetween(int64_t low, int64_t high, size_t width);
// The integers low to high, low <= high, both within +-kMostInteger.
Expression IntegersBetween(int64_t low, int64_t high);

// Limits of numbers. -INFINITY, INFINITY: none.
struct NumberLimits {
  double low = -INFINITY, high = INFINITY;
  bool above = false, below = false;  // the numbers are not `low` or `high` themselves
};
// The numbers within the limits, at least one of which is finite, as decimals without an exponent:
// at most kMostDigits digits before the point, and as many after it as leave kMostDigits together
// with those of the limits before the point. So a double tells each number from the limits. Throws
// InputError if no number lies within them, or if a limit has more digits than that.
Expression NumbersBetween(const NumberLimits& limits);

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_DIGITS_H_
