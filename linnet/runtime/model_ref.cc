#include "linnet/runtime/model_ref.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/kernels/activation_ref.h"
#include "linnet/kernels/layer_norm_ref.h"
#include "linnet/kernels/linear_step_ref.h"
#include "linnet/kernels/lsh_attention_ref.h"
#include "linnet/kernels/lstm_cell_ref.h"
#include "linnet/kernels/narrow_linear_ref.h"
#include "linnet/kernels/softmax_attention_ref.h"
#include "linnet/model/gated_ref.h"
#include "linnet/model/patches.h"
#include "linnet/model/pixels.h"
#include "linnet/model/rwkv7_ref.h"
#include "linnet/model/stem_ref.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

// Positions that a mixer reads at a time: one as a step, or some as a piece of a text.
struct Cut {
  size_t length;
  bool step = false;
};
using Cuts = std::vector<Cut>;

// Computes a mixer, one head at a time: q, k, v and the output are [positions][columns].
class MixerRef {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  struct Head {
    Rows q, k, v;
    size_t index = 0;  // in its layer, for mixers whose heads differ
    bool causal = true;
    // If `recurrent`, the positions are read in these cuts, with a state that is rounded to bf16 if
    // `narrow`. Otherwise all positions are read in one pass.
    bool recurrent = false, narrow = false;
    Cuts cuts = {};
  };

  // omega [D][columns]: the projection of a random feature map; else empty.
  MixerRef(const MixerSpec& spec, Rows omega) : spec_(spec), omega_(std::move(omega)) {}

  Rows Out(const Head& head) const {
    if (spec_.kind == "causal-linear" || spec_.kind == "linear") return Linear(head);
    if (spec_.kind == "full") return Full(head);
    if (spec_.kind == "kernel") return Kernel(head);
    if (spec_.kind == "reformer") {
      return spec_.lsh_variant == LshVariant::kPublished ? Published(head) : Simple(head);
    }
    throw InputError("the reference has no attention '", spec_.kind, "'");
  }

 private:
  static size_t Size(int n) { return static_cast<size_t>(n); }
  size_t dim() const { return Size(spec_.query_dim); }
  size_t value_dim() const { return Size(spec_.value_dim); }

