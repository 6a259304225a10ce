// Byte-pair encoding (Sennrich et al. 2016). It starts with a word's characters as tokens. Each
// step merges an adjacent pair of tokens: of all pairs present, the one that training learned
// first. Private to tokenizer.h.
//
//   BytePairs pairs({{"a", 0}, {"b", 1}, {"ab", 2}}, {{"a", "b"}}, {}, "tokenizer.json");
//   pairs.Append("abb", ids);     // ids: 2, 1
#ifndef LINNET_MODEL_BYTE_PAIRS_H_
#define LINNET_MODEL_BYTE_PAIRS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace linnet {

struct BytePairOptions {
  std::string unknown = {};   // token for characters outside the vocabulary; "": leaves them out
  bool fuse_unknown = false;  // one token for consecutive unknown characters
  // An unknown character becomes one token per byte ("<0xE6>", ...), if the vocabulary has a token
  // for each of its bytes.
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word in the vocabulary is one token
};

class BytePairs {
 public:
  using Ids = std::unordered_map<std::string, int32_t>;  // vocabulary: text of a token -> its id

  // merges: in the order in which they were learned. Throws InputError, with a message that begins
  // with `where`, if the vocabulary lacks a token of a merge, or the unknown token.
  BytePairs(Ids ids, const std::vector<std::pair<std::string, std::string>>& merges,
            const BytePairOptions& options, const std::string& where);

  // Appends the token ids of a word, which must be valid UTF-8.
  void Append(std::string_view word, std::vector<int32_t>& ids) const;
  const Ids& ids() const { return ids_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t token;  // the merged token
  };
  // The key of a pair in merges_.
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  std::vector<int32_t> Characters(std::string_view word) const;

  Ids ids_;
  BytePairOptions options_;
  int32_t unknown_ = -1;            // the unknown token; -1: none
  std::array<int32_t, 256> bytes_;  // tokens "<0x00>" ...; -1: none
  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace linnet

#endif  // LINNET_MODEL_BYTE_PAIRS_H_
