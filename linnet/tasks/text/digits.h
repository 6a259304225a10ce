// Grammars of numbers within limits.
#ifndef LINNET_TASKS_TEXT_DIGITS_H_
#define LINNET_TASKS_TEXT_DIGITS_H_

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

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_DIGITS_H_
