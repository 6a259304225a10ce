#include "linnet/ops/head_norm.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {

using torch::Tensor;

Tensor SiluL2Norm(const Tensor& x, int64_t normed, int64_t width, double eps) {
  if (x.dim() < 1 || width < 1 || normed < 0 || normed > x.size(-1) || normed % width != 0) {
    throw InputError("a norm of ", normed, " columns in groups of ", width, " does not fit ",
                     x.sizes());
  }
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedSiluL2Norm(x, normed, width, eps);
  }
  const Tensor s = torch::silu(x);
  if (normed == 0) return s;
  const Tensor groups = s.narrow(-1, 0, normed).unflatten(-1, {-1, width});
  const Tensor unit = groups * (groups.square().sum(-1, true) + eps).rsqrt();
  return torch::cat({unit.flatten(-2), s.narrow(-1, normed, x.size(-1) - normed)}, -1);
}

Tensor GatedRmsNorm(const Tensor& x, const Tensor& weight, const Tensor& gate,
                    kernels::GateFunction function, double eps) {
  if (x.dim() != 4 || weight.dim() != 1 || weight.size(0) != x.size(3) ||
      (gate.defined() && gate.sizes() != x.sizes())) {
    throw InputError("a gated RMS norm needs x and gate [N, L, H, M] and weight [M]; got ",
                     x.sizes(), ", ", gate.defined() ? gate.sizes() : at::IntArrayRef(), " and ",
                     weight.sizes());
  }
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedGatedRmsNorm(x, weight, gate, function, eps);
  }
  const Tensor y = x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
  if (!gate.defined()) return y;
  return y * (function == kernels::GateFunction::kSilu ? torch::silu(gate) : gate.sigmoid());
}

}  // namespace linnet::ops
