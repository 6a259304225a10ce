// The plain double-precision twin of causal_linear.h, for one head: the paper's sums written out.
//
//   CausalLinearRef head(L, D, M, options, q, k, v, valid);   // q, k [L * D], v [L * M], in double
//   head.Out(i)              // [M]
//   head.GradQ(i, grad_out)  // [D], for the loss sum(out * grad_out)
//
// A row is computed by itself, so that long sequences can be checked at sampled rows.
#ifndef LINNET_KERNELS_CAUSAL_LINEAR_REF_H_
#define LINNET_KERNELS_CAUSAL_LINEAR_REF_H_

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "linnet/kernels/causal_linear.h"

namespace linnet::kernels {

class CausalLinearRef {
 public:
  using Vector = std::vector<double>;

  // valid: keys at positions >= valid count for nothing. s0, z0: the state before the first
  // position, [D * M] and [D], or empty for zero.
  CausalLinearRef(size_t length, size_t dim, size_t value_dim, const CausalLinearOptions& options,
                  Vector q, Vector k, Vector v, size_t valid, Vector s0 = {}, Vector z0 = {})
      : length_(length),
        d_(dim),
        m_(value_dim),
        valid_(valid),
        options_(options),
        q_(std::move(q)),
        k_(std::move(k)),
        v_(std::move(v)),
        phi_q_(q_),
        phi_k_(k_),
        out_(length * value_dim),
        den_(length, 1.0),
        s_(std::move(s0)),
        z_(std::move(z0)) {
    for (double& x : phi_q_) x = Phi(x);
    for (size_t i = 0; i < phi_k_.size(); ++i) phi_k_[i] = i / d_ < valid_ ? Phi(k_[i]) : 0.0;
    s_.resize(d_ * m_);
    z_.resize(d_);
    for (size_t i = 0; i < length_; ++i) {
      for (size_t f = 0; f < d_; ++f) {
        z_[f] += phi_k_[i * d_ + f];
        for (size_t c = 0; c < m_; ++c) s_[f * m_ + c] += phi_k_[i * d_ + f] * v_[i * m_ + c];
      }
      if (options_.normalize) {
        den_[i] = options_.eps;
        for (size_t f = 0; f < d_; ++f) den_[i] += phi_q_[i * d_ + f] * z_[f];
      }
      for (size_t c = 0; c < m_; ++c) {
        double sum = 0;
        for (size_t f = 0; f < d_; ++f) sum += phi_q_[i * d_ + f] * s_[f * m_ + c];
        out_[i * m_ + c] = sum / den_[i];
      }
    }
  }

  Vector Out(size_t i) const { return Row(out_, i, m_); }
  double Denominator(size_t i) const { return den_[i]; }
  const Vector& S() const { return s_; }
  const Vector& Z() const { return z_; }

  // The gradients assume a zero initial state. grad_out is [L * M].
  //   d out_i / d (phi(q_i) . phi(k_j)) contracted with grad_out_i: grad_out_i . (v_j - out_i) /
  //   den_i.
  Vector GradQ(size_t i, const Vector& grad_out) const {
    Vector grad(d_);
    for (size_t j = 0; j <= i; ++j) {
      const double weight = WeightGrad(i, j, grad_out);
      for (size_t f = 0; f < d_; ++f) grad[f] += weight * phi_k_[j * d_ + f];
    }
    for (size_t f = 0; f < d_; ++f) grad[f] *= PhiDerivative(q_[i * d_ + f]);
    return grad;
  }
  Vector GradK(size_t j, const Vector& grad_out) const {
    Vector grad(d_);
    if (j >= valid_) return grad;
    for (size_t i = j; i < length_; ++i) {
      const double weight = WeightGrad(i, j, grad_out);
      for (size_t f = 0; f < d_; ++f) grad[f] += weight * phi_q_[i * d_ + f];
    }
    for (size_t f = 0; f < d_; ++f) grad[f] *= PhiDerivative(k_[j * d_ + f]);
    return grad;
  }
  Vector GradV(size_t j, const Vector& grad_out) const {
    Vector grad(m_);
    for (size_t i = j; i < length_; ++i) {
      double weight = 0;
      for (size_t f = 0; f < d_; ++f) weight += phi_q_[i * d_ + f] * phi_k_[j * d_ + f];
      for (size_t c = 0; c < m_; ++c) grad[c] += weight / den_[i] * grad_out[i * m_ + c];
    }
    return grad;
  }

 private:
  double Phi(double x) const {
    if (options_.feature_map == FeatureMap::kIdentity) return x;
    return x > 0 ? x + 1 : std::exp(x);
  }
  double PhiDerivative(double x) const {
    if (options_.feature_map == FeatureMap::kIdentity) return 1;
    return x > 0 ? 1 : std::exp(x);
  }
  double WeightGrad(size_t i, size_t j, const Vector& grad_out) const {
    double sum = 0;
    for (size_t c = 0; c < m_; ++c) {
      const double centre = options_.normalize ? out_[i * m_ + c] : 0.0;
      sum += grad_out[i * m_ + c] * (v_[j * m_ + c] - centre);
    }
    return sum / den_[i];
  }
  static Vector Row(const Vector& all, size_t i, size_t width) {
    return Vector(all.begin() + static_cast<ptrdiff_t>(i * width),
                  all.begin() + static_cast<ptrdiff_t>((i + 1) * width));
  }

  size_t length_, d_, m_, valid_;
  CausalLinearOptions options_;
  Vector q_, k_, v_, phi_q_, phi_k_, out_, den_, s_, z_;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_REF_H_
