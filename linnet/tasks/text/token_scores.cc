#include "linnet/tasks/text/token_scores.h"

#include <algorithm>

#include "linnet/base/utf8.h"
#include "linnet/sampling.h"

namespace linnet {

using nlohmann::ordered_json;

void TokenScores::Add(int32_t token, std::span<const float> outputs) {
  const float log_sum = LogSumExp(outputs);
  Score score{token, outputs[static_cast<size_t>(token)] - log_sum, text_.size(), {}};
  // Keeps the top_ most likely tokens in score.top, by descending probability, ties by index.
  for (size_t i = 0; top_ > 0 && i < outputs.size(); ++i) {
    const float value = outputs[i] - log_sum;
    if (score.top.size() == top_ && !(value > score.top.back().second)) continue;
    const auto place = std::find_if(score.top.begin(), score.top.end(),
                                    [&](const auto& one) { return value > one.second; });
    score.top.insert(place, {static_cast<int32_t>(i), value});
    if (score.top.size() > top_) score.top.pop_back();
  }
  const bool there = std::any_of(score.top.begin(), score.top.end(),
                                 [&](const auto& one) { return one.first == token; });
  if (!there) score.top.emplace_back(token, score.log_probability);
  scores_.push_back(std::move(score));
  text_ += vocabulary_->Decode(token);
}

ordered_json TokenScores::Take(std::string_view shown) {
  ordered_json tokens = ordered_json::array(), log_probabilities = ordered_json::array(),
               tops = ordered_json::array(), offsets = ordered_json::array();
  // Walks through `shown` and text_ in parallel, one character at a time: `there` is the character
  // in `shown`; `here` is the same character in text_, or nullopt at a byte of invalid UTF-8, which
  // `shown` replaces by U+FFFD.
  for (size_t at = 0; at < shown.size() && shown_ < text_.size(); ++position_) {
    const auto there = NextCodePoint(shown, at), here = NextCodePoint(text_, shown_);
    at += there ? there->bytes : 1;
    shown_ += here ? here->bytes : 1;
    for (; taken_ < scores_.size() && scores_[taken_].begin < shown_; ++taken_) {
      const Score& score = scores_[taken_];
      tokens.push_back(vocabulary_->Name(score.token));
      log_probabilities.push_back(score.log_probability);
      ordered_json top = ordered_json::object();
      for (const auto& [token, value] : score.top) top[vocabulary_->Name(token)] = value;
      tops.push_back(std::move(top));
      offsets.push_back(position_);
    }
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(log_probabilities)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace linnet
