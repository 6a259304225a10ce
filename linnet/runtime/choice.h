// The next symbol out of a categorical head's logits.
//
//   Philox rng(seed, /*stream=*/sequence);
//   int32_t symbol = Choose(logits, {.temperature = 0.8f, .top_p = 0.95f}, rng);
#ifndef LINNET_RUNTIME_CHOICE_H_
#define LINNET_RUNTIME_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "linnet/base/rng.h"

namespace linnet {

struct ChoiceOptions {
  float temperature = 1;  // 0: the likeliest, and nothing is drawn
  size_t top_k = 0;       // only the k likeliest; 0: all
  float top_p = 1;        // only the likeliest that together have this probability (at temperature)
};

// Throws InputError on a temperature below 0, a top_p outside (0, 1].
void Validate(const ChoiceOptions& options);

// Draws a symbol; those with logits of -infinity never. Throws InputError where no other is left.
int32_t Choose(std::span<const float> logits, const ChoiceOptions& options, Philox& rng);

// log(sum of exp(logits)); logits less it are log probabilities.
float LogSumExp(std::span<const float> logits);

// logits - LogSumExp(logits), in place.
void LogSoftmax(std::span<float> logits);

}  // namespace linnet

#endif  // LINNET_RUNTIME_CHOICE_H_
