// Reference for lsh_attention.h in plain double precision, for one head. It computes the published
// sum, round by round and pair by pair.
//
//   LshAttentionRef head({.length = L, ...}, options, q, v, valid, buckets);   // in double
//   head.Out()              // [L * M]
//   head.GradQ(grad_out)    // [L * D], for the loss sum(out * grad_out)
#ifndef LINNET_KERNELS_LSH_ATTENTION_REF_H_
#define LINNET_KERNELS_LSH_ATTENTION_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "linnet/kernels/lsh_attention.h"

namespace linnet::kernels {

// The bucket of a row under one round's planes [D, half], and the margin of that choice.
struct LshBucketRef {
  size_t bucket = 0;
  double margin = 0;  // the largest of [q R; -q R] minus the second largest

  LshBucketRef(const double* q, const float* planes, size_t dim, size_t half) {
    if (half == 0) return;
    std::vector<double> x(2 * half);
    for (size_t c = 0; c < half; ++c) {
      for (size_t k = 0; k < dim; ++k) x[c] += q[k] * static_cast<double>(planes[k * half + c]);
      x[half + c] = -x[c];
    }
    bucket = static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin());
    std::vector<double> sorted = x;
    std::sort(sorted.rbegin(), sorted.rend());
    margin = sorted[0] - sorted[1];
  }
};

class LshAttentionRef {
 public:
  using Vector = std::vector<double>;

  // q [L * D] and v [L * M] of one head; positions from `valid` on are not read. buckets
  // [R][valid]: the bucket of each position.
  LshAttentionRef(const LshAttentionShape& shape, const LshAttentionOptions& options, Vector q,
                  Vector v, size_t valid, const std::vector<std::vector<size_t>>& buckets)
      : l_(shape.length),
        d_(shape.dim),
        m_(shape.value_dim),
        valid_(valid),
        scale_(1 / std::sqrt(static_cast<double>(shape.dim))),
        q_(std::move(q)),
        v_(std::move(v)),
        k_(l_ * d_),
        norm_(l_),
        p_(valid * valid),
        out_(l_ * m_) {
    for (size_t i = 0; i < valid; ++i) {
      double square = 0;
      for (size_t c = 0; c < d_; ++c) square += q_[i * d_ + c] * q_[i * d_ + c];
      norm_[i] = std::sqrt(std::max(square, 1e-24));
      for (size_t c = 0; c < d_; ++c) k_[i * d_ + c] = q_[i * d_ + c] / norm_[i];
    }
    const size_t rounds = buckets.size();
    std::vector<std::vector<size_t>> chunk(rounds, std::vector<size_t>(valid));
    for (size_t r = 0; r < rounds; ++r) {
      std::vector<size_t> order(valid);
      for (size_t i = 0; i < valid; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return buckets[r][a] < buckets[r][b]; });
      for (size_t place = 0; place < valid; ++place) chunk[r][order[place]] = place / options.chunk;
    }
    const auto sees = [&](size_t r, size_t i, size_t j) {
      return i != j && buckets[r][i] == buckets[r][j] && chunk[r][i] >= chunk[r][j] &&
             chunk[r][i] - chunk[r][j] <= 1 && (!options.causal || j <= i);
    };
    for (size_t i = 0; i < valid; ++i) {
      // scores[r][j]: the score minus the log of the number of rounds in which i sees j; -inf if i
      // does not see j in round r.
      const double nothing = -std::numeric_limits<double>::infinity();
      std::vector<Vector> scores(rounds, Vector(valid, nothing));
      double largest = nothing;
      for (size_t j = 0; j < valid; ++j) {
        size_t times = 0;
        for (size_t r = 0; r < rounds; ++r) times += sees(r, i, j);
        if (times == 0) continue;
        const double score = Score(i, j) - std::log(static_cast<double>(times));
        for (size_t r = 0; r < rounds; ++r) {
          if (sees(r, i, j)) scores[r][j] = score;
        }
        largest = std::max(largest, score);
      }
      if (largest == nothing) {
        p_[i * valid + i] = 1;
      } else {
        // p is each round's softmax, weighted by the round's share of the total denominator.
        Vector sums(rounds);
        double all = 0;
        for (size_t r = 0; r < rounds; ++r) {
          for (const double score : scores[r]) sums[r] += std::exp(score - largest);
          all += sums[r];
        }
        for (size_t r = 0; r < rounds; ++r) {
          for (size_t j = 0; j < valid && sums[r] > 0; ++j) {
            p_[i * valid + j] += std::exp(scores[r][j] - largest) / sums[r] * (sums[r] / all);
          }
        }
      }
      for (size_t j = 0; j < valid; ++j) {
        for (size_t c = 0; c < m_; ++c) out_[i * m_ + c] += p_[i * valid + j] * v_[j * m_ + c];
      }
    }
  }

  const Vector& Out() const { return out_; }

  // grad_out is [L * M].
  Vector GradV(const Vector& grad_out) const {
    Vector grad(l_ * m_);
    for (size_t i = 0; i < valid_; ++i) {
      for (size_t j = 0; j < valid_; ++j) {
        for (size_t c = 0; c < m_; ++c) {
          grad[j * m_ + c] += p_[i * valid_ + j] * grad_out[i * m_ + c];
        }
      }
    }
    return grad;
  }

  Vector GradQ(const Vector& grad_out) const {
    Vector grad(l_ * d_), grad_k(l_ * d_);
    for (size_t i = 0; i < valid_; ++i) {
      for (size_t j = 0; j < valid_; ++j) {
        if (i == j) continue;
        double ds = 0;
        for (size_t c = 0; c < m_; ++c) {
          ds += grad_out[i * m_ + c] * (v_[j * m_ + c] - out_[i * m_ + c]);
        }
        ds *= p_[i * valid_ + j] * scale_;
        for (size_t c = 0; c < d_; ++c) {
          grad[i * d_ + c] += ds * k_[j * d_ + c];
          grad_k[j * d_ + c] += ds * q_[i * d_ + c];
        }
      }
    }
    for (size_t j = 0; j < valid_; ++j) {
      double along = 0;
      for (size_t c = 0; c < d_; ++c) along += k_[j * d_ + c] * grad_k[j * d_ + c];
      if (norm_[j] <= 1e-12) along = 0;
      for (size_t c = 0; c < d_; ++c) {
        grad[j * d_ + c] += (grad_k[j * d_ + c] - along * k_[j * d_ + c]) / norm_[j];
      }
    }
    return grad;
  }

 private:
  double Score(size_t i, size_t j) const {
    double sum = 0;
    for (size_t c = 0; c < d_; ++c) sum += q_[i * d_ + c] * k_[j * d_ + c];
    return scale_ * sum;
  }

  size_t l_, d_, m_, valid_;
  double scale_;
  Vector q_, v_, k_, norm_, p_, out_;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LSH_ATTENTION_REF_H_
