#include "linnet/model/sorted_tokens.h"

#include <algorithm>
#include <utility>

namespace linnet {

SortedTokens::SortedTokens(const Vocabulary& vocabulary) {
  const auto unwritten = vocabulary.unwritten();
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (token == vocabulary.end()) continue;
    if (std::find(unwritten.begin(), unwritten.end(), token) != unwritten.end()) continue;
    std::string text = vocabulary.Decode(token);
    if (!text.empty()) sorted.emplace_back(std::move(text), token);
  }
  std::sort(sorted.begin(), sorted.end());
  for (auto& [text, token] : sorted) {
    size_t same = 0;
    if (!texts.empty()) {
      const std::string& before = texts.back();
      const auto parting = std::mismatch(before.begin(), before.end(), text.begin(), text.end());
      same = static_cast<size_t>(parting.first - before.begin());
    }
    tokens.push_back(token);
    shared.push_back(same);
    texts.push_back(std::move(text));
  }
}

}  // namespace linnet
