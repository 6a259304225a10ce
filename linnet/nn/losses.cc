#include "linnet/nn/losses.h"

#include <torch/nn/functional/loss.h>

#include <cmath>

#include "linnet/ops/mixture_of_logistics.h"

namespace linnet::nn {

using torch::Tensor;

Tensor MixtureOfLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  if (logits.device().is_cpu() && logits.scalar_type() == torch::kFloat32) {
    return ops::MixtureOfLogisticsNats(logits, bytes);
  }
  const std::vector<Tensor> parts = logits.chunk(3, -1);
  const Tensor log_scale = parts[2].clamp_min(-7);
  const Tensor byte = bytes.unsqueeze(-1);
  const Tensor centred = byte.to(logits.dtype()) / 127.5 - 1 - parts[1];
  const Tensor inverse_scale = torch::exp(-log_scale);
  const Tensor upper = inverse_scale * (centred + 1.0 / 255);
  const Tensor lower = inverse_scale * (centred - 1.0 / 255);
  const Tensor middle = inverse_scale * centred;
  const Tensor mass = torch::sigmoid(upper) - torch::sigmoid(lower);
  // Where a bin's mass is lost to rounding, the density at its middle times its width stands in.
  const Tensor tail = middle - log_scale - 2 * torch::softplus(middle) - std::log(127.5);
  Tensor log_mass = torch::where(mass > 1e-5, mass.clamp_min(1e-12).log(), tail);
  log_mass = torch::where(byte == 0, upper - torch::softplus(upper), log_mass);
  log_mass = torch::where(byte == 255, -torch::softplus(lower), log_mass);
  return -torch::logsumexp(log_mass + torch::log_softmax(parts[0], -1), -1);
}

Tensor MaskedCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& mask) {
  const Tensor nats = torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (nats * mask.flatten()).sum() / mask.sum();
}

}  // namespace linnet::nn
