// Reference for scan.h in plain double precision, for one head: the recurrence, one position at a
// time, and its gradients, accumulated in reverse over stored states.
//
//   ScanSequence x{.length = L, .dim = D, .value_dim = M, .options = options};
//   x.q = ..., x.k = ..., x.v = ...;                      // [L * D], [L * D], [L * M]
//   ScanRef ref(x);
//   ref.out(), ref.s(), ref.z()                           // [L * M], [D * M], [D]
//   ScanSequence grad = ref.Gradients(grad_out, grad_s, grad_z);
#ifndef LINNET_KERNELS_SCAN_REF_H_
#define LINNET_KERNELS_SCAN_REF_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "linnet/kernels/scan.h"

namespace linnet::kernels {

// The inputs of one head, or their gradients.
struct ScanSequence {
  using Vector = std::vector<double>;

  size_t length = 0, dim = 0, value_dim = 0;
  size_t valid = SIZE_MAX;  // positions >= valid change nothing
  ScanOptions options = {};
  Vector q = {}, k = {}, v = {}, decay = {}, erase = {}, write = {};
  Vector s0 = {}, z0 = {};  // [D * M], [D]; empty: zero
};

class ScanRef {
 public:
  using Vector = ScanSequence::Vector;

  explicit ScanRef(ScanSequence x)
      : x_(std::move(x)),
        d_(x_.dim),
        m_(x_.value_dim),
        width_(x_.options, d_, m_),
        out_(x_.length * m_),
        weight_(x_.length, 1.0) {
    x_.s0.resize(d_ * m_);
    x_.z0.resize(d_);
    s_ = x_.s0, z_ = x_.z0;
    for (size_t t = 0; t < x_.length; ++t) {
      Step(t, s_, z_);
      Read(t);
    }
  }

  const Vector& out() const { return out_; }
  const Vector& s() const { return s_; }
  const Vector& z() const { return z_; }

  // Gradients of sum(out * grad_out) + sum(s() * grad_s) + sum(z() * grad_z); an empty vector
  // counts as zeros. Stores the states of all positions.
  ScanSequence Gradients(const Vector& grad_out, Vector grad_s = {}, Vector grad_z = {}) const {
    ScanSequence grad = x_;
    for (Vector* x : {&grad.q, &grad.k, &grad.v, &grad.decay, &grad.erase, &grad.write}) {
      x->assign(x->size(), 0.0);
    }
    std::vector<Vector> s(x_.length + 1, x_.s0), z(x_.length + 1, x_.z0);
    for (size_t t = 0; t < x_.length; ++t) {
      s[t + 1] = s[t], z[t + 1] = z[t];
      Step(t, s[t + 1], z[t + 1]);
    }
    grad_s.resize(d_ * m_);
    grad_z.resize(d_);
    for (size_t t = x_.length; t-- > 0;) {
      ReadBackward(t, s[t + 1], z[t + 1], grad_out, grad, grad_s, grad_z);
      if (t < x_.valid) StepBackward(t, s[t], z[t], grad, grad_s, grad_z);
    }
    grad.s0 = grad_s, grad.z0 = grad_z;
    return grad;
  }

 private:
  double Decay(size_t t, size_t d) const {
    if (width_.decay == 0) return 1;
    return std::exp(x_.decay[t * width_.decay + (width_.decay == 1 ? 0 : d)]);
  }
  // For the delta rules, Erase() is the factor of k_d when P is read, and Strength() the factor of
  // v_m when y is written.
  double Erase(size_t t, size_t d) const {
    return x_.erase[t * width_.erase + (x_.options.write == ScanWrite::kDelta ? 0 : d)];
  }
  double Strength(size_t t, size_t m) const {
    return x_.options.write == ScanWrite::kDelta ? x_.erase[t] : x_.write[t * m_ + m];
  }
  bool IsDelta() const {
    return x_.options.write == ScanWrite::kDelta || x_.options.write == ScanWrite::kTwoSided;
  }

