// For tests: oracles of every mixer and feature map, in plain loops over doubles, one head at a
// time. They follow the definitions, not the code under test. Conformance tests compare each form
// of every registered mixer with them.
//
//   for (const MixerCase& one : MixerCases()) {
//     Rows out = one.oracle->out(one.spec, {.q = q, .k = k, .v = v, .causal = true});
//   }
//
// A new mixer needs a row in MixerOracles(), and a new feature map a row in FeatureMapOracles();
// otherwise Registry.EveryMixerAndFeatureMapHasAnOracle fails.
#ifndef LINNET_NN_TEST_ORACLE_H_
#define LINNET_NN_TEST_ORACLE_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "linnet/model/gated_ref.h"
#include "linnet/model/mixer.h"
#include "linnet/model/rwkv7_ref.h"
#include "linnet/nn/mask.h"

namespace linnet::nn {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // one row per position

// The inputs of one head of one sequence, without padding.
struct Head {
  Rows q, k, v;
  bool causal = false;
  std::vector<std::vector<bool>> allowed = {};  // [queries][keys]; empty: all
  Rows omega = {};                              // [D][columns], for random feature maps
  // The rest is for gated recurrences.
  std::vector<Rows> more = {};  // the head's columns of projections after q, k and v
  std::shared_ptr<const std::map<std::string, Row>> own = {};  // the mixer's tensors, for all heads
  size_t index = 0;                                            // this head's index

