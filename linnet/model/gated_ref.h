// For tests: a head of a gated recurrence (gated.h) in plain loops over doubles, position by
// position. It follows the definition, not the code under test.
//
//   GatedHead head{.in = {{"q_proj", q}, ...}, .own = {{"A_log", a}, ...}, .index = h};
//   std::vector<std::vector<double>> out = GatedOut(spec, head);   // [positions][V]
//   NormalizeTogether(spec, heads, outs);   // outs of all heads; no effect without shared norms
#ifndef LINNET_MODEL_GATED_REF_H_
#define LINNET_MODEL_GATED_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linnet/model/mixer.h"

namespace linnet {

struct GatedHead {
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  // Projections of the input by name, [positions][columns]: the columns of the head, or those that
  // all heads share.
  std::map<std::string, Rows> in = {};
  // The layer's GatedTensors() by name: all heads, row-major.
  std::shared_ptr<const std::map<std::string, Row>> own = {};
  size_t index = 0;  // of the head in its layer
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

  // The head's outputs [positions][V]: before the norm if several heads are normalized together.
  Rows Out() const {
    if (form_.by_channel()) return Channels();
    Rows out, s(keys_, Row(values_));
    for (size_t t = 0; t < head_.in.at("q_proj").size(); ++t) {
      Row q = Vector("q", keys_, t, 0);
      if (form_.rotary) q = Rotated(q, t);
      if (form_.delta()) q = Normalized(q);
      const Row g = LogDecay(t);
      for (size_t d = 0; d < keys_; ++d) {
        for (double& x : s[d]) x *= std::exp(g[d]);
      }
      for (size_t i = 0; i < static_cast<size_t>(form_.householders); ++i) Update(t, i, s);
      Row read(values_);
      const double scale = form_.scale(spec_.query_dim);  // rounded to fp32, as in the kernels
      for (size_t d = 0; d < keys_; ++d) {
        for (size_t m = 0; m < values_; ++m) read[m] += scale * q[d] * s[d][m];
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
  const Row& Own(const std::string& name) const { return head_.own->at(name); }

  // The head's outputs for the decay kChannel, whose state is one number per channel.
  Rows Channels() const {
    Rows out;
    Row h(values_);
    for (size_t t = 0; t < head_.in.at("i_proj").size(); ++t) {
      const Row x = Convolved("i", values_, t, 0), f = Convolved("f", values_, t, 0);
      for (size_t m = 0; m < values_; ++m) {
        const double bound =
            form_.bounded ? Sigmoid(Own("lower_bound")[head_.index * values_ + m]) : 0;
        const double decay = bound + (1 - bound) * Sigmoid(f[m]);
        h[m] = decay * h[m] + x[m] * Sigmoid(x[m]) * (1 - decay);
      }
      out.push_back(Finished(h, t));
    }
    return out;
  }

  // Writes the i-th key and value of a position into the state.
  void Update(size_t t, size_t i, Rows& s) const {
    Row k = Vector("k", keys_, t, i), add = Vector("v", values_, t, i);
    if (form_.rotary) k = Rotated(k, t);
    if (form_.delta()) {
      k = Normalized(k);
      const double most = spec_.negative_eigenvalues ? 2 : 1;
      const Row& erase = In("b_proj", t);  // one number per delta step or key channel
      for (size_t m = 0; m < values_; ++m) {
        add[m] *= form_.write == GatedWrite::kTwoSided ? Sigmoid(In("w_proj", t)[m])
                                                       : most * Sigmoid(erase[i]);
        for (size_t d = 0; d < keys_; ++d) {
          const double strength = form_.write == GatedWrite::kTwoSided ? erase[d] : erase[i];
          add[m] -= most * Sigmoid(strength) * k[d] * s[d][m];
        }
      }
    } else if (form_.timed) {
      for (double& a : add) a *= TimeStep(t);
    }
    for (size_t d = 0; d < keys_; ++d) {
      for (size_t m = 0; m < values_; ++m) s[d][m] += k[d] * add[m];
    }
  }

  double TimeStep(size_t t) const {
    return Softplus(In("a_proj", t)[0] + Own("dt_bias")[head_.index]);
  }

  // The query, or the i-th key or value, of a position.
  Row Vector(const std::string& name, size_t size, size_t t, size_t i) const {
    Row y = Convolved(name, size, t, i);
    for (double& x : y) x *= form_.convolution == 0 ? 1 : Sigmoid(x);
    return y;
  }

  // Vector() before silu.
  Row Convolved(const std::string& name, size_t size, size_t t, size_t i) const {
    Row y(size);
    if (form_.convolution == 0) {
      for (size_t c = 0; c < size; ++c) y[c] = In(name + "_proj", t)[i * size + c];
      return y;
    }
    const auto width = static_cast<size_t>(form_.convolution);
    const auto readers = static_cast<size_t>(name == "q"   ? form_.query_readers()
                                             : name == "k" ? form_.readers
                                                           : form_.value_readers());
    const size_t heads = static_cast<size_t>(spec_.heads) / readers;
    const size_t first = (i * heads + head_.index / readers) * size;
    const Rows& x = head_.in.at(name + "_proj");
    const Row& weight = Own(name + "_conv1d.weight");
    for (size_t c = 0; c < size; ++c) {
      if (form_.timed) y[c] = Own(name + "_conv1d.bias")[first + c];
      for (size_t back = 0; back < width && back <= t; ++back) {
        y[c] += weight[(first + c) * width + width - 1 - back] * x[t - back][i * size + c];
      }
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

  // The head's outputs of the low-rank projection name.1(name.0(x)). `readers` consecutive heads
  // share them.
  Row Second(const std::string& name, size_t size, size_t t, int readers = 1) const {
    const Row &x = In(name + ".0", t), &weight = Own(name + ".1.weight");
    Row y(size);
    for (size_t o = 0; o < size; ++o) {
      const size_t row = head_.index / static_cast<size_t>(readers) * size + o;
      if (head_.own->count(name + ".1.bias") > 0) y[o] = Own(name + ".1.bias")[row];
      for (size_t r = 0; r < x.size(); ++r) y[o] += x[r] * weight[row * x.size() + r];
    }
    return y;
  }

  // The logarithm of the decay of each key channel.
  Row LogDecay(size_t t) const {
    const size_t h = head_.index;
    Row g(keys_);
    if (form_.decay == GatedDecay::kConstant) {
      g.assign(keys_, std::log(1 - std::pow(2.0, -5.0 - static_cast<double>(h))));
    } else if (form_.decay == GatedDecay::kHead) {
      g.assign(keys_, -std::exp(Own("A_log")[h]) * TimeStep(t));
    } else if (form_.decay == GatedDecay::kKey) {
      g = Second("gk_proj", keys_, t, form_.value_readers());
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

  // Completes a position's output, given the read from the state: D v, norm and gate. If several
  // heads are normalized together, NormalizeTogether() does the norm and what follows it.
  Row Finished(Row x, size_t t) const {
    Row gate(values_, 1.0);
    if (form_.gate == OutputGate::kSilu) {
      gate = In("g_proj", t);
      for (double& g : gate) g *= Sigmoid(g);
    } else if (form_.gate == OutputGate::kSigmoid) {
      gate = Second("g_proj", values_, t);
      for (double& g : gate) g = Sigmoid(g);
    }
    if (form_.timed) {
      const Row v = Vector("v", values_, t, 0);
      for (size_t m = 0; m < values_; ++m) x[m] = (x[m] + Own("D")[head_.index] * v[m]) * gate[m];
    }
    if (form_.norm_heads(spec_.heads) > 1) return x;
    double mean = 0;
    for (const double a : x) mean += a * a / static_cast<double>(values_);
    const double root = std::sqrt(mean + spec_.output_norm_eps);
    const Row& weight = Own(std::string(form_.norm) + ".weight");
    const size_t first = weight.size() > values_ ? head_.index * values_ : 0;
    for (size_t m = 0; m < values_; ++m) {
      x[m] *= weight[first + m] / root;
      if (!form_.timed) x[m] *= gate[m];
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

// Applies a norm that several heads share and, unless `timed`, the gate. heads: all heads of a
// layer, or all that share one norm.
inline void NormalizeTogether(const MixerSpec& spec, const std::vector<GatedHead>& heads,
                              std::vector<GatedHead::Rows>& outs) {
  const GatedForm form = FindMixer(spec.kind).gated(spec);
  const auto set = static_cast<size_t>(form.norm_heads(spec.heads)),
             values = static_cast<size_t>(spec.value_dim);
  if (set == 1) return;
  const std::vector<double>& weight = heads[0].own->at(std::string(form.norm) + ".weight");
  for (size_t first = 0; first < heads.size(); first += set) {
    for (size_t t = 0; t < outs[first].size(); ++t) {
      double mean = 0;
      for (size_t h = first; h < first + set; ++h) {
        for (const double x : outs[h][t]) mean += x * x / static_cast<double>(set * values);
      }
      const double root = std::sqrt(mean + spec.output_norm_eps);
      for (size_t h = first; h < first + set; ++h) {
        for (size_t m = 0; m < values; ++m) {
          outs[h][t][m] *= weight[heads[h].index * values + m] / root;
          if (form.timed) continue;  // the gate came before the norm
          const double gate = heads[h].in.at("g_proj")[t][m];
          outs[h][t][m] *= gate / (1 + std::exp(-gate));
        }
      }
    }
  }
}

}  // namespace linnet

#endif  // LINNET_MODEL_GATED_REF_H_
