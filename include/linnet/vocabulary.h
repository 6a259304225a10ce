// Maps text to tokens: bytes or characters after a few special tokens.
//
//   Vocabulary characters = Vocabulary::OfText(corpus, /*most=*/8000);
//   std::vector<int32_t> tokens = characters.Encode("海上明月");
//   std::string text = characters.Decode(tokens);
//   spec.part = characters.Save();                        // saved in the model file
//   Vocabulary again(*spec.text());
//
// Token 0 begins and ends a text, 1 separates its parts, 2 stands for characters outside the
// vocabulary. The 256 bytes or the characters follow.
#ifndef LINNET_VOCABULARY_H_
#define LINNET_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "linnet/export.h"
#include "linnet/spec.h"

namespace linnet {

class LINNET_API Vocabulary {
 public:
  static constexpr int32_t kEnd = 0, kSeparator = 1, kUnknown = 2, kFirst = 3;

  // The byte vocabulary, or the vocabulary of text.characters. Throws InputError on invalid UTF-8,
  // on a repeated character, on characters for a byte vocabulary, and on a character vocabulary
  // without characters.
  explicit Vocabulary(const TextSpec& text);

  static Vocabulary Bytes() { return Vocabulary(TextSpec()); }
  // The characters of a text, most frequent first (ties: lower code point first): at most `most`,
  // and only those with at least `least` occurrences. Throws InputError if none is left, and on
  // invalid UTF-8, naming its offset.
  static Vocabulary OfText(std::string_view text, size_t most, size_t least = 1);

  size_t size() const { return kFirst + (bytes() ? 256 : characters_.size()); }
  bool bytes() const { return characters_.empty(); }
  TextSpec Save() const;

  // Throws InputError on invalid UTF-8 in a character vocabulary. Bytes are never unknown.
  std::vector<int32_t> Encode(std::string_view text) const;
  // kUnknown decodes to U+FFFD; kEnd, kSeparator and numbers outside the vocabulary to nothing.
  std::string Decode(std::span<const int32_t> tokens) const;
  // The text of one token.
  std::string Decode(int32_t token) const { return Decode({&token, 1}); }

 private:
  std::vector<char32_t> characters_;
  std::unordered_map<char32_t, int32_t> tokens_;
};

}  // namespace linnet

#endif  // LINNET_VOCABULARY_H_
