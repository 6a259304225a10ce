// A byte-pair vocabulary in the format of the tokenizers library (tokenizer.json): GPT-2's,
// GPT-NeoX's, Llama's and others'.
//
//   Tokenizer tokenizer(ReadFile("tokenizer.json"), "tokenizer.json");
//   std::vector<int32_t> ids = tokenizer.Encode("Hello world");
//   std::string text = tokenizer.Decode(ids);
//
// Supported: models of type BPE; the normalizers NFC, Prepend, Replace and Sequence; the
// pre-tokenizers ByteLevel, Split, Digits, Metaspace and Sequence; the decoders ByteLevel, Replace,
// ByteFallback, Fuse, Strip, Metaspace and Sequence; templates that put tokens before a text.
// For any other part, the constructor throws an error that names the part. Padding and truncation
// are ignored.
#ifndef LINNET_MODEL_TOKENIZER_H_
#define LINNET_MODEL_TOKENIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "linnet/model/byte_pairs.h"

namespace linnet {

class Tokenizer {
 public:
  // Throws InputError, with a message that begins with `where`, if the JSON is not a tokenizer.json
  // or has unsupported parts.
  Tokenizer(const std::string& json, const std::string& where);
  // Like the constructor, but keeps the last tokenizer for calls with the same JSON: a large
  // vocabulary takes most of a second to read.
  static std::shared_ptr<const Tokenizer> Of(const std::string& json, const std::string& where);

  size_t size() const { return pieces_.size(); }  // the largest token id plus 1
  // The special tokens that begin a text.
  const std::vector<int32_t>& begin() const { return begin_; }
  // The token that ends a text: the one that With() has set, or the first special token with a
  // common name ("</s>", ...).
  std::optional<int32_t> end() const { return end_; }
  // The special token with that text.
  std::optional<int32_t> Special(const std::string& text) const;

  // The tokens of a text, without begin(). Where the text contains the spelling of an added token,
  // such as "</s>", this token results. Throws InputError on invalid UTF-8.
  std::vector<int32_t> Encode(std::string_view text) const;
  // Special tokens and numbers outside the vocabulary decode to nothing.
  std::string Decode(std::span<const int32_t> tokens) const;
  // The bytes of a token that is not at the beginning of a text.
  const std::string& Piece(int32_t token) const;
  // The token as it is written in the vocabulary.
  const std::string& Name(int32_t token) const;

  // Returns JSON for Tokenizer(): the parts of `json` that this class reads, and `end`, the token
  // that ends a text (-1: not known).
  static std::string With(const std::string& json, int32_t end, const std::string& where);

 private:
  class Reader;
  // A piece of text without added tokens, as the pre-tokenizers split it.
  struct Word {
    std::string text;
    bool first = false;  // begins the text
  };
  struct AddedToken {
    std::string text;
    int32_t id;
    // left_strip, right_strip: the token includes the white space on this side. normalized:
    // Encode() searches for the token in the normalized text instead of the given text.
    bool left_strip, right_strip, normalized, special;
  };
  using Words = std::vector<Word>;
  // An added token, or the text between two of them.
  struct Segment {
    std::string_view text;
    int32_t token = -1;  // an added token, or -1: text
  };

  std::vector<Segment> Cut(std::string_view text, bool normalized) const;
  void AppendWords(std::string_view text, bool first, std::vector<int32_t>& ids) const;
  std::string Normalized(std::string_view text) const;

  std::unique_ptr<BytePairs> pairs_;
  std::vector<AddedToken> added_;         // longest first
  std::array<bool, 256> begins_[2] = {};  // [normalized][byte]: byte begins an added token
  std::vector<std::function<std::string(std::string)>> normalizers_;
  std::vector<std::function<Words(Words)>> splitters_;  // the pre-tokenizers
  std::vector<int32_t> begin_;
  std::optional<int32_t> end_;
  size_t strip_ = 0;  // number of spaces removed from the beginning of a decoded text
  std::vector<std::string> pieces_, names_;  // of each token: Piece() and Name()
};

}  // namespace linnet

#endif  // LINNET_MODEL_TOKENIZER_H_
