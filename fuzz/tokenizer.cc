// Reads tokenizer.json, and encodes and decodes a text with it.
#include <algorithm>
#include <cstdlib>

#include "fuzz/target.h"
#include "linnet/model/tokenizer.h"

namespace linnet::fuzz {

const FuzzTarget kTokenizer = {
    "tokenizer", [](std::span<const std::byte> bytes) {
      const std::string json(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const Tokenizer tokenizer(json, "input");
      const std::string text = "Hear me  speak.\n\n12 na\u00efve \u6d77\u4e0a <|begin|> \U0001f600";
      const std::vector<int32_t> tokens = tokenizer.Encode(text);
      const bool inside = std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) {
        return token >= 0 && static_cast<size_t>(token) < tokenizer.size();
      });
      if (!inside) std::abort();
      tokenizer.Decode(tokens);
      // A model file stores the JSON of With(), which must define the same tokenizer.
      const Tokenizer again(Tokenizer::With(json, tokenizer.end().value_or(-1), "again"), "again");
      if (again.Encode(text) != tokens) std::abort();
    }};

}  // namespace linnet::fuzz
