// Equation 3 as it stands: every similarity of a query and a key written out, quadratic in the
// length. The truth that feature maps are measured against.
//
//   out_i = sum_j sim(q_i, k_j) v_j / (sum_j sim(q_i, k_j) + eps)
//
//   softmax       sim = exp(q . k / sqrt(D))
//   polynomial2   sim = (q . k / sqrt(D) + 1)^2
//   rbf           sim = exp(-|q - k|^2 / (2 sqrt(D)))
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class KernelAttentionImpl : public AttentionImpl {
 public:
  explicit KernelAttentionImpl(const AttentionSpec& spec)
      : similarity_(spec.similarity), eps_(spec.eps) {}

  Tensor forward(const Tensor& q_in, const Tensor& k_in, const Tensor& v,
                 const Mask& mask) override {
    CheckAttention("kernel", q_in, k_in, v, mask, /*quadratic=*/true);
    const Tensor hidden = nn::Hidden(mask, q_in, k_in);
    const double scale = std::pow(static_cast<double>(q_in.size(3)), -0.25);
    const Tensor q = q_in.transpose(1, 2) * scale, k = k_in.transpose(1, 2) * scale;
    const Tensor products = torch::matmul(q, k.transpose(2, 3));  // [N, H, L, S]
    Tensor similarity;
    if (similarity_ == "polynomial2") {
      similarity = (products + 1).square();
    } else {
      Tensor exponent = products;
      if (similarity_ == "rbf") {
        const Tensor squares = k.square().sum(-1).unsqueeze(2);
        exponent = (exponent - (q.square().sum(-1, true) + squares) / 2).clamp_max(0);
      } else {
        // exp(q . k) overflows: each query's similarities are divided by its largest.
        if (hidden.defined()) {
          exponent = exponent.masked_fill(hidden, std::numeric_limits<float>::lowest());
        }
        exponent = exponent - std::get<0>(exponent.max(-1, true));
      }
      similarity = exponent.exp();
    }
    if (hidden.defined()) similarity = similarity.masked_fill(hidden, 0);
    const Tensor out =
        torch::matmul(similarity, v.transpose(1, 2)) / (similarity.sum(-1, true) + eps_);
    return DropQueries(out.transpose(1, 2), mask);
  }

 private:
  std::string similarity_;
  double eps_;
};

}  // namespace

const AttentionKind kKernelAttention = {
    "kernel", [](const AttentionSpec& spec, const AttentionSizes&) -> Attention {
      return std::make_shared<KernelAttentionImpl>(spec);
    }};

}  // namespace linnet::nn
