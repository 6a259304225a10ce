// Maps text to tokens: bytes, characters or byte pairs.
//
//   Vocabulary characters = Vocabulary::OfText(corpus, /*most=*/8000);
//   std::vector<int32_t> tokens = characters.Encode("海上明月");
//   std::string text = characters.Decode(tokens);
//   spec.part = characters.Save();                        // saved in the model file
//   Vocabulary again(*spec.text());
//
// A vocabulary of bytes or characters starts with three special tokens: 0 begins and ends a text, 1
// separates its parts, 2 stands for characters outside the vocabulary. The 256 bytes or the
// characters follow. A byte-pair vocabulary has the tokens of its tokenizer.json.
#ifndef LINNET_VOCABULARY_H_
#define LINNET_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "linnet/export.h"
#include "linnet/spec.h"

namespace linnet {

struct SortedTokens;
class Tokenizer;

class LINNET_API Vocabulary {
 public:
  // Special tokens of byte and character vocabularies, and the first token after them.
  static constexpr int32_t kEnd = 0, kSeparator = 1, kUnknown = 2, kFirst = 3;

  // The vocabulary that text.unit selects: all bytes, text.characters or text.tokenizer. Throws
  // InputError on invalid UTF-8, a repeated character or an unsupported tokenizer, and if
  // text.characters or text.tokenizer is missing for this unit or given for another.
  explicit Vocabulary(const TextSpec& text);

  static Vocabulary Bytes() { return Vocabulary(TextSpec()); }
  // The characters of a text, most frequent first (ties: lower code point first): at most `most`,
  // and only those with at least `least` occurrences. Throws InputError if no character is left,
  // and on invalid UTF-8, whose offset the message names.
  static Vocabulary OfText(std::string_view text, size_t most, size_t least = 1);

  // A byte-pair vocabulary from a tokenizer.json of the tokenizers library. `end` is the token that
  // ends a text; -1: the first of </s>, <|endoftext|>, <|end_of_text|> and <eos>. Throws
  // InputError, with a message that begins with `where`, if the tokenizer is of another kind, uses
  // a feature that linnet does not support, or has no token that ends a text.
  static Vocabulary OfTokenizer(const std::string& json, int32_t end, const std::string& where);

  size_t size() const;
  TextUnit unit() const { return unit_; }
  TextSpec Save() const;

  // The tokens that a model reads before a text, at least one.
  const std::vector<int32_t>& begin() const { return begin_; }
  int32_t end() const { return end_; }
  // Tokens that are never sampled: the separator and the unknown token; none for byte pairs.
  std::span<const int32_t> unwritten() const;
  // The number of tokens that stand for characters outside the vocabulary.
  size_t CountUnknown(std::span<const int32_t> tokens) const;

  // Throws InputError on invalid UTF-8, unless the vocabulary is of bytes: it has every byte.
  std::vector<int32_t> Encode(std::string_view text) const;
  // kUnknown decodes to U+FFFD. Other special tokens, and numbers outside the vocabulary, are
  // skipped.
  std::string Decode(std::span<const int32_t> tokens) const;
  // The text of one token that is not at the beginning of a text. (At the beginning, byte-pair
  // vocabularies may drop a space.)
  std::string Decode(int32_t token) const;
  // A printable name of the token: its text, or "<|end|>", "bytes:\xe6" and the like.
  std::string Name(int32_t token) const;
  // The tokens in the order of their text (linnet/model/sorted_tokens.h). Sorts them once, for all
  // copies of this vocabulary.
  const SortedTokens& sorted() const;

 private:
  struct Sorted;

  TextUnit unit_;
  std::vector<int32_t> begin_ = {kEnd};
  int32_t end_ = kEnd;
  std::vector<char32_t> characters_;              // characters_[i] is token kFirst + i
  std::unordered_map<char32_t, int32_t> tokens_;  // the token of each character
  std::string json_;                              // the tokenizer.json of a byte-pair vocabulary
  std::shared_ptr<const Tokenizer> tokenizer_;    // made from json_
  std::shared_ptr<Sorted> sorted_;
};

}  // namespace linnet

#endif  // LINNET_VOCABULARY_H_
