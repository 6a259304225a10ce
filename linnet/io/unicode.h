// Regular expressions over UTF-8, and Unicode's normal form C.
//
//   Regex words(R"( ?\p{L}+)", "tokenizer.json");
//   words.ForMatches(text, [&](size_t begin, size_t end) { ... });
//   std::string composed = ToNfc("e\u0301");    // "é"
//
// Patterns may come from untrusted files, so a match that takes too long throws. In a build without
// PCRE2 and utf8proc (LINNET_PLAIN), all functions throw InputError.
#ifndef LINNET_IO_UNICODE_H_
#define LINNET_IO_UNICODE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "linnet/base/function_ref.h"

namespace linnet {

// A pattern in the syntax of PCRE2, with Unicode's classes: \p{L}, \s, \w.
class Regex {
 public:
  // Throws InputError, with a message that begins with `where`, if the pattern is invalid or longer
  // than 4096 bytes.
  Regex(const std::string& pattern, const std::string& where);

  // Calls body(begin, end) for each match that is not empty, in order. Matches do not overlap.
  // `text` must be valid UTF-8. Throws InputError if a match takes too many steps.
  void ForMatches(std::string_view text, FunctionRef<void(size_t, size_t)> body) const;

 private:
  std::shared_ptr<const void> code_;
  std::string where_;
};

// The normal form C of `text`, which must be valid UTF-8.
std::string ToNfc(std::string_view text);

}  // namespace linnet

#endif  // LINNET_IO_UNICODE_H_
