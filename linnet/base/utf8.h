// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
//
//   for (size_t at = 0; at < text.size();) {
//     const std::optional<CodePoint> next = NextCodePoint(text, at);
//     if (!next) ...                       // invalid UTF-8 at `at`
//     at += next->bytes;
//   }
#ifndef LINNET_BASE_UTF8_H_
#define LINNET_BASE_UTF8_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace linnet {

struct CodePoint {
  char32_t value;
  size_t bytes;  // encoded size
};

// The code point that begins at text[at]; nullopt if it is incomplete or invalid. `at` must be less
// than text.size().
std::optional<CodePoint> NextCodePoint(std::string_view text, size_t at);

// The code points of a text, with U+FFFD for each byte of invalid UTF-8.
std::u32string CodePoints(std::string_view text);

// Appends the code point `value`, which must not be a surrogate or above U+10FFFF.
void AppendUtf8(char32_t value, std::string& text);

// Whether a text is safe to show on a terminal and in a web page: valid UTF-8, without control
// characters and without bidirectional formatting characters.
bool IsPrintable(std::string_view text);

// The text with '?' in place of each byte of invalid UTF-8 and each character that is not printable
// (IsPrintable()).
std::string Printable(std::string_view text);

}  // namespace linnet

#endif  // LINNET_BASE_UTF8_H_
