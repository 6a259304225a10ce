#include "linnet/model/byte_pairs.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

std::string ByteToken(unsigned byte) {
  constexpr const char* kHex = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

}  // namespace

BytePairs::BytePairs(Ids ids, const std::vector<std::pair<std::string, std::string>>& merges,
                     const BytePairOptions& options, const std::string& where)
    : ids_(std::move(ids)), options_(options) {
  const auto id = [&](const std::string& token) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      throw InputError(where, ": the vocabulary lacks the token ", Quote(token));
    }
    return found->second;
  };
  if (!options.unknown.empty()) unknown_ = id(options.unknown);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(ByteToken(byte));
    bytes_[byte] = found == ids_.end() ? -1 : found->second;
  }
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    // If a pair is listed twice, the last entry counts, as in the tokenizers library.
    merges_[Pair(id(left), id(right))] = {static_cast<uint32_t>(rank), id(left + right)};
  }
}

// The tokens of a word before any merge. A character in the vocabulary is one token. Any other
// character becomes one token per byte, the unknown token, or nothing (see BytePairOptions).
std::vector<int32_t> BytePairs::Characters(std::string_view word) const {
  std::vector<int32_t> tokens;
  bool fusing = false;  // the previous character was unknown
  for (size_t at = 0; at < word.size();) {
    const auto next = NextCodePoint(word, at);
    const std::string_view character = word.substr(at, next ? next->bytes : 1);
    at += character.size();
    const auto found = ids_.find(std::string(character));
    const bool bytes = options_.byte_fallback &&
                       std::all_of(character.begin(), character.end(),
                                   [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; });
    if (found != ids_.end()) {
      tokens.push_back(found->second);
    } else if (bytes) {
      for (const char c : character) tokens.push_back(bytes_[static_cast<uint8_t>(c)]);
    } else if (unknown_ >= 0 && !(options_.fuse_unknown && fusing)) {
      tokens.push_back(unknown_);
    }
    fusing = found == ids_.end() && !bytes;
  }
  return tokens;
}

void BytePairs::Append(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto found = ids_.find(std::string(word)); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> tokens = Characters(word);
  // The tokens as a linked list. A merged token replaces its left half; the right half becomes -1.
  // At both ends of the list, before[i] and after[i] are at least `count`.
  const size_t count = tokens.size();
  std::vector<size_t> before(count), after(count);
  for (size_t i = 0; i < count; ++i) before[i] = i - 1, after[i] = i + 1;
  // Rank, index of the left half, and merged token. On top is the merge that was learned first and,
  // if it applies to several pairs, the leftmost pair.
  using Candidate = std::tuple<uint32_t, size_t, int32_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](size_t left) {
    if (left >= count || after[left] >= count) return;
    const auto merge = merges_.find(Pair(tokens[left], tokens[after[left]]));
    if (merge == merges_.end()) return;
    candidates.emplace(merge->second.rank, left, merge->second.token);
  };
  for (size_t i = 0; i + 1 < count; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, left, token] = candidates.top();
    candidates.pop();
    if (tokens[left] < 0 || after[left] >= count) continue;
    const size_t right = after[left];
    // The pair may have changed since it became a candidate.
    const auto merge = merges_.find(Pair(tokens[left], tokens[right]));
    if (merge == merges_.end() || merge->second.token != token) continue;
    tokens[left] = token, tokens[right] = -1;
    after[left] = after[right];
    if (after[left] < count) before[after[left]] = left;
    consider(before[left]), consider(left);
  }
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(ids),
               [](int32_t token) { return token >= 0; });
}

}  // namespace linnet