  // The vector y [M] that position t writes, from the state s before the position and from p, this
  // state after its decay. For kAdd, y is v.
  Vector Solve(size_t t, const Vector& s, const Vector& p) const {
    Vector y(m_);
    for (size_t m = 0; m < m_; ++m) {
      if (x_.options.write == ScanWrite::kAdd) y[m] = x_.v[t * m_ + m];
      if (IsDelta()) {
        y[m] = Strength(t, m) * x_.v[t * m_ + m];
        for (size_t d = 0; d < d_; ++d) y[m] -= p[d * m_ + m] * Erase(t, d) * x_.k[t * d_ + d];
      }
      if (x_.options.write == ScanWrite::kRwkv7) {
        for (size_t d = 0; d < d_; ++d) y[m] += s[d * m_ + m] * x_.erase[t * d_ + d];
      }
    }
    return y;
  }
  Vector Decayed(size_t t, const Vector& s) const {
    Vector p = s;
    for (size_t i = 0; i < p.size(); ++i) p[i] *= Decay(t, i / m_);
    return p;
  }

  void Step(size_t t, Vector& s, Vector& z) const {
    if (t >= x_.valid) return;
    const Vector p = Decayed(t, s), y = Solve(t, s, p);
    const bool two = x_.options.write == ScanWrite::kRwkv7;
    for (size_t d = 0; d < d_; ++d) {
      const double k = x_.k[t * d_ + d];
      for (size_t m = 0; m < m_; ++m) {
        s[d * m_ + m] = p[d * m_ + m] + (two ? x_.write[t * d_ + d] : k) * y[m];
        if (two) s[d * m_ + m] += k * x_.v[t * m_ + m];
      }
      z[d] = Decay(t, d) * z[d] + k;
    }
  }

  void Read(size_t t) {
    if (x_.options.normalize) {
      double den = x_.options.eps;
      for (size_t d = 0; d < d_; ++d) den += x_.options.scale * x_.q[t * d_ + d] * z_[d];
      weight_[t] = den == 0 ? 0 : 1 / den;
    }
    for (size_t m = 0; m < m_; ++m) {
      double sum = 0;
      for (size_t d = 0; d < d_; ++d) {
        sum += x_.options.scale * x_.q[t * d_ + d] * s_[d * m_ + m];
      }
      out_[t * m_ + m] = sum * weight_[t];
    }
  }

  // Backward of Read(): from the gradient of out_t, writes the gradient of q_t and adds to grad_s
  // and grad_z, the gradients of the state after position t.
  void ReadBackward(size_t t, const Vector& s, const Vector& z, const Vector& grad_out,
                    ScanSequence& grad, Vector& grad_s, Vector& grad_z) const {
    const double scale = x_.options.scale;
    double grad_den = 0;
    for (size_t m = 0; m < m_ && x_.options.normalize; ++m) {
      grad_den -= grad_out[t * m_ + m] * out_[t * m_ + m] * weight_[t];
    }
    for (size_t d = 0; d < d_; ++d) {
      const double q = scale * x_.q[t * d_ + d];
      double grad_q = z[d] * grad_den;
      for (size_t m = 0; m < m_; ++m) {
        const double g = grad_out[t * m_ + m] * weight_[t];
        grad_q += s[d * m_ + m] * g;
        grad_s[d * m_ + m] += q * g;
      }
      grad_z[d] += q * grad_den;
      grad.q[t * d_ + d] = scale * grad_q;
    }
  }

