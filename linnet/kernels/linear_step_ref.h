// Reference for linear_step.h in plain double precision, for one head of one sequence.
//
//   LinearStepRef head(F, M, options, /*narrow=*/false);
//   std::vector<double> out = head.Step(q, k, v);     // [M]; phi is applied to q and k
//
// If the state is narrow, the reference rounds to bf16 the numbers that the kernel rounds: the
// waiting keys and values, and the leading part of s, which positions read until the next fold. The
// sums themselves stay in double.
#ifndef LINNET_KERNELS_LINEAR_STEP_REF_H_
#define LINNET_KERNELS_LINEAR_STEP_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/narrow_linear_ref.h"

namespace linnet::kernels {

class LinearStepRef {
 public:
  using Vector = std::vector<double>;

  LinearStepRef(size_t dim, size_t value_dim, const CausalLinearOptions& options, bool narrow,
                double floor = 0)
      : f_(dim),
        m_(value_dim),
        options_(options),
        narrow_(narrow),
        floor_(floor),
        s_(dim * value_dim),
        z_(dim),
        read_(s_),
        read_z_(z_) {}

  Vector Step(Vector q, Vector k, Vector v) {
    for (double& x : q) x = Phi(x);
    for (double& x : k) x = Row(Phi(x));
    for (double& x : v) x = Row(x);
    keys_.push_back(k), values_.push_back(v);
    Vector out(m_);
    double den = options_.eps;
    for (size_t f = 0; f < f_; ++f) {
      den += q[f] * read_z_[f];
      for (size_t c = 0; c < m_; ++c) out[c] += q[f] * read_[f * m_ + c];
    }
    for (size_t i = 0; i < keys_.size(); ++i) {
      double weight = 0;
      for (size_t f = 0; f < f_; ++f) weight += q[f] * keys_[i][f];
      den += weight;
      for (size_t c = 0; c < m_; ++c) out[c] += weight * values_[i][c];
    }
    if (floor_ > 0) {
      double squares = 0;
      for (size_t f = 0; f < f_; ++f) {
        double z = read_z_[f];
        for (const Vector& key : keys_) z += key[f];
        squares += z * z;
      }
      den = std::max(den - options_.eps, floor_ * std::sqrt(squares));
    }
    const double scale = !options_.normalize ? 1 : den == 0 ? 0 : 1 / den;
    for (double& x : out) x *= scale;
    if (keys_.size() == LinearStepShape::RecentKeys(narrow_)) Fold();
    return out;
  }

  // Adds the waiting keys and values to the sums.
  void Fold() {
    for (size_t i = 0; i < keys_.size(); ++i) Add(keys_[i], values_[i]);
    keys_.clear(), values_.clear();
    Show();
  }

  // Folds, then adds the keys and values of a prefix to the sums directly.
  void Extend(const std::vector<Vector>& keys, const std::vector<Vector>& values) {
    Fold();
    for (size_t i = 0; i < keys.size(); ++i) {
      Vector k = keys[i];
      for (double& x : k) x = Phi(x);
      Add(k, values[i]);
    }
    Show();
  }

  const Vector& S() const { return s_; }  // without the waiting keys
  const Vector& Z() const { return z_; }

 private:
  double Phi(double x) const {
    if (options_.feature_map == FeatureMap::kIdentity) return x;
    return x >= 0 ? x + 1 : std::exp(x);
  }
  double Row(double x) const { return narrow_ ? RoundedToBFloat16(static_cast<float>(x)) : x; }
  void Add(const Vector& k, const Vector& v) {
    for (size_t f = 0; f < f_; ++f) {
      z_[f] += k[f];
      for (size_t c = 0; c < m_; ++c) s_[f * m_ + c] += k[f] * v[c];
    }
  }
  // Lets steps read the current sums.
  void Show() {
    std::transform(s_.begin(), s_.end(), read_.begin(), [&](double x) { return Row(x); });
    read_z_ = z_;
  }

  size_t f_, m_;
  CausalLinearOptions options_;
  bool narrow_;
  double floor_;
  // s_, z_: the sums. read_, read_z_: the sums as of the last fold, which steps read; read_ is
  // rounded if narrow_.
  Vector s_, z_, read_, read_z_;
  std::vector<Vector> keys_, values_;
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_STEP_REF_H_
