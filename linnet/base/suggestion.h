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

// "; did you mean 'NAME'?" for the name that is the fewest edits away from `given`: insertions,
// deletions, replacements and swaps of neighboring bytes; the first of equally near names. "" if
// every name is more than max(2, a third of the length of `given`) edits away. `given` may have any
// length.
std::string Suggestion(std::string_view given, const std::vector<std::string>& names);

}  // namespace linnet

#endif  // LINNET_BASE_SUGGESTION_H_
