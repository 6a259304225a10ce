#include "linnet/ops/ctc.h"

#include <ATen/core/Reduction.h>
#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {

using torch::Tensor;

Tensor CtcNats(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t blank) {
  const auto require = [](bool good, const auto&... message) {
    if (!good) throw InputError("CTC: ", message...);
  };
  require(log_probs.dim() == 3 && targets.dim() == 2 && log_probs.size(0) == targets.size(0),
          "log_probs ", log_probs.sizes(), " and targets ", targets.sizes(),
          " are not [N, T, C] and [N, S]");
  require(targets.scalar_type() == torch::kInt64, "targets must be int64; got ",
          targets.scalar_type());
  const int64_t n = log_probs.size(0), length = targets.size(1);
  require(blank >= 0 && blank < log_probs.size(2), "the blank ", blank, " is not one of the ",
          log_probs.size(2), " classes");
  for (const Tensor* lengths : {&input_lengths, &target_lengths}) {
    require(lengths->dim() == 1 && lengths->size(0) == n && lengths->scalar_type() == torch::kInt64,
            "lengths must be int64 [", n, "]; got ", lengths->sizes());
  }
  const auto within = [](const Tensor& lengths, int64_t most) {
    return lengths.numel() == 0 ||
           (lengths.min().item<int64_t>() >= 0 && lengths.max().item<int64_t>() <= most);
  };
  require(within(input_lengths, log_probs.size(1)) && within(target_lengths, length),
          "a length is negative or exceeds its sequence");
  // said: which tokens of `targets` are not padding. The padding may hold anything.
  const Tensor place = torch::arange(length, targets.options());
  const Tensor said = place.unsqueeze(0) < target_lengths.unsqueeze(1);
  require(within(targets.masked_select(said), log_probs.size(2) - 1), "a target is not one of the ",
          log_probs.size(2), " classes");
  if constexpr (kHasFused) {
    if (Fused(log_probs)) {
      return FusedCtc(log_probs, targets, input_lengths, target_lengths, blank);
    }
  }
  const auto loss = [&](bool zero_infinity) {
    return torch::ctc_loss(log_probs.transpose(0, 1), targets, input_lengths, target_lengths, blank,
                           at::Reduction::None, zero_infinity);
  };
  // Where the loss is infinite, zero_infinity sets the loss and its gradient to 0. The code below
  // adds the infinity back, without a gradient.
  const Tensor nats = loss(true);
  torch::NoGradGuard no_grad;
  const Tensor whole = loss(false);
  torch::AutoGradMode grad(true);
  return nats + torch::where(whole.isinf(), whole, torch::zeros_like(whole));
}

}  // namespace linnet::ops
