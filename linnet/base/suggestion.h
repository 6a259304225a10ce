// Suggests the right name for a mistyped one.
//
//   throw InputError("unknown field '", given, "'", Suggestion(given, names));
//
//   unknown field 'max_token'; did you mean 'max_tokens'?
#ifndef LINNET_BASE_SUGGESTION_H_
#define LINNET_BASE_SUGGESTION_H_

#include <string>
#include <string_view>
#include <vector>

namespace linnet {

// Returns "; did you mean 'NAME'?" for the name that is the fewest edits away from `given`, or for
// the first of several such names. An edit inserts, deletes or replaces a byte, or swaps two
// neighboring bytes. Returns "" if every name is more than max(2, given.size() / 3) edits away.
// `given` may have any length.
std::string Suggestion(std::string_view given, const std::vector<std::string>& names);

}  // namespace linnet

#endif  // LINNET_BASE_SUGGESTION_H_
