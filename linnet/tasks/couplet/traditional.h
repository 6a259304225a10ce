// Simplified forms of traditional Chinese characters.
//
//   SimplifiedOf(U'漢')      // U'汉'
//   SimplifiedOf(U'海')      // nullopt: the simplified form is the same character
#ifndef LINNET_TASKS_COUPLET_TRADITIONAL_H_
#define LINNET_TASKS_COUPLET_TRADITIONAL_H_

#include <cstddef>
#include <optional>

namespace linnet {

// The simplified form of a character, the most common one if there are several; nullopt if no
// simplified form differs from the character.
std::optional<char32_t> SimplifiedOf(char32_t traditional);

// Number of characters for which SimplifiedOf() returns a form.
size_t TraditionalCharacters();

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_TRADITIONAL_H_