  static double Dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }
  static void AddTo(Row& sum, double weight, const Row& x) {
    for (size_t i = 0; i < x.size(); ++i) sum[i] += weight * x[i];
  }
  static Row Flat(const Rows& rows) {
    Row flat;
    for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  }

  // phi(x).
  Row Features(const Row& x, bool query) const {
    const std::string& map = spec_.feature_map;
    Row phi;
    if (map == "elu" || map == "relu") {
      for (const double a : x)
        phi.push_back(a > 0 ? (map == "elu" ? a + 1 : a) : map == "elu" ? std::exp(a) : 0);
      return phi;
    }
    Row y = x;
    double squares = 0;
    for (double& a : y) {
      a /= std::pow(static_cast<double>(x.size()), 0.25);
      squares += a * a;
    }
    if (map == "polynomial2") {
      phi.push_back(1);
      for (const double a : y) phi.push_back(std::sqrt(2.0) * a);
      for (const double a : y) phi.push_back(a * a);
      for (size_t i = 0; i < y.size(); ++i) {
        for (size_t j = i + 1; j < y.size(); ++j) phi.push_back(std::sqrt(2.0) * y[i] * y[j]);
      }
      return phi;
    }
    const size_t columns = omega_[0].size();
    const double root = std::sqrt(static_cast<double>(columns));
    Row projected(columns);
    for (size_t i = 0; i < y.size(); ++i) AddTo(projected, y[i], omega_[i]);
    if (map == "rff") {
      for (const double angle : projected) phi.push_back(std::cos(angle) / root);
      for (const double angle : projected) phi.push_back(std::sin(angle) / root);
      return phi;
    }
    if (map != "favor") throw InputError("the reference has no feature map '", map, "'");
    const double largest = *std::max_element(projected.begin(), projected.end());
    for (const double exponent : projected) {
      phi.push_back(query ? std::exp(exponent - largest)
                          : std::exp(std::min(exponent - squares / 2, 40.0)) / root);
    }
    return phi;
  }

  // Lower bound of the denominator phi(q) . z, in units of |z|; 0: none.
  double Floor(size_t features) const {
    return spec_.feature_map == "rff" ? 1 / std::sqrt(static_cast<double>(features)) : 0;
  }
  // phi(q) s / (phi(q) . z + eps), with s [F][M]. With a floor, the denominator is
  // max(phi(q) . z, floor |z|).
  Row Divided(const Row& q, const Rows& s, const Row& z) const {
    Row out(value_dim());
    for (size_t f = 0; f < q.size(); ++f) AddTo(out, q[f], s[f]);
    const double floor = Floor(q.size()) * std::sqrt(Dot(z, z)), product = Dot(q, z);
    const double denominator = floor > 0 ? std::max(product, floor) : product + spec_.eps;
    for (double& x : out) x = denominator == 0 ? 0 : x / denominator;
    return out;
  }

  Rows Linear(const Head& head) const {
    Rows q, k, out;
    for (const Row& row : head.q) q.push_back(Features(row, true));
    for (const Row& row : head.k) k.push_back(Features(row, false));
    const size_t features = q[0].size();
    Rows s(features, Row(value_dim()));
    Row z(features);
    const auto add = [&](size_t t) {
      AddTo(z, 1, k[t]);
      for (size_t f = 0; f < features; ++f) AddTo(s[f], k[t][f], head.v[t]);
    };
    if (!head.causal) {
      for (size_t t = 0; t < k.size(); ++t) add(t);
      for (const Row& row : q) out.push_back(Divided(row, s, z));
      return out;
    }
    if (!head.recurrent) {
      for (size_t t = 0; t < q.size(); ++t) {
        add(t);
        out.push_back(Divided(q[t], s, z));
      }
      return out;
    }
    // Steps read rounded sums; pieces of several positions do not. With a floor, the engine reads
    // pieces in steps, too.
    const double floor = Floor(features);
    kernels::LinearStepRef state(features, value_dim(),
                                 {kernels::FeatureMap::kIdentity, true, spec_.eps}, head.narrow,
                                 floor);
    for (const Cut& cut : head.cuts) {
      const size_t begin = out.size(), piece = cut.length;
      const bool step = cut.step;
      if (!step) state.Fold();
      if (step || floor > 0) {
        for (size_t t = begin; t < begin + piece; ++t)
          out.push_back(state.Step(q[t], k[t], head.v[t]));
        if (!step) state.Fold();
        continue;
      }
      z = state.Z();
      for (size_t f = 0; f < features; ++f) {
        const auto row = state.S().begin() + static_cast<ptrdiff_t>(f * value_dim());
        s[f].assign(row, row + static_cast<ptrdiff_t>(value_dim()));
      }
      for (size_t t = begin; t < begin + piece; ++t) {
        add(t);
        out.push_back(Divided(q[t], s, z));
      }
      const auto range = [&](const Rows& rows) {
        return Rows(rows.begin() + static_cast<ptrdiff_t>(begin),
                    rows.begin() + static_cast<ptrdiff_t>(begin + piece));
      };
      state.Extend(range(k), range(head.v));
    }
    return out;
  }

  double Scale() const {
    return spec_.scale > 0 ? spec_.scale : 1 / std::sqrt(static_cast<double>(dim()));
  }

  Rows Full(const Head& head) const {
    const kernels::SoftmaxAttentionRef ref(
        {1, head.q.size(), head.k.size(), 1, dim(), value_dim()},
        {.scale = static_cast<float>(Scale()), .causal = head.causal, .window = Size(spec_.window)},
        Flat(Rotated(head.q)), Flat(Rotated(head.k)), Flat(head.v), head.k.size());
    Rows out;
    for (size_t t = 0; t < head.q.size(); ++t) out.push_back(ref.Out(t));
    return out;
  }

  // Applies rotary positions, if the spec has them.
  Rows Rotated(Rows x) const {
    const size_t pairs = spec_.rotary ? dim() / 2 : 0;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < pairs; ++i) {
        const double angle =
            static_cast<double>(t) /
            std::pow(spec_.rotary_base, 2.0 * static_cast<double>(i) / static_cast<double>(dim()));
        const double a = x[t][i], b = x[t][i + pairs];
        x[t][i] = a * std::cos(angle) - b * std::sin(angle);
        x[t][i + pairs] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
    return x;
  }

  // sum_j sim(q, k_j) v_j / (sum_j sim(q, k_j) + eps). For softmax, each similarity is divided by
  // the query's largest one.
  Rows Kernel(const Head& head) const {
    const double root = std::sqrt(static_cast<double>(dim()));
    Rows out;
    for (size_t i = 0; i < head.q.size(); ++i) {
      const size_t seen = head.causal ? i + 1 : head.k.size();
      Row similarity;
      for (size_t j = 0; j < seen; ++j) {
        const double product = Dot(head.q[i], head.k[j]) / root;
        double distance = 0;
        for (size_t d = 0; d < dim(); ++d) distance += std::pow(head.q[i][d] - head.k[j][d], 2);
        similarity.push_back(spec_.similarity == Similarity::kSoftmax ? product
                             : spec_.similarity == Similarity::kPolynomial2
                                 ? (product + 1) * (product + 1)
                                 : std::exp(-distance / (2 * root)));
      }
      if (spec_.similarity == Similarity::kSoftmax && seen > 0) {
        const double largest = *std::max_element(similarity.begin(), similarity.end());
        for (double& x : similarity) x = std::exp(x - largest);
      }
      double sum = spec_.eps;
      Row& row = out.emplace_back(value_dim());
      for (size_t j = 0; j < seen; ++j) {
        sum += similarity[j];
        AddTo(row, similarity[j], head.v[j]);
      }
      for (double& x : row) x = sum > 0 ? x / sum : 0;
    }
    return out;
  }

  // Scales the queries so that scores, which are divided by sqrt(D), have the spec's `scale`.
  Rows Stretched(Rows q) const {
    const double stretch = Scale() * std::sqrt(static_cast<double>(dim()));
    for (Row& row : q) {
      for (double& x : row) x *= stretch;
    }
    return q;
  }
  // The bucket of each query, per round.
  std::vector<std::vector<size_t>> Buckets(const Rows& q) const {
    const size_t half = Size(spec_.lsh_buckets) / 2;
    const std::vector<float> planes = LshPlanes(spec_, spec_.query_dim);
    std::vector<std::vector<size_t>> buckets(Size(spec_.lsh_rounds));
    for (size_t r = 0; r < buckets.size(); ++r) {
      for (const Row& row : q) {
        const float* own = planes.data() + r * dim() * half;
        buckets[r].push_back(kernels::LshBucketRef(row.data(), own, dim(), half).bucket);
      }
    }
    return buckets;
  }

  Rows Published(const Head& head) const {
    const Rows q = Stretched(head.q);
    const kernels::LshAttentionRef ref(
        {.length = q.size(),
         .dim = dim(),
         .value_dim = value_dim(),
         .rounds = Size(spec_.lsh_rounds)},
        {.buckets = Size(spec_.lsh_buckets), .chunk = Size(spec_.lsh_chunk), .causal = head.causal},
        Flat(q), Flat(head.v), q.size(), Buckets(q));
    Rows out;
    for (size_t t = 0; t < q.size(); ++t) {
      const auto row = ref.Out().begin() + static_cast<ptrdiff_t>(t * value_dim());
      out.emplace_back(row, row + static_cast<ptrdiff_t>(value_dim()));
    }
    return out;
  }

  // In the order sorted by bucket, a position attends to its own chunk and the previous one,
  // whatever their buckets. The result is the mean over the rounds.
  Rows Simple(const Head& head) const {
    const Rows q = Stretched(head.q);
    const size_t length = q.size(), chunk = std::min(Size(spec_.lsh_chunk), length);
    Rows keys = q, out(length, Row(value_dim()));
    for (Row& key : keys) {
      const double norm = std::max(std::sqrt(Dot(key, key)), 1e-12);
      for (double& x : key) x /= norm;
    }
    const auto buckets = Buckets(q);
    for (const std::vector<size_t>& bucket : buckets) {
      std::vector<size_t> order;
      for (size_t t = 0; t < length; ++t) order.push_back(t);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return bucket[a] < bucket[b]; });
      for (size_t i = 0; i < length; ++i) {
        std::vector<std::pair<size_t, double>> seen;  // positions and scores
        for (size_t j = 0; j < length; ++j) {
          const bool near = i / chunk == j / chunk || i / chunk == j / chunk + 1;
          if (!near || (head.causal && order[j] > order[i])) continue;
          seen.emplace_back(
              order[j], Dot(q[order[i]], keys[order[j]]) / std::sqrt(static_cast<double>(dim())));
        }
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const auto& [position, score] : seen) largest = std::max(largest, score);
        for (const auto& [position, score] : seen) sum += std::exp(score - largest);
        for (const auto& [position, score] : seen) {
          AddTo(out[order[i]],
                std::exp(score - largest) / sum / static_cast<double>(buckets.size()),
                head.v[position]);
        }
      }
    }
    return out;
  }

  const MixerSpec& spec_;
  const Rows omega_;
};

