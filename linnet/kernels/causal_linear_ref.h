// Reference for causal_linear.h, for one head. Computes the sums of Katharopoulos et al. (2020)
// directly, in double precision.
//
//   CausalLinearRef head(L, D, M, options, q, k, v, valid);   // q, k [L * D], v [L * M], in double
//   head.Out(i)              // [M]
//   head.GradQ(i, grad_out)  // [D], for the loss sum(out * grad_out)
//   head.GradK(i, grad_out, grad_s, grad_z)   // [D], for the loss sum(out * grad_out)
//                                             // + sum(S() * grad_s) + sum(Z() * grad_z)
//
// Each row of a gradient is computed on its own, so that long sequences can be checked at sampled
// rows.
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

  // Keys at positions >= valid are masked out. s0 [D * M] and z0 [D] are the state before the first
  // position; if empty, they are zero.
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
        weight_(length, 1.0),
        s0_(std::move(s0)),
        z0_(std::move(z0)) {
    for (double& x : phi_q_) x = Phi(x);
    for (size_t i = 0; i < phi_k_.size(); ++i) phi_k_[i] = i / d_ < valid_ ? Phi(k_[i]) : 0.0;
    s0_.resize(d_ * m_);
    z0_.resize(d_);
    s_ = s0_, z_ = z0_;
    for (size_t i = 0; i < length_; ++i) {
      for (size_t f = 0; f < d_; ++f) {
        z_[f] += phi_k_[i * d_ + f];
        if (i >= valid_) continue;
        for (size_t c = 0; c < m_; ++c) s_[f * m_ + c] += phi_k_[i * d_ + f] * v_[i * m_ + c];
      }
      if (options_.normalize) {
        double den = options_.eps;
        for (size_t f = 0; f < d_; ++f) den += phi_q_[i * d_ + f] * z_[f];
        weight_[i] = den == 0 ? 0 : 1 / den;
      }
      for (size_t c = 0; c < m_; ++c) {
        double sum = 0;
        for (size_t f = 0; f < d_; ++f) sum += phi_q_[i * d_ + f] * s_[f * m_ + c];
        out_[i * m_ + c] = sum * weight_[i];
      }
    }
  }

  Vector Out(size_t i) const { return Row(out_, i, m_); }
  const Vector& S() const { return s_; }
  const Vector& Z() const { return z_; }

  // grad_out is [L * M]. grad_s is [D * M] and grad_z is [D]; if empty, they are zero.
  //
  // The gradient of the loss with respect to phi(q_i) . phi(k_j) is
  // grad_out_i . (v_j - out_i) / den_i or, without `normalize`, grad_out_i . v_j.
  Vector GradQ(size_t i, const Vector& grad_out) const {
    Vector grad(d_);
    for (size_t j = 0; j <= i && j < valid_; ++j) {
      const double weight = WeightGrad(i, j, grad_out);
      for (size_t f = 0; f < d_; ++f) grad[f] += weight * phi_k_[j * d_ + f];
    }
    const double grad_den = DenominatorGrad(i, grad_out);
    for (size_t f = 0; f < d_; ++f) {
      for (size_t c = 0; c < m_; ++c) {
        grad[f] += s0_[f * m_ + c] * grad_out[i * m_ + c] * weight_[i];
      }
      grad[f] += z0_[f] * grad_den;
      grad[f] *= PhiDerivative(q_[i * d_ + f]);
    }
    return grad;
  }
  Vector GradK(size_t j, const Vector& grad_out, const Vector& grad_s = {},
               const Vector& grad_z = {}) const {
    Vector grad(d_);
    if (j >= valid_) return grad;
    for (size_t i = j; i < length_; ++i) {
      const double weight = WeightGrad(i, j, grad_out);
      for (size_t f = 0; f < d_; ++f) grad[f] += weight * phi_q_[i * d_ + f];
    }
    for (size_t f = 0; f < d_; ++f) {
      for (size_t c = 0; c < m_ && !grad_s.empty(); ++c) {
        grad[f] += grad_s[f * m_ + c] * v_[j * m_ + c];
      }
      if (!grad_z.empty()) grad[f] += grad_z[f];
      grad[f] *= PhiDerivative(k_[j * d_ + f]);
    }
    return grad;
  }
  Vector GradV(size_t j, const Vector& grad_out, const Vector& grad_s = {}) const {
    Vector grad(m_);
    for (size_t i = j; i < length_; ++i) {
      double weight = 0;
      for (size_t f = 0; f < d_; ++f) weight += phi_q_[i * d_ + f] * phi_k_[j * d_ + f];
      for (size_t c = 0; c < m_; ++c) grad[c] += weight * weight_[i] * grad_out[i * m_ + c];
    }
    for (size_t f = 0; f < d_ && !grad_s.empty(); ++f) {
      for (size_t c = 0; c < m_; ++c) grad[c] += phi_k_[j * d_ + f] * grad_s[f * m_ + c];
    }
    return grad;
  }
  // Gradients of the state before the first position: GradS0() is [D * M], GradZ0() is [D].
  Vector GradS0(const Vector& grad_out, Vector grad_s = {}) const {
    grad_s.resize(d_ * m_);
    for (size_t i = 0; i < length_; ++i) {
      for (size_t f = 0; f < d_; ++f) {
        for (size_t c = 0; c < m_; ++c) {
          grad_s[f * m_ + c] += phi_q_[i * d_ + f] * weight_[i] * grad_out[i * m_ + c];
        }
      }
    }
    return grad_s;
  }
  Vector GradZ0(const Vector& grad_out, Vector grad_z = {}) const {
    grad_z.resize(d_);
    for (size_t i = 0; i < length_; ++i) {
      const double grad_den = DenominatorGrad(i, grad_out);
      for (size_t f = 0; f < d_; ++f) grad_z[f] += phi_q_[i * d_ + f] * grad_den;
    }
    return grad_z;
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
      const double center = options_.normalize ? out_[i * m_ + c] : 0.0;
      sum += grad_out[i * m_ + c] * (v_[j * m_ + c] - center);
    }
    return sum * weight_[i];
  }
  double DenominatorGrad(size_t i, const Vector& grad_out) const {
    if (!options_.normalize) return 0;
    double sum = 0;
    for (size_t c = 0; c < m_; ++c) sum -= grad_out[i * m_ + c] * out_[i * m_ + c];
    return sum * weight_[i];
  }
  static Vector Row(const Vector& all, size_t i, size_t width) {
    return Vector(all.begin() + static_cast<ptrdiff_t>(i * width),
                  all.begin() + static_cast<ptrdiff_t>((i + 1) * width));
  }

  size_t length_, d_, m_, valid_;
  CausalLinearOptions options_;
  Vector q_, k_, v_, phi_q_, phi_k_, out_;
  Vector weight_;  // 1 / denominator
  Vector s0_, z0_, s_, z_;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_REF_H_
