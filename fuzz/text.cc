// Makes vocabularies from a user's text, and encodes the text with them.
#include <cstdlib>

#include "fuzz/target.h"
#include "linnet/vocabulary.h"

namespace linnet::fuzz {

const FuzzTarget kText = {
    "text", [](std::span<const std::byte> bytes) {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (Vocabulary::Bytes().Decode(Vocabulary::Bytes().Encode(text)) != text) std::abort();
      const Vocabulary all = Vocabulary::OfText(text, /*most=*/1'000'000);
      if (all.Decode(all.Encode(text)) != text) std::abort();
      Vocabulary::OfText(text, /*most=*/2).Encode(text);  // with unknown characters
    }};

}  // namespace linnet::fuzz