  bool Sees(size_t i, size_t j) const {
    return (!causal || j <= i) && (allowed.empty() || allowed[i][j]);
  }
};

inline double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline void AddTo(Row& sum, double weight, const Row& x) {
  for (size_t i = 0; i < x.size(); ++i) sum[i] += weight * x[i];
}

// Feature maps: phi of one vector.

struct FeatureMapOracle {
  std::string name;
  Row (*phi)(const Row& x, const Rows& omega, bool query);
  // Whether the divisor is raised to at least |z| / sqrt(F), with z the sum of the keys' features,
  // instead of adding eps.
  bool floor = false;
};

// x / D^(1/4)
inline Row Scaled(Row x) {
  const double scale = std::pow(static_cast<double>(x.size()), -0.25);
  for (double& a : x) a *= scale;
  return x;
}
// y omega
inline Row Projected(const Row& y, const Rows& omega) {
  Row sums(omega[0].size());
  for (size_t d = 0; d < y.size(); ++d) AddTo(sums, y[d], omega[d]);
  return sums;
}

inline Row EluFeatures(const Row& x, const Rows&, bool) {
  Row phi;
  for (const double a : x) phi.push_back(a > 0 ? a + 1 : std::exp(a));
  return phi;
}
inline Row ReluFeatures(const Row& x, const Rows&, bool) {
  Row phi;
  for (const double a : x) phi.push_back(std::max(a, 0.0));
  return phi;
}
// phi holds the products of all ordered pairs of channels, so that for scaled q and k
// phi(q) . phi(k) = 1 + 2 q . k + (q . k)^2 = (q . k + 1)^2.
inline Row Polynomial2Features(const Row& x, const Rows&, bool) {
  const Row y = Scaled(x);
  Row phi = {1};
  for (const double a : y) phi.push_back(std::sqrt(2.0) * a);
  for (const double a : y) {
    for (const double b : y) phi.push_back(a * b);
  }
  return phi;
}
inline Row RffFeatures(const Row& x, const Rows& omega, bool) {
  Row phi;
  const Row angles = Projected(Scaled(x), omega);
  const double root = std::sqrt(static_cast<double>(angles.size()));
  for (const double angle : angles) phi.push_back(std::cos(angle) / root);
  for (const double angle : angles) phi.push_back(std::sin(angle) / root);
  return phi;
}
// Exponents of keys are clamped to 40; the features of a query are divided by the largest of them.
inline Row FavorFeatures(const Row& x, const Rows& omega, bool query) {
  const Row y = Scaled(x);
  Row phi = Projected(y, omega);
  const double half = Dot(y, y) / 2, largest = *std::max_element(phi.begin(), phi.end());
  const double root = std::sqrt(static_cast<double>(phi.size()));
  for (double& a : phi)
    a = query ? std::exp(a - largest) : std::exp(std::min(a - half, 40.0)) / root;
  return phi;
}

inline const std::vector<FeatureMapOracle>& FeatureMapOracles() {
  static const std::vector<FeatureMapOracle> rows = {
      {"elu", EluFeatures},
      {"relu", ReluFeatures},
      {"polynomial2", Polynomial2Features},
      {"rff", RffFeatures, /*floor=*/true},
      {"favor", FavorFeatures},
  };
  return rows;
}

// Mixers: the output of one head, [queries][M].

// Equation 3 of Katharopoulos et al. 2020 over all pairs of positions. No sums are carried from one
// position to the next.
inline Rows LinearOut(const MixerSpec& spec, const Head& head) {
  const auto& maps = FeatureMapOracles();
  const FeatureMapOracle& map =
      *std::find_if(maps.begin(), maps.end(),
                    [&](const FeatureMapOracle& row) { return row.name == spec.feature_map; });
  Rows keys, out;
  for (const Row& k : head.k) keys.push_back(map.phi(k, head.omega, false));
  for (size_t i = 0; i < head.q.size(); ++i) {
    const Row query = map.phi(head.q[i], head.omega, true);
    Row& sum = out.emplace_back(head.v[0].size());
    Row z(query.size());
    double divisor = 0;
    for (size_t j = 0; j < keys.size(); ++j) {
      if (!head.Sees(i, j)) continue;
      const double weight = Dot(query, keys[j]);
      AddTo(sum, weight, head.v[j]);
      if (map.floor) AddTo(z, 1, keys[j]);
      divisor += weight;
    }
    divisor = map.floor ? std::max(divisor, std::sqrt(Dot(z, z) / static_cast<double>(z.size())))
                        : divisor + spec.eps;
    for (double& x : sum) x = divisor == 0 ? 0 : x / divisor;
  }
  return out;
}

// sum_j exp(score - largest) v_j / (sum_j exp(score - largest) + eps) over the keys that a query
// attends to; zeros if there are none.
template <class Score>
Rows SoftmaxOut(const Head& head, double eps, Score score) {
  Rows out;
  for (size_t i = 0; i < head.q.size(); ++i) {
    Row scores(head.k.size(), -std::numeric_limits<double>::infinity());
    for (size_t j = 0; j < scores.size(); ++j) {
      if (head.Sees(i, j)) scores[j] = score(i, j);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    Row& sum = out.emplace_back(head.v[0].size());
    double divisor = eps;
    for (size_t j = 0; j < scores.size(); ++j) {
      if (!head.Sees(i, j)) continue;
      const double weight = std::exp(scores[j] - largest);
      AddTo(sum, weight, head.v[j]);
      divisor += weight;
    }
    for (double& x : sum) x = divisor == 0 ? 0 : x / divisor;
  }
  return out;
}

inline double ScaleOf(const MixerSpec& spec) {
  return spec.scale > 0 ? spec.scale : 1 / std::sqrt(static_cast<double>(spec.query_dim));
}

// Row t rotated by the angle t base^(-2i/D) in the plane of channels i and i + D/2.
inline Rows Turned(Rows x, double base) {
  for (size_t t = 0; t < x.size(); ++t) {
    const size_t dim = x[t].size();
    for (size_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const double a = x[t][i], b = x[t][i + dim / 2];
      x[t][i] = a * std::cos(angle) - b * std::sin(angle);
      x[t][i + dim / 2] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  return x;
}

inline Rows FullOut(const MixerSpec& spec, const Head& head) {
  Head seen = head;
  if (spec.rotary) {
    seen.q = Turned(head.q, spec.rotary_base), seen.k = Turned(head.k, spec.rotary_base);
  }
  if (spec.window > 0) {
    seen.allowed.assign(head.q.size(), std::vector<bool>(head.k.size()));
    for (size_t i = 0; i < head.q.size(); ++i) {
      for (size_t j = 0; j < head.k.size(); ++j) {
        seen.allowed[i][j] = head.Sees(i, j) && i < j + static_cast<size_t>(spec.window);
      }
    }
  }
  return SoftmaxOut(seen, 0,
                    [&](size_t i, size_t j) { return ScaleOf(spec) * Dot(seen.q[i], seen.k[j]); });
}

inline Rows KernelOut(const MixerSpec& spec, const Head& head) {
  const double root = std::sqrt(static_cast<double>(spec.query_dim));
  if (spec.similarity == Similarity::kSoftmax) {
    return SoftmaxOut(head, spec.eps,
                      [&](size_t i, size_t j) { return Dot(head.q[i], head.k[j]) / root; });
  }
  Rows out;
  for (size_t i = 0; i < head.q.size(); ++i) {
    Row& sum = out.emplace_back(head.v[0].size());
    double divisor = spec.eps;
    for (size_t j = 0; j < head.k.size(); ++j) {
      if (!head.Sees(i, j)) continue;
      double weight = 0;
      if (spec.similarity == Similarity::kPolynomial2) {
        weight = std::pow(Dot(head.q[i], head.k[j]) / root + 1, 2);
      } else {
        for (size_t d = 0; d < head.q[i].size(); ++d) {
          weight += std::pow(head.q[i][d] - head.k[j][d], 2);
        }
        weight = std::exp(-weight / (2 * root));
      }
      AddTo(sum, weight, head.v[j]);
      divisor += weight;
    }
    for (double& x : sum) x = divisor == 0 ? 0 : x / divisor;
  }
  return out;
}

// One hash round: the bucket of each position, and its rank (place) after sorting by bucket.
struct HashRound {
  std::vector<size_t> bucket, place;  // of each position
};
inline std::vector<HashRound> HashRounds(const MixerSpec& spec, const Rows& q) {
  const size_t dim = static_cast<size_t>(spec.query_dim);
  const size_t half = static_cast<size_t>((spec.lsh_buckets + 1) / 2);
  const std::vector<float> planes = LshPlanes(spec, spec.query_dim);
  std::vector<HashRound> rounds(static_cast<size_t>(spec.lsh_rounds));
  for (size_t r = 0; r < rounds.size(); ++r) {
    std::vector<size_t> order;
    for (size_t i = 0; i < q.size(); ++i) {
      Row sides(2 * half);  // (q R, -q R), with R the hash planes
      for (size_t b = 0; b < half; ++b) {
        for (size_t d = 0; d < dim; ++d) sides[b] += q[i][d] * planes[(r * dim + d) * half + b];
        sides[half + b] = -sides[b];
      }
      const auto largest = std::max_element(sides.begin(), sides.end());
      rounds[r].bucket.push_back(
          spec.lsh_buckets == 1 ? 0 : static_cast<size_t>(largest - sides.begin()));
      order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rounds[r].bucket[a] < rounds[r].bucket[b]; });
    rounds[r].place.resize(q.size());
    for (size_t place = 0; place < order.size(); ++place) rounds[r].place[order[place]] = place;
  }
  return rounds;
}

// The keys are the queries, normalized to length 1. Chunks are consecutive positions after sorting
// by bucket. A position attends to keys in its own and in the previous chunk.
inline Rows ReformerOut(const MixerSpec& spec, const Head& head) {
  const std::vector<HashRound> rounds = HashRounds(spec, head.q);
  const size_t length = head.q.size(), chunk = static_cast<size_t>(spec.lsh_chunk);
  Head shared{.q = head.q, .k = head.q, .v = head.v};
  for (Row& k : shared.k) {
    const double norm = std::sqrt(Dot(k, k));
    for (double& x : k) x /= norm;
  }
  const auto score = [&](size_t i, size_t j) {
    return ScaleOf(spec) * Dot(shared.q[i], shared.k[j]);
  };
  // Whether key j is in the chunk of position i or in the chunk before, and not masked out.
  const auto near = [&](const HashRound& round, size_t i, size_t j) {
    const size_t own = round.place[i] / chunk, other = round.place[j] / chunk;
    return (own == other || own == other + 1) && (!head.causal || j <= i);
  };
  shared.allowed.assign(length, std::vector<bool>(length));
  if (spec.lsh_variant == LshVariant::kPublished) {
    // A position attends to each key that, in at least one round, shares its bucket and is near().
    // A key counts once, even if several rounds find it. A position attends to itself only if there
    // is no such key.
    for (size_t i = 0; i < length; ++i) {
      bool any = false;
      for (size_t j = 0; j < length; ++j) {
        for (const HashRound& round : rounds) {
          if (i == j || round.bucket[i] != round.bucket[j] || !near(round, i, j)) continue;
          shared.allowed[i][j] = any = true;
        }
      }
      shared.allowed[i][i] = !any;
    }
    return SoftmaxOut(shared, 0, score);
  }
  // The simple variant: buckets only sort the positions, and the output is the mean over rounds.
  Rows out(length, Row(head.v[0].size()));
  for (const HashRound& round : rounds) {
    for (size_t i = 0; i < length; ++i) {
      for (size_t j = 0; j < length; ++j) shared.allowed[i][j] = near(round, i, j);
    }
    const Rows own = SoftmaxOut(shared, 0, score);
    for (size_t i = 0; i < length; ++i) AddTo(out[i], 1.0 / spec.lsh_rounds, own[i]);
  }
  return out;
}

// The head in the form that gated_ref.h and rwkv7_ref.h take.
inline GatedHead RecurrenceHead(const MixerSpec& spec, const Head& head) {
  GatedHead gated{.own = head.own, .index = head.index};
  const std::vector<ProjectionInfo> infos = MixerProjections(spec);
  for (size_t i = 0; i < infos.size(); ++i) {
    gated.in[infos[i].name] = i == 0   ? head.q
                              : i == 1 ? head.k
                              : i == 2 ? head.v
                                       : head.more[i - 3];
  }
  return gated;
}
// The output of one head. If several heads share a norm, it is the output before the norm, which
// OutsOf() applies.
inline Rows GatedRecurrenceOut(const MixerSpec& spec, const Head& head) {
  return GatedOut(spec, RecurrenceHead(spec, head));
}
inline Rows Rwkv7HeadOut(const MixerSpec& spec, const Head& head) {
  return Rwkv7Out(spec, RecurrenceHead(spec, head));
}

// One configuration of a mixer's own parameters.
struct MixerChoice {
  std::string name;
  MixerSpec spec;
};

struct MixerOracle {
  std::string name;
  Rows (*out)(const MixerSpec& spec, const Head& head);
  bool masks = false;  // supports Mask::allowed
  // Whether rounding of queries can change which keys they attend to, so that bf16 outputs are not
  // comparable.
  bool (*hashes)(const MixerSpec& spec) = nullptr;
  std::vector<MixerChoice> choices = {};  // empty: only the defaults
};

// The number of consecutive heads whose outputs are normalized together.
inline int64_t NormHeads(const MixerSpec& spec) {
  const MixerInfo& info = FindMixer(spec.kind);
  return info.gated ? info.gated(spec).norm_heads(spec.heads) : 1;
}
// The outputs of NormHeads() consecutive heads.
inline std::vector<Rows> OutsOf(const MixerOracle& oracle, const MixerSpec& spec,
                                const std::vector<Head>& heads) {
  std::vector<Rows> outs;
  std::vector<GatedHead> gated;
  for (const Head& head : heads) {
    outs.push_back(oracle.out(spec, head));
    if (heads.size() > 1) gated.push_back(RecurrenceHead(spec, head));
  }
  if (heads.size() > 1) NormalizeTogether(spec, gated, outs);
  return outs;
}

inline const std::vector<MixerOracle>& MixerOracles() {
  const auto hashing = [](LshVariant variant, int buckets) {
    return MixerSpec{
        .lsh_rounds = 3, .lsh_buckets = buckets, .lsh_chunk = 8, .lsh_variant = variant};
  };
  static const std::vector<MixerOracle> rows = {
      {.name = "causal-linear", .out = LinearOut},
      {.name = "linear", .out = LinearOut},
      {.name = "full",
       .out = FullOut,
       .masks = true,
       .choices = {{"", {}},
                   {"window", {.window = 8}},
                   {"window_of_one_rotary", {.window = 1, .rotary = true}},
                   {"window_grouped",
                    {.window = 31,
                     .rotary = true,
                     .rotary_base = 500,
                     .qkv_bias = false,
                     .out_bias = false,
                     .key_heads = 1}},
                   {"rotary_grouped", {.rotary = true, .key_heads = 1}}}},
      {.name = "kernel",
       .out = KernelOut,
       .masks = true,
       .choices = {{"softmax", {.similarity = Similarity::kSoftmax}},
                   {"polynomial2", {.similarity = Similarity::kPolynomial2}},
                   {"rbf", {.similarity = Similarity::kRbf}}}},
      {.name = "reformer",
       .out = ReformerOut,
       .hashes = [](const MixerSpec& spec) { return spec.lsh_buckets > 1; },
       .choices = {{"published", hashing(LshVariant::kPublished, 4)},
                   {"published_one_bucket", hashing(LshVariant::kPublished, 1)},
                   {"simple", hashing(LshVariant::kSimple, 4)},
                   {"simple_one_bucket", hashing(LshVariant::kSimple, 1)}}},
      {.name = "gated-delta-net",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}},
                   {"plain",
                    {.short_convolution = 0, .output_gate = false, .negative_eigenvalues = true}},
                   {"grouped", {.key_heads = 1}}}},
      {.name = "delta-net",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}}, {"plain", {.short_convolution = 0, .output_gate = false}}}},
      {.name = "gla",
       .out = GatedRecurrenceOut,
       .choices = {{"", {.gate_rank = 3}},
                   {"floor", {.gate_rank = 3, .decay_floor = -0.04f}},
                   {"grouped", {.gate_rank = 3, .key_heads = 1}}}},
      {.name = "retention",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}}, {"grouped", {.key_heads = 1}}}},
      {.name = "kda",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}}, {"grouped_floor", {.key_heads = 1, .decay_floor = -5}}}},
      {.name = "gdn2",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}}, {"plain", {.short_convolution = 0, .negative_eigenvalues = true}}}},
      {.name = "gated-delta-product",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}},
                   {"plain",
                    {.short_convolution = 0, .output_gate = false, .negative_eigenvalues = true}},
                   {"grouped", {.key_heads = 1, .householders = 3}}}},
      {.name = "ssd",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}}, {"plain", {.short_convolution = 0}}, {"grouped", {.key_heads = 1}}}},
      {.name = "hgrn",
       .out = GatedRecurrenceOut,
       .choices = {{"", {}},
                   {"plain", {.short_convolution = 0}},
                   {"bounded", {.lower_bound = true}}}},
      {.name = "rwkv7",
       .out = Rwkv7HeadOut,
       .choices = {{"", {.gate_rank = 3, .decay_rank = 4, .rate_rank = 2}},
                   {"reading",
                    {.gate_rank = 3, .decay_rank = 4, .rate_rank = 2, .value_rank = 3}}}},
  };
  return rows;
}

