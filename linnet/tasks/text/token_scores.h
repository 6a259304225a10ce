// The log-probabilities of a text's tokens, in the format of `logprobs` in OpenAI's completions.
//
//   TokenScores scores(vocabulary, /*top=*/2);
//   scores.Add(token, outputs);                  // a drawn token, and the outputs it came from
//   answer["logprobs"] = scores.Take(shown);     // for the tokens of the text `shown`
//
//   {"tokens": ["a", "bytes:\\xe6"], "token_logprobs": [-0.1, -2.5],
//    "top_logprobs": [{"a": -0.1, "b": -2.6}, ...], "text_offset": [0, 1]}
//
// The values are natural logarithms of the model's own probabilities, before temperature, top_k and
// top_p are applied.
#ifndef LINNET_TASKS_TEXT_TOKEN_SCORES_H_
#define LINNET_TASKS_TEXT_TOKEN_SCORES_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/vocabulary.h"

namespace linnet {

class TokenScores {
 public:
  // `top`: how many of the most likely tokens top_logprobs lists; a drawn token that is not among
  // them is listed, too. The vocabulary must outlive this object.
  TokenScores(const Vocabulary& vocabulary, size_t top) : vocabulary_(&vocabulary), top_(top) {}

  // Adds a drawn token. `outputs`: the head's outputs at the token before it.
  void Add(int32_t token, std::span<const float> outputs);

  // Returns the scores of the tokens whose text begins in `shown`. `shown` is the next piece of the
  // text, after the pieces of the previous calls: whole characters, with U+FFFD for each byte of
  // invalid UTF-8. text_offset is the index of a token's first character in the whole text. Tokens
  // whose text is never shown, such as those of a stop string, are left out.
  nlohmann::ordered_json Take(std::string_view shown);

 private:
  struct Score {
    int32_t token;
    float log_probability;
    size_t begin;  // offset of the token's text in text_
    std::vector<std::pair<int32_t, float>> top;
  };

  const Vocabulary* vocabulary_;
  size_t top_;
  std::string text_;     // the bytes of all added tokens
  size_t shown_ = 0;     // number of bytes of text_ that calls of Take() have covered
  size_t position_ = 0;  // shown_ in characters instead of bytes
  std::vector<Score> scores_;
  size_t taken_ = 0;  // number of scores_ that Take() has returned
};

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_TOKEN_SCORES_H_
