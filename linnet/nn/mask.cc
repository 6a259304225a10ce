#include "linnet/nn/mask.h"

#include <torch/utils.h>

#include <limits>

#include "linnet/error.h"

namespace linnet::nn {

using torch::Tensor;

void CheckLengths(const std::string& name, const Tensor& lengths, const Tensor& of) {
  if (!lengths.defined()) return;
  if (lengths.dim() != 1 || lengths.size(0) != of.size(0) ||
      lengths.scalar_type() != torch::kInt64 || lengths.device() != of.device()) {
    throw InputError(name, " must be int64 [", of.size(0), "] on the device of the sequences");
  }
  if (!lengths.device().is_cpu() || lengths.numel() == 0) return;  // a check would wait for the GPU
  const auto least = lengths.min().item<int64_t>(), most = lengths.max().item<int64_t>();
  if (least < 0 || most > of.size(1)) {
    throw InputError(name, " must lie in 0 .. ", of.size(1), "; got ", least < 0 ? least : most);
  }
}

void CheckAttention(const char* kind, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Mask& mask, bool quadratic, int64_t query_dim, int64_t readers) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError("attention '", kind, "': ", message...);
  };
  const auto full = [](const Tensor& x) {
    return x.dim() == 4 && x.size(1) > 0 && x.size(2) > 0 && x.size(3) > 0;
  };
  require(full(q) && full(k) && full(v) && q.size(0) == k.size(0) &&
              q.size(2) == readers * k.size(2) && q.size(3) == k.size(3) &&
              k.sizes().slice(0, 3) == v.sizes().slice(0, 3),
          "needs q [N, L, H, D], k [N, S, ", readers == 1 ? "H" : "G", ", D] and v [N, S, ",
          readers == 1 ? "H" : "G", ", M], all but N at least 1",
          readers == 1 ? "" : StrCat(", H = ", readers, " G"), "; got q ", q.sizes(), ", k ",
          k.sizes(), ", v ", v.sizes());
  require(query_dim == 0 || q.size(3) == query_dim, "was made for queries of ", query_dim,
          " dimensions; these have ", q.size(3));
  const auto alike = [&](const Tensor& x) {
    return x.scalar_type() == q.scalar_type() && x.device() == q.device();
  };
  require(alike(k) && alike(v), "needs q, k and v of one type and device; got q ", q.toString(),
          ", k ", k.toString(), ", v ", v.toString());
  require(!mask.causal || q.size(1) == k.size(1), "a causal mask needs as many keys as queries; ",
          "numbers of keys and queries: ", k.size(1), " and ", q.size(1));
  CheckLengths(StrCat("attention '", kind, "': mask.lengths"), mask.lengths, k);
  CheckLengths(StrCat("attention '", kind, "': mask.query_lengths"), mask.query_lengths, q);
  if (!mask.allowed.defined()) return;
  require(quadratic, "has no form for arbitrary masks; use 'full' or 'kernel'");
  require(mask.allowed.scalar_type() == torch::kBool && mask.allowed.dim() <= 4,
          "mask.allowed must be bool, broadcastable to [N, H, L, S]");
  const std::vector<int64_t> scores = {q.size(0), q.size(2), q.size(1), k.size(1)};
  for (int64_t i = 1; i <= mask.allowed.dim(); ++i) {
    const int64_t size = mask.allowed.size(-i);
    require(size == 1 || size == scores[scores.size() - static_cast<size_t>(i)], "mask.allowed is ",
            mask.allowed.sizes(), ", which does not broadcast to ", torch::IntArrayRef(scores));
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

Counted DropPadding(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
  return {DropBehind(q, mask.query_lengths), DropBehind(k, mask.lengths),
          DropBehind(v, mask.lengths)};
}

Tensor DropBehind(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return x;
  // Fills with 0 instead of multiplying, because padding may hold NaN.
  return x.masked_fill(Below(lengths, x.size(1)).logical_not().view({x.size(0), x.size(1), 1, 1}),
                       0);
}

Tensor DropQueries(const Tensor& out, const Mask& mask) {
  return DropBehind(out, mask.query_lengths);
}

Tensor DivideOrZero(const Tensor& numerator, const Tensor& denominator) {
  const Tensor nothing = denominator == 0;
  return (numerator / denominator.masked_fill(nothing, 1)).masked_fill(nothing, 0);
}

}  // namespace linnet::nn