ModelRef::Pieces PrefixAndSteps(size_t length, size_t prefix) {
  ModelRef::Pieces pieces(length - prefix, 1);
  if (prefix > 0) pieces.insert(pieces.begin(), prefix);
  return pieces;
}

// How mixers read calls of these lengths: calls of one position are steps, others are cut.
Cuts CutsOf(const ModelRef::Pieces& calls) {
  Cuts cuts;
  size_t at = 0;
  for (const size_t call : calls) {
    for (size_t left = call, piece = 0; left > 0; left -= piece, at += piece) {
      piece = std::min(left, Engine::kCutPositions - at % Engine::kCutPositions);
      cuts.push_back({piece, call == 1});
    }
  }
  return cuts;
}

}  // namespace

class ModelRef::Network {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;  // one per position

  Network(const Checkpoint& checkpoint, const Model& model)
      : checkpoint_(checkpoint),
        model_(model.packed()),
        precision_(model.precision()),
        spec_(checkpoint.spec()) {}

  Rows Outputs(const std::vector<int32_t>& tokens, const Pieces& pieces) {
    if (spec_.encoder_decoder()) return Pair(tokens, CutsOf(pieces));
    if (spec_.patches()) return Head(Patched(Embedded(tokens)));
    return Head(Stack("transformer", model_.stack, Embedded(tokens), CutsOf(pieces)));
  }
  Rows Outputs(const std::vector<float>& frames, const Pieces& pieces) {
    const auto width = static_cast<ptrdiff_t>(spec_.speech()->Inputs());
    Rows x;
    for (auto at = frames.begin(); at < frames.end(); at += width) x.emplace_back(at, at + width);
    if (spec_.lstm()) return Head(Lstm(std::move(x)));
    x = Linear("input_projection", x);
    for (size_t t = 0; t < x.size(); ++t) Place(t, x[t]);
    return Head(Stack("transformer", model_.stack, std::move(x), CutsOf(pieces)));
  }