inline const MixerOracle* FindOracle(const std::string& mixer) {
  for (const MixerOracle& row : MixerOracles()) {
    if (row.name == mixer) return &row;
  }
  return nullptr;
}
inline bool HasMapOracle(const std::string& map) {
  const auto& maps = FeatureMapOracles();
  return std::any_of(maps.begin(), maps.end(),
                     [&](const FeatureMapOracle& row) { return row.name == map; });
}

// A registered mixer with one configuration of its parameters.
struct MixerCase {
  std::string name;
  MixerInfo info;
  MixerSpec spec;
  const MixerOracle* oracle;
  bool first = false;  // the first case of its mixer
  friend void PrintTo(const MixerCase& one, std::ostream* out) { *out << one.name; }
};

// Every registered mixer that has an oracle, with all its choices. If the mixer has a feature map,
// each choice is combined with every map. If the mixer uses MixerSpec::scale, each choice is also
// listed with a scale.
inline std::vector<MixerCase> MixerCases() {
  std::vector<MixerCase> cases;
  for (const MixerInfo& info : Mixers()) {
    const MixerOracle* oracle = FindOracle(info.name);
    if (oracle == nullptr) continue;
    std::vector<MixerChoice> choices = oracle->choices;
    if (choices.empty()) choices = {{"", {}}};
    // Returns a changed copy of every choice so far.
    const auto refine = [&](const std::string& name, const auto& change) {
      std::vector<MixerChoice> changed = choices;
      for (MixerChoice& choice : changed) {
        choice.name += (choice.name.empty() ? "" : "_") + name;
        change(choice.spec);
      }
      return changed;
    };
    if (info.maps) {
      std::vector<MixerChoice> mapped;
      for (const FeatureMapInfo& map : FeatureMaps()) {
        if (!HasMapOracle(map.name)) continue;
        for (const MixerChoice& choice :
             refine(map.name, [&](MixerSpec& spec) { spec.feature_map = map.name; })) {
          mapped.push_back(choice);
        }
      }
      choices = mapped;
    }
    if (info.scales) {
      for (const MixerChoice& choice :
           refine("scaled", [](MixerSpec& spec) { spec.scale = 0.75f; })) {
        choices.push_back(choice);
      }
    }
    bool first = true;
    for (MixerChoice& choice : choices) {
      choice.spec.kind = info.name;
      std::string name = info.name + (choice.name.empty() ? "" : "_") + choice.name;
      std::replace(name.begin(), name.end(), '-', '_');
      cases.push_back({name, FindMixer(choice.spec), choice.spec, oracle, first});
      first = false;
    }
  }
  return cases;
}

