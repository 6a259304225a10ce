// Reference for softmax_attention.h in plain double precision, for one head, with the full L x S
// matrix of attention weights.
//
//   SoftmaxAttentionRef head({.queries = L, .keys = S, ...}, options, q, k, v, valid); // in double
//   head.Out(i)              // [M]
//   head.Log2Sum(i)
//   head.GradQ(i, grad_out)  // [D], for the loss sum(out * grad_out)
#ifndef LINNET_KERNELS_SOFTMAX_ATTENTION_REF_H_
#define LINNET_KERNELS_SOFTMAX_ATTENTION_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "linnet/kernels/softmax_attention.h"

namespace linnet::kernels {

class SoftmaxAttentionRef {
 public:
  using Vector = std::vector<double>;

  // q [L * D], k [S * D], v [S * M] of one head; keys at positions >= valid are masked out.
  SoftmaxAttentionRef(const SoftmaxAttentionShape& shape, const SoftmaxAttentionOptions& options,
                      Vector q, Vector k, Vector v, size_t valid)
      : l_(shape.queries),
        s_(shape.keys),
        d_(shape.dim),
        m_(shape.value_dim),
        scale_(options.scale),
        q_(std::move(q)),
        k_(std::move(k)),
        v_(std::move(v)),
        p_(l_ * s_),
        out_(l_ * m_),
        log2_sum_(l_, -std::numeric_limits<double>::infinity()) {
    for (size_t i = 0; i < l_; ++i) {
      size_t seen = std::min(s_, valid);
      size_t first = 0;
      if (options.causal) {
        const size_t end = i + options.offset + 1;
        seen = std::min(seen, end);
        if (options.window > 0 && end > options.window) first = end - options.window;
      }
      if (seen <= first) continue;
      double* p = &p_[i * s_];
      for (size_t j = first; j < seen; ++j) {
        for (size_t c = 0; c < d_; ++c) p[j] += scale_ * q_[i * d_ + c] * k_[j * d_ + c];
      }
      const double largest = *std::max_element(p + first, p + seen);
      double sum = 0;
      for (size_t j = first; j < seen; ++j) sum += p[j] = std::exp(p[j] - largest);
      log2_sum_[i] = largest / std::log(2.0) + std::log2(sum);
      for (size_t j = first; j < seen; ++j) {
        p[j] /= sum;
        for (size_t c = 0; c < m_; ++c) out_[i * m_ + c] += p[j] * v_[j * m_ + c];
      }
    }
  }

  Vector Out(size_t i) const {
    return Vector(out_.begin() + static_cast<ptrdiff_t>(i * m_),
                  out_.begin() + static_cast<ptrdiff_t>((i + 1) * m_));
  }
  double Log2Sum(size_t i) const { return log2_sum_[i]; }

  // grad_out is [L * M].
  Vector GradQ(size_t i, const Vector& grad_out) const {
    Vector grad(d_);
    for (size_t j = 0; j < s_; ++j) {
      const double ds = ScoreGrad(i, j, grad_out);
      for (size_t c = 0; c < d_; ++c) grad[c] += scale_ * ds * At(k_, j, c, d_);
    }
    return grad;
  }
  Vector GradK(size_t j, const Vector& grad_out) const {
    Vector grad(d_);
    for (size_t i = 0; i < l_; ++i) {
      const double ds = ScoreGrad(i, j, grad_out);
      for (size_t c = 0; c < d_; ++c) grad[c] += scale_ * ds * q_[i * d_ + c];
    }
    return grad;
  }
  Vector GradV(size_t j, const Vector& grad_out) const {
    Vector grad(m_);
    for (size_t i = 0; i < l_; ++i) {
      for (size_t c = 0; c < m_; ++c) grad[c] += p_[i * s_ + j] * grad_out[i * m_ + c];
    }
    return grad;
  }

 private:
  double ScoreGrad(size_t i, size_t j, const Vector& grad_out) const {
    const double p = p_[i * s_ + j];
    if (p == 0) return 0;
    double sum = 0;
    for (size_t c = 0; c < m_; ++c) {
      sum += grad_out[i * m_ + c] * (v_[j * m_ + c] - out_[i * m_ + c]);
    }
    return p * sum;
  }
  // x[row, column], or 0 if it is NaN: masked keys may hold NaN, and 0 times NaN is NaN.
  static double At(const Vector& x, size_t row, size_t column, size_t width) {
    const double value = x[row * width + column];
    return std::isnan(value) ? 0 : value;
  }

  size_t l_, s_, d_, m_;
  double scale_;
  Vector q_, k_, v_, p_, out_, log2_sum_;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SOFTMAX_ATTENTION_REF_H_
