// The tokens of a vocabulary in the order of their text, so that a prefix that many tokens share is
// read once.
//
//   for (size_t i = 0; i < sorted.tokens.size(); ++i) {
//     // the first sorted.shared[i] bytes of sorted.texts[i] are those of sorted.texts[i - 1]
//   }
#ifndef LINNET_MODEL_SORTED_TOKENS_H_
#define LINNET_MODEL_SORTED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "linnet/vocabulary.h"

namespace linnet {

// Tokens without text, such as special tokens, and tokens that are never sampled are left out.
struct SortedTokens {
  explicit SortedTokens(const Vocabulary& vocabulary);

  std::vector<int32_t> tokens;
  std::vector<std::string> texts;  // of each token
  std::vector<size_t> shared;  // length of the longest common prefix of texts[i - 1] and texts[i]
};

}  // namespace linnet

#endif  // LINNET_MODEL_SORTED_TOKENS_H_
