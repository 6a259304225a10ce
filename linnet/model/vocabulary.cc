#include "linnet/vocabulary.h"
#include "linnet/model/spec.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/sorted_tokens.h"
#include "linnet/model/tokenizer.h"

namespace linnet {
namespace {

// Calls body(code point) for each code point. Throws InputError, with a message that begins with
// `what`, on invalid UTF-8.
template <class Body>
void ForCodePoints(std::string_view text, const char* what, Body body) {
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    if (!next) throw InputError(what, " is not UTF-8: byte ", at, " is invalid");
    body(next->value);
    at += next->bytes;
  }
}

}  // namespace

struct Vocabulary::Sorted {
  std::once_flag once;
  std::optional<SortedTokens> tokens;
};

Vocabulary::Vocabulary(const TextSpec& text)
    : unit_(text.unit), sorted_(std::make_shared<Sorted>()) {
  const std::string& characters = text.characters;
  const auto require = [&](TextUnit unit, const std::string& given, const char* what) {
    if ((unit_ == unit) != given.empty()) return;
    throw InputError("a vocabulary of ", NameOf(unit_), "s ",
                     given.empty() ? "needs " : "takes no ", given.empty() ? "a " : "", what);
  };
  require(TextUnit::kCharacter, characters, "list of characters");
  require(TextUnit::kToken, text.tokenizer, "tokenizer");
  if (unit_ == TextUnit::kToken) {
    json_ = text.tokenizer;
    tokenizer_ = Tokenizer::Of(json_, "the tokenizer");
    if (!tokenizer_->end()) throw InputError("the tokenizer has no token that ends a text");
    end_ = *tokenizer_->end();
    begin_ = tokenizer_->begin().empty() ? std::vector<int32_t>{end_} : tokenizer_->begin();
  }
  ForCodePoints(characters, "the vocabulary", [&](char32_t c) {
    if (!tokens_.emplace(c, kFirst + static_cast<int32_t>(characters_.size())).second) {
      throw InputError("the vocabulary has the code point ", static_cast<uint32_t>(c), " twice");
    }
    characters_.push_back(c);
  });
}

Vocabulary Vocabulary::OfTokenizer(const std::string& json, int32_t end, const std::string& where) {
  const Tokenizer tokenizer(json, where);
  if (end < 0) end = tokenizer.end().value_or(-1);
  if (end < 0 || static_cast<size_t>(end) >= tokenizer.size()) {
    throw InputError(where, ": no token is known to end a text");
  }
  return Vocabulary({.unit = TextUnit::kToken, .tokenizer = Tokenizer::With(json, end, where)});
}

size_t Vocabulary::size() const {
  if (tokenizer_) return tokenizer_->size();
  return kFirst + (unit_ == TextUnit::kByte ? 256 : characters_.size());
}

std::span<const int32_t> Vocabulary::unwritten() const {
  static constexpr int32_t kNone[] = {kSeparator, kUnknown};
  return std::span(kNone).first(tokenizer_ ? 0 : std::size(kNone));
}

const SortedTokens& Vocabulary::sorted() const {
  std::call_once(sorted_->once, [this] { sorted_->tokens.emplace(*this); });
  return *sorted_->tokens;
}

size_t Vocabulary::CountUnknown(std::span<const int32_t> tokens) const {
  if (tokenizer_) return 0;
  return static_cast<size_t>(std::count(tokens.begin(), tokens.end(), kUnknown));
}

Vocabulary Vocabulary::OfText(std::string_view text, size_t most, size_t least) {
  std::unordered_map<char32_t, size_t> counts;
  ForCodePoints(text, "the text", [&](char32_t c) { ++counts[c]; });
  std::vector<std::pair<char32_t, size_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  std::string characters;
  for (size_t i = 0; i < std::min(most, sorted.size()) && sorted[i].second >= least; ++i) {
    AppendUtf8(sorted[i].first, characters);
  }
  if (characters.empty())
    throw InputError(
        "the text has no characters for a vocabulary; give a longer text or a lower minimum count");
  return Vocabulary({.unit = TextUnit::kCharacter, .characters = characters});
}

TextSpec Vocabulary::Save() const {
  std::string saved;
  for (const char32_t c : characters_) AppendUtf8(c, saved);
  return {.unit = unit_, .characters = saved, .tokenizer = json_};
}

std::vector<int32_t> Vocabulary::Encode(std::string_view text) const {
  if (tokenizer_) return tokenizer_->Encode(text);
  std::vector<int32_t> tokens;
  if (unit_ == TextUnit::kByte) {
    for (const char c : text) tokens.push_back(kFirst + static_cast<uint8_t>(c));
    return tokens;
  }
  ForCodePoints(text, "the text", [&](char32_t c) {
    const auto found = tokens_.find(c);
    tokens.push_back(found == tokens_.end() ? kUnknown : found->second);
  });
  return tokens;
}

std::string Vocabulary::Decode(std::span<const int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->Decode(tokens);
  constexpr char32_t kReplacement = 0xfffd;
  std::string text;
  for (const int32_t token : tokens) {
    const auto place = static_cast<size_t>(token) - kFirst;  // index of the byte or character
    if (token == kUnknown) {
      AppendUtf8(kReplacement, text);
    } else if (token < kFirst || static_cast<size_t>(token) >= size()) {
      continue;
    } else if (unit_ == TextUnit::kByte) {
      text.push_back(static_cast<char>(place));
    } else {
      AppendUtf8(characters_[place], text);
    }
  }
  return text;
}

std::string Vocabulary::Decode(int32_t token) const {
  return tokenizer_ ? tokenizer_->Piece(token) : Decode({&token, 1});
}

std::string Vocabulary::Name(int32_t token) const {
  if (!tokenizer_) {
    if (token == kEnd) return "<|end|>";
    if (token == kSeparator) return "<|separator|>";
    if (token == kUnknown) return "<|unknown|>";
  }
  const std::string text = Decode(token);
  if (text.empty() && tokenizer_) return tokenizer_->Name(token);
  bool valid = !text.empty();
  for (size_t at = 0; valid && at < text.size();) {
    const auto next = NextCodePoint(text, at);
    valid = next.has_value();
    at += next ? next->bytes : 1;
  }
  if (valid) return text;
  std::string name = "bytes:";
  constexpr const char* kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return name;
}

}  // namespace linnet
