// Regular expressions in JSON schemas (docs/structured-output.md).
#ifndef LINNET_TASKS_TEXT_PATTERN_H_
#define LINNET_TASKS_TEXT_PATTERN_H_

#include <string>

#include "linnet/tasks/text/grammar_rules.h"

namespace linnet::grammar {

// The contents of JSON strings that match a regular expression of ECMAScript, as JSON has them
// between the quotes. Each character is written in one way: as itself if possible, else by its
// short escape sequence; control characters without one are left out. `any` is any character of a
// JSON string. Throws InputError, beginning with `where`, if the pattern is invalid or has parts
// that are not supported: assertions other than '^' and '$' around a whole alternative,
// back references, and Unicode's properties.
Expression StringsMatching(const std::string& pattern, const Expression& any,
                           const std::string& where);

}  // namespace linnet::grammar

#endif  // LINNET_TASKS_TEXT_PATTERN_H_
