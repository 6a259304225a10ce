// Reference for linear_attention.h in plain double precision, for one head. It computes phi(q_i) .
// phi(k_j) for each pair of positions, without the sums s and z.
//
//   LinearAttentionRef head(options, L, S, D, M, q, k, v, valid);   // in double, dense
//   head.out, head.GradientsOf(grad_out).q
#ifndef LINNET_KERNELS_LINEAR_ATTENTION_REF_H_
#define LINNET_KERNELS_LINEAR_ATTENTION_REF_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "linnet/kernels/linear_attention.h"

namespace linnet::kernels {

struct LinearAttentionRef {
  using Vector = std::vector<double>;
  struct Gradients {
    Vector q, k, v;
  };

  LinearAttentionRef(const LinearAttentionOptions& options, size_t queries, size_t keys, size_t dim,
                     size_t value_dim, const Vector& q, const Vector& k, const Vector& v,
                     size_t valid)
      : options(options),
        l(queries),
        s(keys),
        d(dim),
        m(value_dim),
        valid(valid),
        phi_q(q),
        phi_k(k),
        v(v),
        slope_q(q.size(), 1.0),
        slope_k(k.size(), 1.0),
        out(l * m),
        weight(l, 1.0) {
    Map(phi_q, slope_q);
    Map(phi_k, slope_k);
    for (size_t i = 0; i < l; ++i) {
      double den = options.eps;
      for (size_t j = 0; j < valid; ++j) den += Similarity(i, j);
      if (options.normalize) weight[i] = den == 0 ? 0 : 1 / den;
      for (size_t j = 0; j < valid; ++j) {
        for (size_t c = 0; c < m; ++c)
          out[i * m + c] += weight[i] * Similarity(i, j) * v[j * m + c];
      }
    }
  }

  Gradients GradientsOf(const Vector& grad_out) const {
    Gradients grad{Vector(l * d), Vector(s * d), Vector(s * m)};
    for (size_t i = 0; i < l; ++i) {
      double through = 0;  // through the denominator: -(g . out) / den
      for (size_t c = 0; c < m; ++c) through -= grad_out[i * m + c] * out[i * m + c] * weight[i];
      if (!options.normalize) through = 0;
      for (size_t j = 0; j < valid; ++j) {
        double similarity = through;  // gradient of phi(q_i) . phi(k_j)
        for (size_t c = 0; c < m; ++c) {
          similarity += weight[i] * grad_out[i * m + c] * v[j * m + c];
          grad.v[j * m + c] += weight[i] * grad_out[i * m + c] * Similarity(i, j);
        }
        for (size_t f = 0; f < d; ++f) {
          grad.q[i * d + f] += similarity * phi_k[j * d + f] * slope_q[i * d + f];
          grad.k[j * d + f] += similarity * phi_q[i * d + f] * slope_k[j * d + f];
        }
      }
    }
    return grad;
  }

  double Similarity(size_t i, size_t j) const {
    double sum = 0;
    for (size_t f = 0; f < d; ++f) sum += phi_q[i * d + f] * phi_k[j * d + f];
    return sum;
  }
  void Map(Vector& x, Vector& slope) const {
    if (options.feature_map == FeatureMap::kIdentity) return;
    for (size_t i = 0; i < x.size(); ++i) {
      slope[i] = x[i] > 0 ? 1 : std::exp(x[i]);
      x[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
    }
  }

  LinearAttentionOptions options;
  size_t l, s, d, m, valid;  // valid: number of keys that are not masked out
  // slope_q, slope_k: derivatives of phi at q and k. weight [l]: 1 / denominator, or 1 if there is
  // no denominator.
  Vector phi_q, phi_k, v, slope_q, slope_k, out, weight;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_ATTENTION_REF_H_
