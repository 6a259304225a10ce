#include "linnet/nn/losses.h"

#include "linnet/ops/cross_entropy.h"
#include "linnet/ops/ctc.h"
#include "linnet/ops/mixture_of_logistics.h"

namespace linnet::nn {

using torch::Tensor;

Tensor MixtureOfLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  return ops::MixtureOfLogisticsNats(logits, bytes);
}

Tensor PixelLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  return ops::PixelLogisticsNats(logits, bytes);
}

Tensor CrossEntropyNats(const Tensor& logits, const Tensor& targets) {
  return ops::CrossEntropyNats(logits, targets);
}

Tensor MaskedCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& mask) {
  // Masked targets may be out of range, so class 0 replaces them.
  const Tensor counted = targets.masked_fill(mask == 0, 0);
  const Tensor nats = CrossEntropyNats(logits.flatten(0, 1), counted.flatten());
  return (nats * mask.flatten()).sum() / mask.sum();
}

Tensor CtcNats(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t blank) {
  return ops::CtcNats(log_probs, targets, input_lengths, target_lengths, blank);
}

}  // namespace linnet::nn
