// Simplified forms of traditional Chinese characters.
//
//   SimplifiedOf(U'漢')      // U'汉'
//   SimplifiedOf(U'海')      // nullopt: the same in both
#ifndef LINNET_TASKS_COUPLET_TRADITIONAL_H_
#define LINNET_TASKS_COUPLET_TRADITIONAL_H_

#include <cstddef>
#include <optional>

namespace linnet {

// nullopt for a character without another simplified form. Of several forms, the most common one.
std::optional<char32_t> SimplifiedOf(char32_t traditional);

// Size of the table.
size_t TraditionalCharacters();

}  // namespace linnet

#endif  // LINNET_TASKS_COUPLET_TRADITIONAL_H_
