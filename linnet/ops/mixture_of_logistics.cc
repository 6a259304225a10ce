#include "linnet/ops/mixture_of_logistics.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Value(const Tensor& byte, torch::Dtype dtype) { return byte.to(dtype) / 127.5 - 1; }

// The log of the probability of a byte under a logistic. The shapes broadcast.
Tensor LogMass(const Tensor& byte, const Tensor& mean, const Tensor& scale) {
  const Tensor log_scale = scale.clamp(kernels::kMinLogScale, kernels::kMaxLogScale);
  const Tensor centered = Value(byte, mean.scalar_type()) - mean;
  const Tensor inverse_scale = torch::exp(-log_scale);
  const Tensor upper = inverse_scale * (centered + 1.0 / 255);
  const Tensor lower = inverse_scale * (centered - 1.0 / 255);
  // log_mass: the log of sigmoid(upper) - sigmoid(lower), which equals
  // (1 - exp(lower - upper)) sigmoid(upper) sigmoid(-lower). The product loses no precision in the
  // tails; the difference would.
  Tensor log_mass = torch::log(-torch::expm1(-2.0 / 255 * inverse_scale)) -
                    torch::softplus(-upper) - torch::softplus(lower);
  log_mass = torch::where(byte == 0, -torch::softplus(-upper), log_mass);
  return torch::where(byte == 255, -torch::softplus(lower), log_mass);
}

Tensor Plain(const Tensor& logits, const Tensor& bytes) {
  const std::vector<Tensor> parts = logits.chunk(3, -1);
  const Tensor log_mass = LogMass(bytes.unsqueeze(-1), parts[1], parts[2]);
  return -torch::logsumexp(log_mass + torch::log_softmax(parts[0], -1), -1);
}

Tensor PlainPixels(const Tensor& logits, const Tensor& bytes) {
  const int64_t mixtures = logits.size(-1) / 10;
  const auto block = [&](int64_t i) { return logits.narrow(-1, i * mixtures, mixtures); };
  const auto byte = [&](int64_t color) { return bytes.narrow(-1, color, 1); };
  const Tensor red = Value(byte(0), logits.scalar_type());
  const Tensor green = Value(byte(1), logits.scalar_type());
  const Tensor means[] = {block(1), block(2) + torch::tanh(block(7)) * red,
                          block(3) + torch::tanh(block(8)) * red + torch::tanh(block(9)) * green};
  Tensor log_mass = torch::log_softmax(block(0), -1);
  for (int64_t color = 0; color < 3; ++color) {
    log_mass = log_mass + LogMass(byte(color), means[color], block(4 + color));
  }
  return -torch::logsumexp(log_mass, -1);
}

}  // namespace

Tensor MixtureOfLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  if (logits.dim() < 1 || logits.size(-1) % 3 != 0 || logits.size(-1) == 0 ||
      static_cast<size_t>(logits.size(-1)) > 3 * kernels::kMaxMixtures ||
      logits.sizes().slice(0, logits.dim() - 1) != bytes.sizes()) {
    throw InputError("mixture of logistics needs logits [..., 3 K], K at most ",
                     kernels::kMaxMixtures, ", and bytes [...]; got ", logits.sizes(), " and ",
                     bytes.sizes());
  }
  if (bytes.scalar_type() != torch::kInt64) {
    throw InputError("mixture of logistics needs int64 bytes; got ", bytes.scalar_type());
  }
  if constexpr (kHasFused) {
    if (Fused(logits)) return FusedMixtureOfLogistics(logits, bytes);
  }
  return Plain(logits, bytes);
}

Tensor PixelLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  if (logits.dim() < 1 || logits.size(-1) % 10 != 0 || logits.size(-1) == 0 || bytes.dim() < 1 ||
      bytes.size(-1) != 3 ||
      logits.sizes().slice(0, logits.dim() - 1) != bytes.sizes().slice(0, bytes.dim() - 1)) {
    throw InputError("mixture of logistics of pixels needs logits [..., 10 K] and bytes [..., 3]; ",
                     "got ", logits.sizes(), " and ", bytes.sizes());
  }
  const int64_t mixtures = logits.size(-1) / 10;
  if (static_cast<size_t>(mixtures) > kernels::kMaxMixtures) {
    throw InputError("mixture of logistics of pixels: K is ", mixtures, ", more than ",
                     kernels::kMaxMixtures);
  }
  if (bytes.scalar_type() != torch::kInt64) {
    throw InputError("mixture of logistics of pixels needs int64 bytes; got ", bytes.scalar_type());
  }
  if constexpr (kHasFused) {
    if (Fused(logits)) return FusedPixelLogistics(logits, bytes);
  }
  return PlainPixels(logits, bytes);
}

}  // namespace linnet::ops
