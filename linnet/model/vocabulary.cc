#include "linnet/vocabulary.h"
#include "linnet/model/spec.h"

#include <algorithm>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

// Calls body(code point) for each; throws InputError, beginning with `what`, on invalid UTF-8.
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

Vocabulary::Vocabulary(const TextSpec& text) {
  const std::string& characters = text.characters;
  const bool bytes = text.unit == TextUnit::kByte;
  if (bytes != characters.empty()) {
    throw InputError("a vocabulary of ", NameOf(text.unit), "s ",
                     bytes ? "takes no list of characters" : "needs a list of characters");
  }
  ForCodePoints(characters, "the vocabulary", [&](char32_t c) {
    if (!tokens_.emplace(c, kFirst + static_cast<int32_t>(characters_.size())).second) {
      throw InputError("the vocabulary has the code point ", static_cast<uint32_t>(c), " twice");
    }
    characters_.push_back(c);
  });
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
  return {.unit = bytes() ? TextUnit::kByte : TextUnit::kCharacter, .characters = saved};
}

std::vector<int32_t> Vocabulary::Encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  if (bytes()) {
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
  constexpr char32_t kReplacement = 0xfffd;
  std::string text;
  for (const int32_t token : tokens) {
    const auto place = static_cast<size_t>(token) - kFirst;
    if (token == kUnknown) {
      AppendUtf8(kReplacement, text);
    } else if (token < kFirst || static_cast<size_t>(token) >= size()) {
      continue;
    } else if (bytes()) {
      text.push_back(static_cast<char>(place));
    } else {
      AppendUtf8(characters_[place], text);
    }
  }
  return text;
}

}  // namespace linnet
