// For tests: a head of RWKV-7's time mixing (rwkv7.h) in plain loops over doubles, position by
// position. It follows the definition, not the code under test.
//
//   std::vector<std::vector<double>> out = Rwkv7Out(spec, head);   // GatedHead of gated_ref.h
#ifndef LINNET_MODEL_RWKV7_REF_H_
#define LINNET_MODEL_RWKV7_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "linnet/model/gated_ref.h"

namespace linnet {

class Rwkv7Oracle {
 public:
  using Row = GatedHead::Row;
  using Rows = GatedHead::Rows;

  Rwkv7Oracle(const MixerSpec& spec, const GatedHead& head)
      : head_(head),
        keys_(static_cast<size_t>(spec.query_dim)),
        values_(static_cast<size_t>(spec.value_dim)),
        reads_(spec.value_rank > 0) {}

  Rows Out() const {
    Rows out, s(keys_, Row(values_));
    for (size_t t = 0; t < head_.in.at("receptance").size(); ++t) out.push_back(Step(t, s));
    return out;
  }

 private:
  static double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static double Tanh(double x) { return std::tanh(x); }
  static double Same(double x) { return x; }

  // Element i of this head's part of a tensor with `width` elements per head.
  double Own(const std::string& name, size_t width, size_t i) const {
    return head_.own->at(name)[head_.index * width + i];
  }
  // This head's columns of the low-rank product act(name1) name2.
  Row LowRank(const std::string& name, size_t width, size_t t, double (*act)(double)) const {
    const Row &x = head_.in.at(name + "1")[t], &weight = head_.own->at(name + "2");
    const size_t columns = weight.size() / x.size();
    Row y(width);
    for (size_t i = 0; i < width; ++i) {
      for (size_t r = 0; r < x.size(); ++r) {
        y[i] += act(x[r]) * weight[r * columns + head_.index * width + i];
      }
    }
    return y;
  }

  Row Step(size_t t, Rows& s) const {
    const Row& r = head_.in.at("receptance")[t];
    Row k = head_.in.at("key")[t], v = head_.in.at("value")[t];
    const Row w = LowRank("w", keys_, t, Tanh), a = LowRank("a", keys_, t, Same),
              g = LowRank("g", values_, t, Sigmoid);
    if (reads_) {
      const Row share = LowRank("v", values_, t, Same);
      for (size_t m = 0; m < values_; ++m) {
        v[m] += (head_.in.at("v_first")[t][m] - v[m]) * Sigmoid(Own("v0", values_, m) + share[m]);
      }
    }
    Row removal(keys_), rate(keys_), decay(keys_);
    double length = 0, bonus = 0;
    for (size_t d = 0; d < keys_; ++d) {
      removal[d] = k[d] * Own("k_k", keys_, d);
      length += removal[d] * removal[d];
      rate[d] = Sigmoid(Own("a0", keys_, d) + a[d]);
      decay[d] = std::exp(-std::exp(-0.5) * Sigmoid(Own("w0", keys_, d) + w[d]));
      k[d] *= 1 + (rate[d] - 1) * Own("k_a", keys_, d);
      bonus += r[d] * k[d] * Own("r_k", keys_, d);
    }
    for (double& x : removal) x /= std::max(std::sqrt(length), 1e-12);
    Row out(values_);
    for (size_t m = 0; m < values_; ++m) {
      double removed = 0;
      for (size_t d = 0; d < keys_; ++d) removed -= s[d][m] * removal[d];
      for (size_t d = 0; d < keys_; ++d) {
        s[d][m] = decay[d] * s[d][m] + removal[d] * rate[d] * removed + k[d] * v[m];
        out[m] += s[d][m] * r[d];
      }
    }
    double mean = 0, variance = 0;
    for (const double x : out) mean += x / static_cast<double>(values_);
    for (const double x : out) variance += (x - mean) * (x - mean) / static_cast<double>(values_);
    for (size_t m = 0; m < values_; ++m) {
      const double normed = (out[m] - mean) / std::sqrt(variance + 64e-5);
      out[m] = normed * Own("ln_x.weight", values_, m) + Own("ln_x.bias", values_, m);
      out[m] = (out[m] + bonus * v[m]) * g[m];
    }
    return out;
  }

  const GatedHead& head_;
  const size_t keys_, values_;
  const bool reads_;  // mixes in the values of an earlier layer
};

inline GatedHead::Rows Rwkv7Out(const MixerSpec& spec, const GatedHead& head) {
  return Rwkv7Oracle(spec, head).Out();
}

}  // namespace linnet

#endif  // LINNET_MODEL_RWKV7_REF_H_
