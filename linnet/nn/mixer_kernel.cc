// Computes equation 3 of Katharopoulos et al. 2020 directly, from the similarity of every query and
// key, at a cost quadratic in the length. The errors of feature maps are measured against this
// mixer.
//
//   out_i = sum_j sim(q_i, k_j) v_j / (sum_j sim(q_i, k_j) + eps)
//
//   softmax       sim = exp(q . k / sqrt(D))
//   polynomial2   sim = (q . k / sqrt(D) + 1)^2
//   rbf           sim = exp(-|q - k|^2 / (2 sqrt(D)))
#include <torch/types.h>

#include <cmath>

#include "linnet/error.h"
#include "linnet/nn/cached_attention.h"
#include "linnet/ops/lowest_score.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class KernelAttentionImpl : public CachedAttention {
 public:
  explicit KernelAttentionImpl(const MixerSpec& spec)
      : CachedAttention("kernel", spec.query_dim), similarity_(spec.similarity), eps_(spec.eps) {}

  Tensor forward(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                 const Mask& mask) override {
    CheckAttention("kernel", q_in, k_in, v_in, mask, /*quadratic=*/true, query_dim());
    const Counted in = DropPadding(q_in, k_in, v_in, mask);
    const Tensor out = Divided(in.q, in.k, in.v, nn::Hidden(mask, in.q, in.k));
    return DropQueries(out, mask);
  }

 protected:
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden,
                bool causal, int64_t offset) const override {
    Tensor all = hidden;
    if (causal) {  // hides key j from query i if j > offset + i
      const auto index = [&](int64_t begin, int64_t count) {
        return torch::arange(begin, begin + count,
                             q.options().dtype(torch::kInt64).requires_grad(false));
      };
      const Tensor behind =
          index(0, k.size(1)).unsqueeze(0) > index(offset, q.size(1)).unsqueeze(1);
      all = all.defined() ? all.logical_or(behind) : behind.view({1, 1, q.size(1), k.size(1)});
    }
    return Divided(q, k, v, all);
  }

 private:
  // The mean of the values, weighted by similarity.
  Tensor Divided(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden) const {
    Tensor similarity = Similarities(q.transpose(1, 2), k.transpose(1, 2), hidden);
    if (hidden.defined()) similarity = similarity.masked_fill(hidden, 0);
    const Tensor out =
        DivideOrZero(torch::matmul(similarity, v.transpose(1, 2)), similarity.sum(-1, true) + eps_);
    return out.transpose(1, 2);
  }

  // q [N, H, L, D], k [N, H, S, D] -> [N, H, L, S]
  Tensor Similarities(const Tensor& q, const Tensor& k, const Tensor& hidden) const {
    const double root = std::sqrt(static_cast<double>(query_dim()));
    if (similarity_ == Similarity::kRbf) {
      // Squares the differences, because |q|^2 + |k|^2 - 2 q . k cancels badly if q and k are
      // large.
      const auto wide = [](const Tensor& x) {  // libtorch's cdist takes only fp32 and double
        return x.scalar_type() == torch::kFloat64 ? x : x.to(torch::kFloat32);
      };
      constexpr int64_t kDifferences = 2;  // cdist mode that uses no matrix product
      return (torch::cdist(wide(q), wide(k), 2, kDifferences).square() / (-2 * root))
          .exp()
          .to(q.scalar_type());
    }
    const double scale =
        1 / std::sqrt(root);  // scales q and k before the product, against overflow in fp16
    const Tensor products = torch::matmul(q * scale, (k * scale).transpose(2, 3));
    if (similarity_ == Similarity::kPolynomial2) return (products + 1).square();
    // exp() may overflow, so each query's similarities are divided by the largest of them; eps is
    // relative to it.
    const Tensor exponent = hidden.defined()
                                ? products.masked_fill(hidden, ops::LowestScore(q.scalar_type()))
                                : products;
    return (exponent - std::get<0>(exponent.max(-1, true))).exp();
  }

  Similarity similarity_;
  double eps_;
};

}  // namespace

MixerKind KernelMixerKind() {
  return {"kernel", [](const MixerSpec& spec) -> Mixer {
            return std::make_shared<KernelAttentionImpl>(spec);
          }};
}

}  // namespace linnet::nn
