#include "linnet/nn/mask.h"

#include <torch/utils.h>

#include "linnet/base/error.h"

namespace linnet::nn {

using torch::Tensor;

void CheckAttention(const char* kind, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Mask& mask, bool quadratic) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError("attention '", kind, "': ", message...);
  };
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) &&
              q.size(2) == k.size(2) && q.size(3) == k.size(3) &&
              k.sizes().slice(0, 3) == v.sizes().slice(0, 3),
          "needs q [N, L, H, D], k [N, S, H, D] and v [N, S, H, M]; got q ", q.sizes(), ", k ",
          k.sizes(), ", v ", v.sizes());
  require(!mask.causal || q.size(1) == k.size(1), "a causal mask needs as many keys as queries; ",
          "there are ", k.size(1), " and ", q.size(1));
  const auto check_lengths = [&](const char* name, const Tensor& lengths) {
    require(!lengths.defined() ||
                (lengths.dim() == 1 && lengths.size(0) == q.size(0) &&
                 lengths.scalar_type() == torch::kInt64 && lengths.device() == q.device()),
            "mask.", name, " must be int64 [", q.size(0), "] on the device of q");
  };
  check_lengths("lengths", mask.lengths);
  check_lengths("query_lengths", mask.query_lengths);
  if (!mask.allowed.defined()) return;
  require(quadratic, "has no form for arbitrary masks; use 'full' or 'kernel'");
  require(mask.allowed.scalar_type() == torch::kBool && mask.allowed.dim() <= 4,
          "mask.allowed must be bool, broadcastable to [N, H, L, S]");
  const std::vector<int64_t> full = {q.size(0), q.size(2), q.size(1), k.size(1)};
  for (int64_t i = 1; i <= mask.allowed.dim(); ++i) {
    const int64_t size = mask.allowed.size(-i);
    require(size == 1 || size == full[full.size() - static_cast<size_t>(i)], "mask.allowed is ",
            mask.allowed.sizes(), ", which does not broadcast to ", torch::IntArrayRef(full));
  }
}

Tensor Below(const Tensor& lengths, int64_t length) {
  return torch::arange(length, lengths.options()).unsqueeze(0) < lengths.unsqueeze(1);
}

Tensor Hidden(const Mask& mask, const Tensor& q, const Tensor& k) {
  Tensor hidden;
  const auto hide = [&](const Tensor& more) {
    hidden = hidden.defined() ? hidden.logical_or(more) : more;
  };
  const int64_t keys = k.size(1);
  if (mask.causal) hide(torch::ones({q.size(1), keys}, q.options().dtype(torch::kBool)).triu(1));
  if (mask.lengths.defined()) {
    hide(Below(mask.lengths, keys).logical_not().view({-1, 1, 1, keys}));
  }
  if (mask.allowed.defined()) hide(mask.allowed.logical_not());
  return hidden;
}

Tensor DropQueries(const Tensor& out, const Mask& mask) {
  if (!mask.query_lengths.defined()) return out;
  const Tensor counts = Below(mask.query_lengths, out.size(1));
  return out.masked_fill(counts.logical_not().view({out.size(0), -1, 1, 1}), 0);
}

}  // namespace linnet::nn