  size_t Inputs() const { return Size(spec_.speech()->Inputs()); }  // floats per position

 private:
  static size_t Size(int n) { return static_cast<size_t>(n); }

  Row RowOf(const std::string& name, size_t row, size_t width) const {
    const auto from = checkpoint_.Tensor(name).subspan(row * width, width);
    return {from.begin(), from.end()};
  }

  // The row of a token, or the sum of the rows of its colors.
  Row EmbeddingOf(const std::string& name, int32_t token) const {
    const size_t width = Size(spec_.input.value_embedding);
    if (!spec_.input.whole_pixels) return RowOf(name, Size(token), width);
    Row sum(width);
    for (const size_t row : PixelRows(token)) {
      const Row color = RowOf(name, row, width);
      for (size_t i = 0; i < width; ++i) sum[i] += color[i];
    }
    return sum;
  }

  Rows Embedded(const std::vector<int32_t>& tokens) {
    Rows x, stem;
    if (spec_.input.stem.channels > 0) {
      stem = StemRef(spec_, tokens, [&](const std::string& name, const Row& row) {
        return Linear(name, {row})[0];
      });
    }
    for (size_t t = 0; t < tokens.size(); ++t) {
      x.push_back(
          EmbeddingOf(spec_.head.tied ? "predictor.weight" : "value_embedding.weight", tokens[t]));
      if (spec_.head.tied) {
        for (double& value : x[t]) value *= std::sqrt(static_cast<double>(spec_.stack.d_model));
      }
      if (spec_.input.pixel_above) {
        const size_t row = Size(spec_.RowTokens());
        const Row above = EmbeddingOf("above_embedding.weight",
                                      t + 1 < row ? NothingAbove(spec_) : tokens[t + 1 - row]);
        for (size_t i = 0; i < above.size(); ++i) x[t][i] += above[i];
      }
      Place(t, x[t]);
    }
    if (!stem.empty()) x = Sum(std::move(x), stem);
    return spec_.input.norm ? Norm(x, "embedding_norm") : x;
  }

  // The head's inputs by the definition of PatchSpec, for embeddings u.
  Rows Patched(const Rows& u) {
    const size_t tokens = Size(spec_.input.patch.tokens), width = u[0].size();
    const size_t before = Size(FirstPredicted(spec_));  // tokens that no position predicts
    Rows joined;
    std::map<size_t, size_t> row_of;  // patch -> row of `joined`
    for (size_t n = before; n < before + u.size(); ++n) {
      if (n % tokens != 0) continue;
      row_of[n / tokens] = joined.size();
      Row& row = joined.emplace_back();
      for (size_t i = n + 1; i <= n + tokens; ++i) {  // token i - P
        const bool given = i >= tokens + before;
        const Row& from = given ? u[i - tokens - before] : Row(width);
        row.insert(row.end(), from.begin(), from.end());
      }
    }
    const Cuts steps(joined.size(), {.length = 1, .step = true});
    Rows y = joined;
    if (!y.empty()) y = Stack("transformer", model_.stack, Linear("patch.in", joined), steps);
    const Rows rows = Linear("patch.out", y);
    Rows z = u;
    if (const size_t taps = Size(spec_.input.patch.convolution); taps > 0) {
      z = Sum(std::move(z), Depthwise("patch.convolution", taps, taps - 1, u));
    }
    for (size_t t = 0; t < u.size(); ++t) {
      const size_t n = t + before;
      const auto found = row_of.find(n / tokens);
      if (found == row_of.end()) continue;
      for (size_t i = 0; i < width; ++i) z[t][i] += rows[found->second][n % tokens * width + i];
    }
    Rows hidden = Linear("patch.linear1", Norm(z, "patch.norm1"));
    for (Row& row : hidden) {
      for (double& value : row) value = kernels::ActivationRef(kernels::Activation::kGelu, value);
    }
    return Norm(Sum(z, Linear("patch.linear2", hidden)), "patch.norm2");
  }

