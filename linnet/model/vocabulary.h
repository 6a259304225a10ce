// What symbols stand for in text: bytes or characters behind a few that are no text.
//
//   Vocabulary characters = Vocabulary::OfText(corpus, /*most=*/8000);
//   std::vector<int32_t> symbols = characters.Encode("海上明月");
//   std::string text = characters.Decode(symbols);
//   spec.part = characters.Save();                        // travels in the model file
//   Vocabulary again(*spec.text());
//
// Symbol 0 ends a text and begins one, 1 stands between its parts, 2 for characters that the vocabulary
// does not have; the others follow: 256 bytes, or characters.
#ifndef LINNET_MODEL_VOCABULARY_H_
#define LINNET_MODEL_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "linnet/model/spec.h"

namespace linnet {

class Vocabulary {
 public:
  static constexpr int32_t kEnd = 0, kSeparator = 1, kUnknown = 2, kFirst = 3;

  // Bytes, without characters, or characters, one behind the other in UTF-8. Throws InputError on what is
  // no UTF-8, and on a character that is there twice.
  explicit Vocabulary(const TextSpec& text);

  static Vocabulary Bytes() { return Vocabulary(TextSpec()); }
  // The characters of a text, the most frequent ones first (of equally frequent ones, the lower code point),
  // `most` at most, and none that is there fewer than `least` times. Throws InputError on what is no UTF-8,
  // naming the place.
  static Vocabulary OfText(std::string_view text, size_t most, size_t least = 1);

  size_t size() const { return kFirst + (bytes() ? 256 : characters_.size()); }
  bool bytes() const { return characters_.empty(); }
  TextSpec Save() const;

  // Throws InputError where characters are wanted and the text is no UTF-8. Of bytes none is unknown.
  std::vector<int32_t> Encode(std::string_view text) const;
  // Symbols that are no text become nothing; unknown ones U+FFFD.
  std::string Decode(std::span<const int32_t> symbols) const;
  // The text of one symbol.
  std::string Decode(int32_t symbol) const { return Decode({&symbol, 1}); }

 private:
  std::vector<char32_t> characters_;
  std::unordered_map<char32_t, int32_t> symbols_;
};

}  // namespace linnet

#endif  // LINNET_MODEL_VOCABULARY_H_
