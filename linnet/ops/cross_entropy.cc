#include "linnet/ops/cross_entropy.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {

using torch::Tensor;

Tensor CrossEntropyNats(const Tensor& logits, const Tensor& targets) {
  if (logits.dim() != 2 || logits.size(1) == 0 || targets.dim() != 1 ||
      targets.size(0) != logits.size(0) || targets.scalar_type() != torch::kInt64) {
    throw InputError("cross entropy needs logits [R, C] and int64 targets [R]; got ",
                     logits.sizes(), " and ", targets.scalar_type(), " ", targets.sizes());
  }
  if (targets.device() != logits.device()) {
    throw InputError("cross entropy: logits are on ", logits.device(), ", targets on ",
                     targets.device());
  }
  // Checks the targets' values only on the CPU. On a GPU, the host would have to wait for them.
  if (targets.numel() > 0 && targets.device().is_cpu()) {
    const auto least = targets.min().item<int64_t>(), most = targets.max().item<int64_t>();
    if (least < 0 || most >= logits.size(1)) {
      throw InputError("cross entropy: the target ", least < 0 ? least : most,
                       " is not one of the ", logits.size(1), " classes");
    }
  }
  if constexpr (kHasFused) {
    if (Fused(logits)) return FusedCrossEntropy(logits, targets);
  }
  return torch::logsumexp(logits, 1) - logits.gather(1, targets.unsqueeze(1)).squeeze(1);
}

}  // namespace linnet::ops