// A pattern of two layers with the same mixer. If the mixer reads an earlier layer's values, only
// the second layer does so: it reads the values of the first.
inline std::vector<MixerSpec> TwoLayers(const MixerSpec& spec) {
  MixerSpec first = spec;
  first.value_rank = 0;
  return {first, spec};
}

// Whether a mixer is used over a memory, that is, whether some mixer names it as its cross mixer.
inline bool Crosses(const std::string& mixer) {
  const std::vector<MixerInfo> all = Mixers();
  return std::any_of(all.begin(), all.end(),
                     [&](const MixerInfo& info) { return info.cross == mixer; });
}

// Whether the mixer of a case is used over a memory. A mixer with a window or rotary positions is
// not, because neither has a meaning over a memory.
inline bool Crosses(const MixerCase& one) {
  return Crosses(one.info.name) && one.spec.window == 0 && !one.spec.rotary;
}

// Whether a mixer has a state, for steps or only for a memory.
inline bool Remembers(const MixerInfo& info) { return info.recurrent || Crosses(info.name); }

// A module's parameters, flattened, by name.
inline std::map<std::string, Row> ParametersOf(const torch::nn::Module& module) {
  std::map<std::string, Row> all;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor x = item.value().detach().to(torch::kFloat64).contiguous();
    all[item.key()].assign(x.data_ptr<double>(), x.data_ptr<double>() + x.numel());
  }
  return all;
}

// Positions [0, count) of head h of sequence n of x [N, L, H, dim].
inline Rows RowsOf(const torch::Tensor& x, int64_t n, int64_t h, int64_t count) {
  const torch::Tensor rows =
      x.detach()[n].narrow(0, 0, count).select(1, h).to(torch::kFloat64).contiguous();
  const double* data = rows.data_ptr<double>();
  const auto dim = static_cast<size_t>(rows.size(1));
  Rows out;
  for (size_t t = 0; t < static_cast<size_t>(count); ++t) {
    out.emplace_back(data + t * dim, data + (t + 1) * dim);
  }
  return out;
}

// The random numbers of a mixer's feature map; empty for deterministic maps.
inline Rows OmegaOf(const torch::nn::Module& mixer) {
  for (const auto& buffer : mixer.named_buffers()) {
    if (!buffer.key().ends_with("feature_map.omega")) continue;
    const torch::Tensor omega = buffer.value();
    return RowsOf(omega.view({1, omega.size(0), 1, omega.size(1)}), 0, 0, omega.size(0));
  }
  return {};
}

}  // namespace linnet::nn

#endif  // LINNET_NN_TEST_ORACLE_H_
