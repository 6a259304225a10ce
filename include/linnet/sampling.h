// Draws the next token from a categorical head's logits.
//
//   Philox rng(seed, /*stream=*/sequence);
//   int32_t token = Choose(logits, {.temperature = 0.8f, .top_p = 0.95f}, rng);
#ifndef LINNET_SAMPLING_H_
#define LINNET_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "linnet/export.h"
#include "linnet/rng.h"

namespace linnet {

struct ChoiceOptions {
  float temperature = 1;  // 0: the most likely token; nothing is drawn
  size_t top_k = 0;       // only the k most likely tokens; 0: all
  // Only the smallest set of most likely tokens whose probabilities sum to at least top_p; 1: all.
  float top_p = 1;
};

// Throws InputError unless temperature is in [0, 1e6] and top_p in (0, 1].
LINNET_API void Validate(const ChoiceOptions& options);

// Chooses a token, never one with a logit of -infinity. Throws InputError if all logits are
// -infinity. If the choice is random (temperature > 0, top_k != 1), also throws InputError if a
// logit is NaN or +infinity. A random choice takes two numbers of `rng`, whatever it draws.
LINNET_API int32_t Choose(std::span<const float> logits, const ChoiceOptions& options, Philox& rng);

// Throws InputError if the logits contain NaN or +infinity, as those of damaged weights may.
LINNET_API void CheckLogits(std::span<const float> logits);

// log(sum of exp(logits)). Subtracting it from logits gives log probabilities.
LINNET_API float LogSumExp(std::span<const float> logits);

// logits - LogSumExp(logits), in place.
LINNET_API void LogSoftmax(std::span<float> logits);

}  // namespace linnet

#endif  // LINNET_SAMPLING_H_
