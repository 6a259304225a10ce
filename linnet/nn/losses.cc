#include "linnet/nn/losses.h"

#include <torch/nn/functional/loss.h>

#include "linnet/ops/mixture_of_logistics.h"

namespace linnet::nn {

using torch::Tensor;

Tensor MixtureOfLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  return ops::MixtureOfLogisticsNats(logits, bytes);
}

Tensor MaskedCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& mask) {
  const Tensor nats = torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (nats * mask.flatten()).sum() / mask.sum();
}

}  // namespace linnet::nn
