// Makes a grammar of a user's JSON schema (an input that begins with '{') or GBNF text, then writes
// a text that follows it.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "fuzz/target.h"
#include "linnet/grammar.h"

namespace linnet::fuzz {
namespace {

constexpr size_t kLongest = 200;  // bytes of text

// Writes one of the bytes that can follow, again and again. Which one depends on `from`.
void Write(const Grammar& grammar, std::string_view from, bool json) {
  static const Vocabulary vocabulary = Vocabulary::Bytes();
  GrammarMatcher matcher(grammar, vocabulary);
  std::string text;
  while (!matcher.finished() && text.size() < kLongest) {
    std::vector<float> logits(vocabulary.size(), 0);
    matcher.Mask(logits);
    std::vector<int32_t> allowed;
    for (int32_t i = Vocabulary::kFirst; i < static_cast<int32_t>(logits.size()); ++i) {
      if (logits[static_cast<size_t>(i)] == 0) allowed.push_back(i);
    }
    if (allowed.empty()) std::abort();  // neither finished nor able to go on
    const auto choice =
        static_cast<size_t>(static_cast<unsigned char>(from[text.size() % from.size()]));
    const int32_t token = allowed[choice % allowed.size()];
    matcher.Add(token);
    text += vocabulary.Decode(token);
  }
  if (json && matcher.complete() && !nlohmann::json::accept(text)) std::abort();
}

}  // namespace

const FuzzTarget kGrammar = {
    "grammar", [](std::span<const std::byte> bytes) {
      const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (text.empty()) return;
      const bool json = text[0] == '{';
      Write(json ? Grammar::OfJsonSchema(text) : Grammar::Parse(text), text, json);
    }};

}  // namespace linnet::fuzz