  // Adds or appends the position embedding. Past the table, the sine positions continue.
  void Place(size_t t, Row& x) const {
    const size_t dims = Size(spec_.PositionDims());
    Row pe(dims);
    for (size_t i = 0; i < dims; ++i) {
      const double angle =
          static_cast<double>(t) /
          std::pow(10000.0, static_cast<double>(i - i % 2) / static_cast<double>(dims));
      pe[i] = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
    if (dims > 0 && t < Size(spec_.input.max_length)) pe = RowOf("pos_embedding.pe", t, dims);
    if (spec_.input.positions == Positions::kAdded) {
      for (size_t i = 0; i < pe.size(); ++i) x[i] += pe[i];
    } else {
      x.insert(x.end(), pe.begin(), pe.end());
    }
  }

  // Returns zeros before the separator, then the outputs of the decoder, which attends to the
  // encoder's outputs.
  Rows Pair(const std::vector<int32_t>& tokens, Cuts cuts) {
    const auto separator = std::find(tokens.begin(), tokens.end(), Vocabulary::kSeparator);
    const auto first = static_cast<size_t>(separator - tokens.begin());
    Rows out(first, Row(Size(spec_.OutputSize())));
    if (separator == tokens.end()) return out;
    Rows memory;
    if (first > 0) {
      memory = Stack("encoder", model_.encoder, Embedded({tokens.begin(), separator}), {{first}});
    }
    for (size_t left = first; left > 0;) {  // removes the encoder's tokens
      const size_t some = std::min(left, cuts[0].length);
      cuts[0].length -= some, left -= some;
      if (cuts[0].length == 0) cuts.erase(cuts.begin());
    }
    for (Row& row :
         Head(Stack("decoder", model_.stack, Embedded({separator, tokens.end()}), cuts, &memory))) {
      out.push_back(std::move(row));
    }
    return out;
  }

  // `cut`: the engine's stack, for its split into groups. `memory`: the encoder's outputs, for the
  // decoder's cross attention; null: not a decoder.
  Rows Stack(const std::string& name, const PackedStack& cut, Rows x, const Cuts& cuts,
             const Rows* memory = nullptr) {
    const bool decoder = memory != nullptr, encoder = spec_.encoder_decoder() && !decoder;
    size_t part = 0;
    const auto next = [&]() -> const PackedPart& { return cut.parts[part++]; };
    // x = LN(x + f(x)), or x + f(LN(x)).
    const auto add = [&](const std::string& norm, auto f) {
      x = spec_.stack.norm_first ? Sum(x, f(Norm(x, norm))) : Norm(Sum(x, f(x)), norm);
    };
    for (int l = 0; l < spec_.stack.layers(); ++l) {
      const std::string layer = StrCat(name, ".layers.", l, ".");
      const MixerSpec& own = spec_.stack.mixer(Size(l));
      const MixerSpec self = encoder ? CrossMixer(own) : own;
      if (spec_.stack.convolution > 0) {
        next();  // skips the convolution's part, which has no groups
        add(layer + "convolution_norm",
            [&](const Rows& y) { return Convolved(layer + "convolution", y); });
      }
      const std::string attention = layer + (decoder ? "self_attention" : "attention");
      add(layer + "norm1", [&](const Rows& y) {
        return Grouped(StrCat(attention, ".", FindMixer(self.kind).out),
                       Mixed(attention, self, y, nullptr, cuts, encoder), next());
      });
      if (decoder) {
        const MixerSpec cross = CrossMixer(own);
        add(layer + "norm2", [&](const Rows& y) {
          return Grouped(layer + "cross_attention.out_projection",
                         Mixed(layer + "cross_attention", cross, y, memory, {}, true), next());
        });
      }
      if (spec_.stack.feed_forward == FeedForwardKind::kNone) continue;
      add(layer + (decoder ? "norm3" : "norm2"), [&](const Rows& y) {
        const bool shifted = spec_.stack.feed_forward == FeedForwardKind::kShifted;
        Rows hidden = Linear(layer + "linear1", shifted ? Shifted(layer + "shift", y) : y);
        if (shifted) {
          for (Row& row : hidden) {
            for (double& value : row) value = kernels::SquaredReluRef(value);
          }
        } else if (spec_.stack.feed_forward == FeedForwardKind::kGated) {
          const Rows gates = Linear(layer + "gate", y);
          for (size_t t = 0; t < hidden.size(); ++t) Gate(gates[t], hidden[t]);
        } else {
          for (Row& row : hidden) Activate(row);
        }
        return Grouped(layer + "linear2", hidden, next());
      });
    }
    if (spec_.stack.final_norm) x = Norm(x, name + ".norm");
    return x;
  }

  static void Gate(const Row& gates, Row& row) {
    for (size_t i = 0; i < row.size(); ++i) row[i] *= kernels::SiluRef(gates[i]);
  }

  void Activate(Row& row) const {
    const auto activation = spec_.stack.activation == Activation::kRelu
                                ? kernels::Activation::kRelu
                                : kernels::Activation::kGelu;
    for (double& value : row) value = kernels::ActivationRef(activation, value);
  }

  // x + (previous x - x) * shift
  Rows Shifted(const std::string& name, const Rows& x) const {
    const Row shift = RowOf(name, 0, x[0].size());
    Rows y = x;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < shift.size(); ++c) {
        y[t][c] += ((t > 0 ? x[t - 1][c] : 0) - x[t][c]) * shift[c];
      }
    }
    return y;
  }

  // A layer's convolution: over the last positions if the network is causal, else over the
  // surrounding ones.
  Rows Convolved(const std::string& name, const Rows& x) const {
    const size_t width = Size(spec_.stack.convolution);
    Rows y = Depthwise(name, width, spec_.Causal() ? width - 1 : width / 2, x);
    for (Row& row : y) Activate(row);
    return y;
  }

  // The depthwise convolution over `width` positions, from `before` earlier ones on.
  Rows Depthwise(const std::string& name, size_t width, size_t before, const Rows& x) const {
    Rows y;
    for (size_t t = 0; t < x.size(); ++t) {
      const size_t d = x[t].size();
      Row& sum = y.emplace_back(RowOf(name + ".bias", 0, d));
      for (size_t j = 0; j < width; ++j) {
        if (t + j < before || t + j - before >= x.size()) continue;
        const Row weight = RowOf(name + ".weight", j, d);
        for (size_t c = 0; c < d; ++c) sum[c] += weight[c] * x[t + j - before][c];
      }
    }
    return y;
  }

  // Outputs of a mixer's heads, side by side. `whole`: the mixer is not causal, because it is in an
  // encoder or attends to an encoder's outputs.
  Rows Mixed(const std::string& name, const MixerSpec& mixer, const Rows& x, const Rows* memory,
             const Cuts& cuts, bool whole) {
    if (FindMixer(mixer.kind).projections) return Recurrence(name, mixer, x);
    const Rows& seen = memory != nullptr ? *memory : x;
    const Rows q = Linear(name + ".query_projection", x),
               k = Linear(name + ".key_projection", seen),
               v = Linear(name + ".value_projection", seen);
    Rows omega;
    const bool random = mixer.feature_map == "rff" || mixer.feature_map == "favor";
    if (random && FindMixer(mixer.kind).maps) {
      const std::string tensor = name + ".inner_attention.feature_map.omega";
      const size_t dim = Size(mixer.query_dim), columns = checkpoint_.Tensor(tensor).size() / dim;
      for (size_t i = 0; i < dim; ++i) omega.push_back(RowOf(tensor, i, columns));
    }
    const MixerRef ref(mixer, omega);
    Rows mixed(x.size());
    for (size_t h = 0; h < Size(mixer.heads); ++h) {
      const auto head = [&](const Rows& from, int width) {
        Rows rows;
        const size_t readers = from.empty() ? 1 : Size(mixer.heads * width) / from[0].size();
        for (const Row& row : from) {
          const auto begin = row.begin() + static_cast<ptrdiff_t>(h / readers) * width;
          rows.emplace_back(begin, begin + width);
        }
        return rows;
      };
      const Rows out =
          ref.Out({.q = head(q, mixer.query_dim),
                   .k = head(k, mixer.query_dim),
                   .v = head(v, mixer.value_dim),
                   .index = h,
                   .causal = !whole && (spec_.Causal() || FindMixer(mixer).always_causal),
                   .recurrent = !whole && Recurrent(),
                   .narrow = precision_ != Precision::kF32,
                   .cuts = cuts});
      for (size_t t = 0; t < x.size(); ++t)
        mixed[t].insert(mixed[t].end(), out[t].begin(), out[t].end());
    }
    return mixed;
  }

  // Mixed() for a recurrence. The state is not rounded, so cuts do not matter.
  Rows Recurrence(const std::string& name, const MixerSpec& mixer, const Rows& x) {
    const MixerInfo& kind = FindMixer(mixer.kind);
    std::map<std::string, Rows> in;
    GatedHead head;
    for (const ProjectionInfo& projection : MixerProjections(mixer)) {
      Rows& own = in[projection.name];
      if (projection.carried) {
        own = carried_;
        continue;
      }
      own = Linear(StrCat(name, ".", projection.name),
                   projection.shift.empty() ? x : Shifted(StrCat(name, ".", projection.shift), x));
      if (projection.carries) carried_ = own;
    }
    auto tensors = std::make_shared<std::map<std::string, Row>>();
    for (const TensorInfo& info : kind.tensors(mixer)) {
      const auto from = checkpoint_.Tensor(StrCat(name, ".", info.name));
      (*tensors)[info.name].assign(from.begin(), from.end());
    }
    head.own = tensors;
    std::vector<GatedHead> heads;
    std::vector<Rows> outs;
    for (; head.index < Size(mixer.heads); ++head.index) {
      for (const ProjectionInfo& projection : MixerProjections(mixer)) {
        Rows& own = head.in[projection.name];
        own.assign(x.size(), Row());
        for (int c = 0; c < projection.width; ++c) {
          const size_t at = Size(projection.RowOf(static_cast<int>(head.index), c, mixer.heads));
          for (size_t t = 0; t < x.size(); ++t) own[t].push_back(in[projection.name][t][at]);
        }
      }
      heads.push_back(head);
      outs.push_back(kind.gated ? GatedOut(mixer, head) : Rwkv7Out(mixer, head));
    }
    if (kind.gated) NormalizeTogether(mixer, heads, outs);
    Rows mixed(x.size());
    for (const Rows& out : outs) {
      for (size_t t = 0; t < x.size(); ++t)
        mixed[t].insert(mixed[t].end(), out[t].begin(), out[t].end());
    }
    return mixed;
  }

  bool Recurrent() const {
    if (!spec_.Causal()) return false;
    return std::all_of(spec_.stack.pattern.begin(), spec_.stack.pattern.end(),
                       [](const MixerSpec& mixer) { return FindMixer(mixer.kind).recurrent; });
  }

  // Bidirectional LSTM layers.
  Rows Lstm(Rows x) {
    const size_t d = Size(spec_.stack.d_model);
    for (int l = 0; l < spec_.stack.layers(); ++l) {
      Rows out(x.size());
      for (const bool backward : {false, true}) {
        const std::string end = StrCat("_l", l, backward ? "_reverse" : "");
        Row bias = RowOf("lstm.bias_ih" + end, 0, 4 * d);
        const Row other = RowOf("lstm.bias_hh" + end, 0, 4 * d);
        for (size_t i = 0; i < bias.size(); ++i) bias[i] += other[i];
        Row cell(d), h(d);
        for (size_t i = 0; i < x.size(); ++i) {
          const size_t t = backward ? x.size() - 1 - i : i;
          Row gates = bias;
          AddProduct("lstm.weight_ih" + end, x[t], 0, x[t].size(), gates);
          AddProduct("lstm.weight_hh" + end, h, 0, d, gates);
          for (size_t c = 0; c < d; ++c) {
            const kernels::LstmCellRef next = kernels::LstmCell(
                gates[c], gates[d + c], gates[2 * d + c], gates[3 * d + c], cell[c]);
            cell[c] = next.cell, h[c] = next.out;
          }
          // Forward outputs come first.
          out[t].insert(out[t].end(), h.begin(), h.end());
        }
      }
      x = std::move(out);
    }
    return x;
  }

  // A matrix with rounded weights, and the factors of its inputs (int8 only).
  struct Matrix {
    Row weight;
    std::vector<float> factor;
  };
  // The matrix of the tensor [out, in], rounded at its first use.
  const Matrix& MatrixOf(const std::string& tensor, size_t out) {
    const auto known = matrices_.find(tensor);
    if (known != matrices_.end()) return known->second;
    const auto wide = checkpoint_.Tensor(tensor);
    const size_t in = wide.size() / out;
    Matrix& matrix = matrices_[tensor];
    matrix.weight.assign(wide.begin(), wide.end());
    if (PrecisionOf(tensor) == Precision::kBf16) {
      std::transform(wide.begin(), wide.end(), matrix.weight.begin(), kernels::RoundedToBFloat16);
    } else if (PrecisionOf(tensor) == Precision::kInt8) {
      matrix.factor = InputFactors(checkpoint_, tensor);
      const Int8Matrix narrow(wide, out, matrix.factor);
      for (size_t i = 0; i < wide.size(); ++i) {
        matrix.weight[i] = double{narrow.scales[i / in]} * narrow.values[i];
      }
    }
    return matrix;
  }
  Precision PrecisionOf(const std::string& tensor) const {
    if (tensor.starts_with("stem.features.")) return Precision::kF32;
    const bool outer = tensor == "predictor.weight" || tensor == "input_projection.weight";
    return outer ? PredictorPrecision(spec_, precision_) : precision_;
  }

  // Adds the product of inputs [begin, end) of x, rounded together, with their matrix columns.
  void AddProduct(const std::string& tensor, const Row& x, size_t begin, size_t end, Row& y) {
    const Matrix& matrix = MatrixOf(tensor, y.size());
    std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(begin),
                            x.begin() + static_cast<ptrdiff_t>(end));
    Row rounded(x.begin() + static_cast<ptrdiff_t>(begin), x.begin() + static_cast<ptrdiff_t>(end));
    for (size_t k = 0; k < matrix.factor.size(); ++k) part[k] *= matrix.factor[k];
    if (PrecisionOf(tensor) == Precision::kBf16) {
      std::transform(part.begin(), part.end(), rounded.begin(), kernels::RoundedToBFloat16);
    } else if (PrecisionOf(tensor) == Precision::kInt8) {
      // Inputs count as zeros if their scale, the largest magnitude / 127, does not exceed the
      // smallest normal float.
      float most = 0;
      for (const float value : part) most = std::max(most, std::abs(value));
      rounded.assign(part.size(), 0);
      if (most / 127 > std::numeric_limits<float>::min()) {
        rounded = kernels::Int8RowRef(part.size(), part.data());
      }
    }
    for (size_t o = 0; o < y.size(); ++o) {
      const double* weight = matrix.weight.data() + o * x.size() + begin;
      for (size_t k = 0; k < rounded.size(); ++k) y[o] += rounded[k] * weight[k];
    }
  }

  Rows Head(const Rows& x) { return Linear("predictor", x); }

  Rows Linear(const std::string& name, const Rows& x) {
    if (x.empty()) return {};
    return Grouped(name, x, {{.begin = 0, .end = x[0].size()}}, 1);
  }
  Rows Grouped(const std::string& name, const Rows& x, const PackedPart& part) {
    return Grouped(name, x, part.groups, part.values);
  }
  // y = x W^T + b, as a sum over groups of inputs. A group has `width` inputs per head or hidden
  // unit.
  Rows Grouped(const std::string& name, const Rows& x, const std::vector<PackedGroup>& groups,
               size_t width) {
    Row bias(checkpoint_.Tensor(name + ".weight").size() / x[0].size());
    if (checkpoint_.Has(name + ".bias")) {
      const auto given = checkpoint_.Tensor(name + ".bias");
      bias.assign(given.begin(), given.end());
    }
    Rows y;
    for (const Row& row : x) {
      Row& sum = y.emplace_back(bias);
      for (const PackedGroup& group : groups) {
        AddProduct(name + ".weight", row, group.begin * width, group.end * width, sum);
      }
    }
    return y;
  }

  static Rows Sum(Rows x, const Rows& add) {
    for (size_t t = 0; t < x.size(); ++t) {
      std::transform(x[t].begin(), x[t].end(), add[t].begin(), x[t].begin(), std::plus<>());
    }
    return x;
  }

  Rows Norm(Rows x, const std::string& name) const {
    for (Row& row : x) {
      const bool layer = spec_.stack.norm == NormKind::kLayer;
      row = kernels::LayerNormRef(row, checkpoint_.Tensor(name + ".weight").data(),
                                  layer ? checkpoint_.Tensor(name + ".bias").data() : nullptr,
                                  spec_.stack.norm_eps);
    }
    return x;
  }

  const Checkpoint& checkpoint_;
  const Model::Packed& model_;  // used only for its groups
  const Precision precision_;
  const ModelSpec& spec_;
  std::map<std::string, Matrix> matrices_;
  Rows carried_;  // columns of the latest projection with ProjectionInfo::carries
};

ModelRef::ModelRef(const Checkpoint& checkpoint, const Model& model)
    : network_(std::make_unique<Network>(checkpoint, model)) {}
ModelRef::~ModelRef() = default;

ModelRef::Rows ModelRef::Outputs(const std::vector<int32_t>& tokens, size_t prefix) {
  return Outputs(tokens, PrefixAndSteps(tokens.size(), prefix));
}
ModelRef::Rows ModelRef::Outputs(const std::vector<int32_t>& tokens, const Pieces& pieces) {
  return network_->Outputs(tokens, pieces);
}
ModelRef::Rows ModelRef::Outputs(const std::vector<float>& frames, size_t prefix) {
  const size_t positions = frames.size() / network_->Inputs();
  return Outputs(frames, PrefixAndSteps(positions, prefix));
}
ModelRef::Rows ModelRef::Outputs(const std::vector<float>& frames, const Pieces& pieces) {
  return network_->Outputs(frames, pieces);
}

}  // namespace linnet