  // Backward of Step(): turns grad_s and grad_z, the gradients of the state after position t, into
  // the gradients of s and z, the state before it, and adds to the gradients of the position's
  // inputs.
  void StepBackward(size_t t, const Vector& s, const Vector& z, ScanSequence& grad, Vector& grad_s,
                    Vector& grad_z) const {
    const Vector p = Decayed(t, s), y = Solve(t, s, p);
    const bool two = x_.options.write == ScanWrite::kRwkv7;
    Vector grad_y(m_), grad_p = grad_s;
    for (size_t d = 0; d < d_; ++d) {
      const double k = x_.k[t * d_ + d];
      for (size_t m = 0; m < m_; ++m) {
        const double g = grad_s[d * m_ + m];
        grad_y[m] += g * (two ? x_.write[t * d_ + d] : k);
        (two ? grad.write : grad.k)[t * d_ + d] += g * y[m];
        if (two) grad.k[t * d_ + d] += g * x_.v[t * m_ + m];
        if (two) grad.v[t * m_ + m] += g * k;
      }
      if (x_.options.normalize) grad.k[t * d_ + d] += grad_z[d];
    }
    Vector grad_before(d_ * m_);
    SolveBackward(t, s, p, grad_y, grad, grad_p, grad_before);
    for (size_t d = 0; d < d_; ++d) {
      double grad_decay = x_.options.normalize ? Decay(t, d) * z[d] * grad_z[d] : 0;
      for (size_t m = 0; m < m_; ++m) {
        grad_decay += p[d * m_ + m] * grad_p[d * m_ + m];
        grad_s[d * m_ + m] = Decay(t, d) * grad_p[d * m_ + m] + grad_before[d * m_ + m];
      }
      grad_z[d] *= Decay(t, d);
      if (width_.decay > 0) {
        grad.decay[t * width_.decay + (width_.decay == 1 ? 0 : d)] += grad_decay;
      }
    }
  }

  // Backward of Solve(): adds to grad_p and grad_before, the gradients of p and s.
  void SolveBackward(size_t t, const Vector& s, const Vector& p, const Vector& grad_y,
                     ScanSequence& grad, Vector& grad_p, Vector& grad_before) const {
    for (size_t m = 0; m < m_; ++m) {
      const double g = grad_y[m], v = x_.v[t * m_ + m];
      if (x_.options.write == ScanWrite::kAdd) grad.v[t * m_ + m] = g;
      if (IsDelta()) {
        grad.v[t * m_ + m] = Strength(t, m) * g;
        (width_.write ? grad.write[t * m_ + m] : grad.erase[t]) += v * g;
      }
      for (size_t d = 0; d < d_ && IsDelta(); ++d) {
        const double k = x_.k[t * d_ + d], read = -p[d * m_ + m] * g;
        grad.k[t * d_ + d] += Erase(t, d) * read;
        grad.erase[width_.erase == 1 ? t : t * d_ + d] += k * read;
        grad_p[d * m_ + m] -= Erase(t, d) * k * g;
      }
      for (size_t d = 0; d < d_ && x_.options.write == ScanWrite::kRwkv7; ++d) {
        grad.erase[t * d_ + d] += s[d * m_ + m] * g;
        grad_before[d * m_ + m] += x_.erase[t * d_ + d] * g;
      }
    }
  }

  ScanSequence x_;
  size_t d_, m_;
  ScanWidths width_;
  Vector out_;
  Vector weight_;  // 1 / denominator
  Vector s_, z_;
};

// Reference of the elementwise scan, for one channel of one sequence.
struct ChannelScanRef {
  using Vector = std::vector<double>;

  // x, g: [L]. Gradients are those of sum(out * grad_out) + out.back() * grad_h.
  ChannelScanRef(const Vector& x, const Vector& g, double h0, const Vector& grad_out, double grad_h)
      : out(x.size()), grad_x(x.size()), grad_g(x.size()), h(h0), grad_h0(grad_h) {
    for (size_t t = 0; t < x.size(); ++t) out[t] = h = std::exp(g[t]) * h + x[t];
    for (size_t t = x.size(); t-- > 0;) {
      const double before = t > 0 ? out[t - 1] : h0;
      grad_x[t] = grad_h0 += grad_out[t];
      grad_g[t] = grad_h0 * std::exp(g[t]) * before;
      grad_h0 *= std::exp(g[t]);
    }
  }

  Vector out, grad_x, grad_g;
  double h, grad_h0;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SCAN_REF_H_
