#include "linnet/ops/mixture_of_logistics.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Plain(const Tensor& logits, const Tensor& bytes) {
  const std::vector<Tensor> parts = logits.chunk(3, -1);
  const Tensor log_scale = parts[2].clamp(kernels::kMinLogScale, kernels::kMaxLogScale);
  const Tensor byte = bytes.unsqueeze(-1);
  const Tensor centered = byte.to(logits.dtype()) / 127.5 - 1 - parts[1];
  const Tensor inverse_scale = torch::exp(-log_scale);
  const Tensor upper = inverse_scale * (centered + 1.0 / 255);
  const Tensor lower = inverse_scale * (centered - 1.0 / 255);
  // log_mass: the log of sigmoid(upper) - sigmoid(lower), which equals
  // (1 - exp(lower - upper)) sigmoid(upper) sigmoid(-lower). The product loses no precision in the
  // tails; the difference would.
  Tensor log_mass = torch::log(-torch::expm1(-2.0 / 255 * inverse_scale)) -
                    torch::softplus(-upper) - torch::softplus(lower);
  log_mass = torch::where(byte == 0, -torch::softplus(-upper), log_mass);
  log_mass = torch::where(byte == 255, -torch::softplus(lower), log_mass);
  return -torch::logsumexp(log_mass + torch::log_softmax(parts[0], -1), -1);
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

}  // namespace linnet::ops
