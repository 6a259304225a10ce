// For tests: a head of a gated recurrence (gated.h) in plain loops over doubles, position by
// position. It follows the definition, not the code under test.
//
//   GatedHead head{.in = {{"q_proj", q}, ...}, .own = {{"A_log", a}, ...}, .index = h};
//   std::vector<std::vector<double>> out = GatedOut(spec, head);   // [positions][V]
#ifndef LINNET_MODEL_GATED_REF_H_
#define LINNET_MODEL_GATED_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "linnet/model/mixer.h"

namespace linnet {

struct GatedHead {
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  // By the projection's name: the head's columns, or the columns that all heads share.
  std::map<std::string, Rows> in = {};
  std::map<std::string, Row> own = {};  // GatedTensors() of all heads, row-major
  size_t index = 0;                     // in its layer
};

class GatedOracle {
 public:
  using Row = GatedHead::Row;
  using Rows = GatedHead::Rows;

  GatedOracle(const MixerSpec& spec, const GatedHead& head)
      : spec_(spec),
        form_(FindMixer(spec.kind).gated(spec)),
        head_(head),
        keys_(static_cast<size_t>(spec.query_dim)),
        values_(static_cast<size_t>(spec.value_dim)) {}

  Rows Out() const {
    Rows out, s(keys_, Row(values_));
    for (size_t t = 0; t < head_.in.at("q_proj").size(); ++t) {
      Row q = Vector("q", keys_, t), k = Vector("k", keys_, t);
      const Row v = Vector("v", values_, t);
      if (form_.rotary) q = Rotated(q, t), k = Rotated(k, t);
      if (form_.delta()) q = Normalized(q), k = Normalized(k);
      const Row g = LogDecay(t);
      for (size_t d = 0; d < keys_; ++d) {
        for (double& x : s[d]) x *= std::exp(g[d]);
      }
      Row add = v;
      if (form_.delta()) {
        const double most = spec_.negative_eigenvalues ? 2 : 1;
        const Row& erase = In("b_proj", t);  // a number, or one for each key channel
        for (size_t m = 0; m < values_; ++m) {
          add[m] *= form_.write == GatedWrite::kTwoSided ? Sigmoid(In("w_proj", t)[m])
                                                         : most * Sigmoid(erase[0]);
          for (size_t d = 0; d < keys_; ++d) {
            add[m] -= most * Sigmoid(erase[d % erase.size()]) * k[d] * s[d][m];
          }
        }
      }
      Row read(values_);
      const double scale = 1 / std::sqrt(static_cast<float>(keys_));  // in fp32, as the kernels
      for (size_t d = 0; d < keys_; ++d) {
        for (size_t m = 0; m < values_; ++m) {
          s[d][m] += k[d] * add[m];
          read[m] += scale * q[d] * s[d][m];
        }
      }
      out.push_back(Finished(read, t));
    }
    return out;
  }

 private:
  static double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static double Softplus(double x) {
    return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  }

  const Row& In(const std::string& name, size_t t) const { return head_.in.at(name)[t]; }
  const Row& Own(const std::string& name) const { return head_.own.at(name); }

  // The query, key or value of a position.
  Row Vector(const std::string& name, size_t size, size_t t) const {
    if (form_.convolution == 0) return In(name + "_proj", t);
    const auto width = static_cast<size_t>(form_.convolution);
    const size_t first =
        head_.index / (name == "v" ? 1 : static_cast<size_t>(form_.readers)) * size;
    Row y(size);
    for (size_t c = 0; c < size; ++c) {
      for (size_t back = 0; back < width && back <= t; ++back) {
        y[c] += Own(name + "_conv1d.weight")[(first + c) * width + width - 1 - back] *
                In(name + "_proj", t - back)[c];
      }
      y[c] *= Sigmoid(y[c]);
    }
    return y;
  }

  Row Rotated(const Row& x, size_t t) const {
    Row y = x;
    for (size_t i = 0; i < keys_ / 2; ++i) {
      const double angle =
          static_cast<double>(t) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(keys_));
      const double a = x[i], b = x[i + keys_ / 2];
      y[i] = a * std::cos(angle) - b * std::sin(angle);
      y[i + keys_ / 2] = a * std::sin(angle) + b * std::cos(angle);
    }
    return y;
  }

  static Row Normalized(Row x) {
    double sum = kGatedNormEps;
    for (const double a : x) sum += a * a;
    for (double& a : x) a /= std::sqrt(sum);
    return x;
  }

  // The head's rows of a product of low rank: name.1 of name.0.
  Row Second(const std::string& name, size_t size, size_t t) const {
    const Row &x = In(name + ".0", t), &weight = Own(name + ".1.weight");
    Row y(size);
    for (size_t o = 0; o < size; ++o) {
      const size_t row = head_.index * size + o;
      if (head_.own.count(name + ".1.bias") > 0) y[o] = Own(name + ".1.bias")[row];
      for (size_t r = 0; r < x.size(); ++r) y[o] += x[r] * weight[row * x.size() + r];
    }
    return y;
  }

  Row LogDecay(size_t t) const {
    const size_t h = head_.index;
    Row g(keys_);
    if (form_.decay == GatedDecay::kConstant) {
      g.assign(keys_, std::log(1 - std::pow(2.0, -5.0 - static_cast<double>(h))));
    } else if (form_.decay == GatedDecay::kHead) {
      g.assign(keys_,
               -std::exp(Own("A_log")[h]) * Softplus(In("a_proj", t)[0] + Own("dt_bias")[h]));
    } else if (form_.decay == GatedDecay::kKey) {
      g = Second("gk_proj", keys_, t);
      for (double& x : g) x = -Softplus(-x) / 16;
      for (double& x : g) x = spec_.decay_floor < 0 ? std::max<double>(x, spec_.decay_floor) : x;
    } else if (form_.decay == GatedDecay::kKeyRate) {
      g = Second("f_proj", keys_, t);
      for (size_t d = 0; d < keys_; ++d) {
        const double rate = std::exp(Own("A_log")[h]), x = g[d] + Own("dt_bias")[h * keys_ + d];
        g[d] = spec_.decay_floor < 0 ? spec_.decay_floor * Sigmoid(rate * x) : -rate * Softplus(x);
      }
    }
    return g;
  }

  Row Finished(Row x, size_t t) const {
    double mean = 0;
    for (const double a : x) mean += a * a / static_cast<double>(values_);
    Row gate(values_, 1.0);
    if (form_.gate == OutputGate::kSilu) {
      gate = In("g_proj", t);
      for (double& g : gate) g *= Sigmoid(g);
    } else if (form_.gate == OutputGate::kSigmoid) {
      gate = Second("g_proj", values_, t);
      for (double& g : gate) g = Sigmoid(g);
    }
    for (size_t m = 0; m < values_; ++m) {
      x[m] *= Own(std::string(form_.norm) + ".weight")[m] * gate[m] /
              std::sqrt(mean + spec_.output_norm_eps);
    }
    return x;
  }

  const MixerSpec& spec_;
  const GatedForm form_;
  const GatedHead& head_;
  const size_t keys_, values_;
};

inline GatedHead::Rows GatedOut(const MixerSpec& spec, const GatedHead& head) {
  return GatedOracle(spec, head).Out();
}

}  // namespace linnet

#endif  // LINNET_MODEL_GATED_REF_H_
