// Tests every registered mixer inside layers. Compares values and gradients of transformer encoders
// and decoders with plain loops over their weights, for whole sequences, pieces, steps and batches.
//
// mixer_conformance_test.cc tests the mixers alone, over more lengths and forms.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "linnet/nn/decoder.h"
#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

constexpr int64_t kWidth = 12;  // d_model

MixerSpec Sized(MixerSpec spec) {
  spec.heads = 2, spec.query_dim = 4, spec.value_dim = 3;
  return spec;
}

// Layers in plain loops over doubles: x is [positions][d_model].
class LayersOracle {
 public:
  LayersOracle(const torch::nn::Module& module, const TransformerOptions& options)
      : options_(options) {
    for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
      for (const auto& item : items) {
        const Tensor x = item.value().detach();
        weights_[item.key()] = RowsOf(x.reshape({1, x.dim() > 1 ? x.size(0) : 1, 1, x.size(-1)}), 0,
                                      0, x.dim() > 1 ? x.size(0) : 1);
      }
    }
  }

  // Element i of a parameter in row-major order.
  double& Weight(const std::string& name, size_t i) {
    Rows& rows = weights_.at(name);
    return rows[i / rows[0].size()][i % rows[0].size()];
  }

  Rows Encoder(Rows x, bool causal) const {
    for (int64_t i = 0; i < options_.layers; ++i) {
      const std::string layer = StrCat("layers.", i, ".");
      if (options_.convolution > 0) {
        x = Around(x, layer + "convolution_norm",
                   [&](const Rows& in) { return Activated(Convolved(layer, in, causal)); });
      }
      x = Around(x, layer + "norm1", [&](const Rows& in) {
        return Attention(layer + "attention.", options_.mixer(i), in, in, causal);
      });
      x = FeedForward(layer, "norm2", x);
    }
    return Norm("norm", x);
  }
  // A decoder's self attention is causal; its cross attention is over the whole memory.
  Rows Decoder(Rows x, const Rows& memory, const DecoderOptions& options) const {
    for (int64_t i = 0; i < options_.layers; ++i) {
      const std::string layer = StrCat("layers.", i, ".");
      x = Around(x, layer + "norm1", [&](const Rows& in) {
        return Attention(layer + "self_attention.", options_.mixer(i), in, in, true);
      });
      x = Around(x, layer + "norm2", [&](const Rows& in) {
        return Attention(layer + "cross_attention.", options.cross_mixer(i), in, memory, false);
      });
      x = FeedForward(layer, "norm3", x);
    }
    return Norm("norm", x);
  }

 private:
  // LN(x + f(x)), or x + f(LN(x)) for pre-norm layers.
  Rows Around(const Rows& x, const std::string& norm,
              const std::function<Rows(const Rows&)>& f) const {
    Rows sum = f(options_.norm_first ? Norm(norm, x) : x);
    for (size_t t = 0; t < x.size(); ++t) AddTo(sum[t], 1, x[t]);
    return options_.norm_first ? sum : Norm(norm, sum);
  }

  Rows FeedForward(const std::string& layer, const std::string& norm, const Rows& x) const {
    return Around(x, layer + norm, [&](const Rows& in) {
      if (options_.feed_forward == FeedForwardKind::kMlp) {
        return Linear(layer + "linear2", Activated(Linear(layer + "linear1", in)));
      }
      if (options_.feed_forward == FeedForwardKind::kShifted) {
        Rows hidden = Linear(layer + "linear1", Shifted(layer + "shift", in));
        for (Row& row : hidden) {
          for (double& a : row) a = a > 0 ? a * a : 0;
        }
        return Linear(layer + "linear2", hidden);
      }
      Rows hidden = Linear(layer + "linear1", in);
      const Rows gates = Linear(layer + "gate", in);
      for (size_t t = 0; t < hidden.size(); ++t) {
        for (size_t i = 0; i < hidden[t].size(); ++i) {
          hidden[t][i] *= gates[t][i] / (1 + std::exp(-gates[t][i]));
        }
      }
      return Linear(layer + "linear2", hidden);
    });
  }

  // x + (previous x - x) * shift
  Rows Shifted(const std::string& shift, const Rows& x) const {
    const Row& share = weights_.at(shift)[0];
    Rows y = x;
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < share.size(); ++c) {
        y[t][c] += ((t > 0 ? x[t - 1][c] : 0) - x[t][c]) * share[c];
      }
    }
    return y;
  }

  Rows Attention(const std::string& name, const MixerSpec& spec, const Rows& x, const Rows& memory,
                 bool causal) const {
    const std::vector<ProjectionInfo> infos = MixerProjections(spec);
    std::vector<Rows> in;
    for (const ProjectionInfo& info : infos) {
      const Rows& read = in.empty() ? x : memory;
      in.push_back(info.carried ? carried_
                   : info.shift.empty()
                       ? Linear(name + info.name, read)
                       : Linear(name + info.name, Shifted(name + info.shift, read)));
      if (info.carries) carried_ = in.back();
    }
    const auto omega = weights_.find(name + "inner_attention.feature_map.omega");
    // The attention's tensors, row-major, without prefix `name`.
    auto own = std::make_shared<std::map<std::string, Row>>();
    for (const auto& [tensor, rows] : weights_) {
      if (!tensor.starts_with(name)) continue;
      Row& flat = (*own)[tensor.substr(name.size())];
      for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    }
    std::vector<Head> heads;
    for (int h = 0; h < spec.heads; ++h) {
      const auto part = [&](size_t i) {
        Rows rows(in[i].size());
        for (int c = 0; c < infos[i].width; ++c) {
          const auto at = static_cast<size_t>(infos[i].RowOf(h, c, spec.heads));
          for (size_t t = 0; t < rows.size(); ++t) rows[t].push_back(in[i][t][at]);
        }
        return rows;
      };
      Head head{.q = part(0),
                .k = part(1),
                .v = part(2),
                .causal = causal || FindMixer(spec).always_causal,
                .omega = omega == weights_.end() ? Rows() : omega->second,
                .own = own,
                .index = static_cast<size_t>(h)};
      for (size_t i = 3; i < infos.size(); ++i) head.more.push_back(part(i));
      heads.push_back(std::move(head));
    }
    Rows all(x.size());
    for (auto at = heads.begin(); at != heads.end(); at += NormHeads(spec)) {
      for (const Rows& out : OutsOf(*FindOracle(spec.kind), spec, {at, at + NormHeads(spec)})) {
        for (size_t t = 0; t < x.size(); ++t) {
          all[t].insert(all[t].end(), out[t].begin(), out[t].end());
        }
      }
    }
    return Linear(name + FindMixer(spec).out, all);
  }

  // The window is centered on each position or, if causal, ends with it.
  Rows Convolved(const std::string& layer, const Rows& x, bool causal) const {
    const Rows& weight = weights_.at(layer + "convolution.weight");
    const auto width = static_cast<ptrdiff_t>(weight.size());
    const ptrdiff_t before = causal ? width - 1 : width / 2;
    const auto length = static_cast<ptrdiff_t>(x.size());
    Rows out(x.size(), weights_.at(layer + "convolution.bias")[0]);
    for (ptrdiff_t t = 0; t < length; ++t) {
      for (ptrdiff_t w = 0; w < width; ++w) {
        const ptrdiff_t from = t + w - before;
        if (from < 0 || from >= length) continue;
        for (size_t c = 0; c < x[0].size(); ++c) {
          out[static_cast<size_t>(t)][c] +=
              weight[static_cast<size_t>(w)][c] * x[static_cast<size_t>(from)][c];
        }
      }
    }
    return out;
  }

  Rows Linear(const std::string& name, const Rows& x) const {
    const Rows& weight = weights_.at(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    Rows out(x.size(), bias == weights_.end() ? Row(weight.size()) : bias->second[0]);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < weight.size(); ++o) out[t][o] += Dot(weight[o], x[t]);
    }
    return out;
  }

  Rows Norm(const std::string& name, Rows x) const {
    const Row& weight = weights_.at(name + ".weight")[0];
    const bool rms = options_.norm == NormKind::kRms;
    const Row bias = rms ? Row(weight.size()) : weights_.at(name + ".bias")[0];
    for (Row& row : x) {
      const auto n = static_cast<double>(row.size());
      double mean = 0, square = 0;
      for (const double a : row) mean += rms ? 0 : a / n;
      for (const double a : row) square += (a - mean) * (a - mean) / n;
      for (size_t c = 0; c < row.size(); ++c) {
        row[c] = (row[c] - mean) / std::sqrt(square + options_.norm_eps) * weight[c] + bias[c];
      }
    }
    return x;
  }

  Rows Activated(Rows x) const {
    const bool gelu = options_.activation == Activation::kGelu;
    for (Row& row : x) {
      for (double& a : row) a = gelu ? a / 2 * std::erfc(-a / std::sqrt(2.0)) : std::max(a, 0.0);
    }
    return x;
  }

  TransformerOptions options_;
  std::map<std::string, Rows> weights_;
  // The output of the latest projection that a layer passes to later layers
  // (ProjectionInfo::carries).
  mutable Rows carried_;
};

// Conversions between sequences of a batch [N, L, d_model] and the oracle's rows.
Rows SequenceOf(const Tensor& x, int64_t n, int64_t length) {
  return RowsOf(x.unsqueeze(2), n, 0, length);
}
Tensor TensorOf(const Rows& rows) {
  Tensor x = torch::empty({static_cast<int64_t>(rows.size()), kWidth}, torch::kFloat64);
  for (size_t t = 0; t < rows.size(); ++t) {
    x[static_cast<int64_t>(t)] = torch::tensor(rows[t], torch::kFloat64);
  }
  return x;
}

struct LayerCase {
  std::string name;
  MixerCase mixer;
  bool norm_first = false;
  int64_t convolution = 0;
  bool modern = false;   // RMS norms and gated feed-forward blocks
  bool shifted = false;  // feed-forward blocks with a token shift
  friend void PrintTo(const LayerCase& one, std::ostream* out) { *out << one.name; }
};

// Every mixer case in default layers. The rest of a layer does not depend on its mixer, so only the
// first case of each mixer is also tested in other kinds of layers. There are two sets of three
// kinds, and consecutive mixers take different sets.
std::vector<LayerCase> LayerCases(const std::function<bool(const MixerInfo&)>& applies) {
  std::vector<LayerCase> cases;
  bool turn = false;
  for (const MixerCase& mixer : MixerCases()) {
    if (!applies(mixer.info)) continue;
    cases.push_back({mixer.name, mixer});
    if (!mixer.first) continue;
    turn = !turn;
    if (turn) {
      cases.push_back({mixer.name + "_norm_first", mixer, true});
      cases.push_back({mixer.name + "_convolution", mixer, false, 3});
      cases.push_back({mixer.name + "_modern_norm_first", mixer, true, 0, true});
    } else {
      cases.push_back({mixer.name + "_norm_first_convolution", mixer, true, 3});
      cases.push_back({mixer.name + "_modern", mixer, false, 0, true});
      cases.push_back({mixer.name + "_shifted_norm_first", mixer, true, 0, false, true});
    }
  }
  return cases;
}

class Layers : public testing::TestWithParam<LayerCase> {
 protected:
  static constexpr int64_t kLayers = 2;
  TransformerOptions Options() const {
    return {.pattern = TwoLayers(Sized(GetParam().mixer.spec)),
            .layers = kLayers,
            .d_model = kWidth,
            .d_ff = 10,
            .feed_forward = GetParam().modern    ? FeedForwardKind::kGated
                            : GetParam().shifted ? FeedForwardKind::kShifted
                                                 : FeedForwardKind::kMlp,
            .activation = GetParam().norm_first ? Activation::kGelu : Activation::kRelu,
            .norm = GetParam().modern ? NormKind::kRms : NormKind::kLayer,
            .norm_first = GetParam().norm_first,
            .convolution = GetParam().convolution};
  }
  const MixerInfo& info() const { return GetParam().mixer.info; }
  Transformer Make(torch::ScalarType type) const { return Make(type, Options()); }
  static Transformer Make(torch::ScalarType type, const TransformerOptions& options) {
    torch::manual_seed(5);
    Transformer built = BuildTransformer(options);
    Perturb(*built.batch);
    built.batch->to(type);
    built.batch->eval();
    return built;
  }
  // Adds noise to all parameters, because norms are initialized to identities, which would hide
  // errors in their weights and biases. Makes keys small for polynomial2: its similarities,
  // (q . k / sqrt(D) + 1)^2, vanish at q . k = -sqrt(D). Where their sum is near 0, outputs and
  // gradients lose their digits in fp32.
  static void Perturb(torch::nn::Module& module) {
    const torch::NoGradGuard no_grad;
    const MixerSpec& spec = GetParam().mixer.spec;
    const bool small_keys =
        spec.feature_map == "polynomial2" || spec.similarity == Similarity::kPolynomial2;
    for (auto& item : module.named_parameters()) {
      Tensor& x = item.value();
      x.add_(0.2 * torch::randn_like(x));
      if (small_keys && item.key().find("key_projection") != std::string::npos) x.mul_(0.1);
    }
  }
  std::vector<bool> CausalMasks() const {
    return info().causal ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }
};
class RecurrentLayers : public Layers {};
class NotRecurrentLayers : public Layers {};
class DecoderLayers : public Layers {};

std::string NameOfTest(const testing::TestParamInfo<LayerCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Mixers, Layers,
                         testing::ValuesIn(LayerCases([](const MixerInfo&) { return true; })),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, RecurrentLayers, testing::ValuesIn(LayerCases(Remembers)),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, NotRecurrentLayers,
                         testing::ValuesIn(LayerCases([](const MixerInfo& info) {
                           return !Remembers(info);
                         })),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Mixers, DecoderLayers,
                         testing::ValuesIn(LayerCases([](const MixerInfo& info) {
                           return info.causal && !info.cross.empty();
                         })),
                         NameOfTest);

std::vector<std::string> WithoutOracle(const std::vector<std::string>& mixers,
                                       const std::vector<std::string>& maps) {
  std::vector<std::string> missing;
  for (const std::string& name : mixers) {
    if (FindOracle(name) == nullptr) missing.push_back("mixer '" + name + "'");
  }
  for (const std::string& name : maps) {
    if (!HasMapOracle(name)) missing.push_back("feature map '" + name + "'");
  }
  return missing;
}

TEST(Registry, EveryMixerAndFeatureMapHasAnOracle) {
  std::vector<std::string> mixers, maps;
  for (const MixerInfo& info : Mixers()) mixers.push_back(info.name);
  for (const FeatureMapInfo& map : FeatureMaps()) maps.push_back(map.name);
  for (const std::string& missing : WithoutOracle(mixers, maps)) {
    ADD_FAILURE() << missing
                  << " has no row in linnet/nn/test_oracle.h; write its definition there in plain "
                     "loops, and this test compares all its forms with them";
  }
  EXPECT_EQ(WithoutOracle({"full", "none"}, {"elu", "nothing"}),
            (std::vector<std::string>{"mixer 'none'", "feature map 'nothing'"}));
}

// Layers have more rounding steps than a mixer alone.
double Tolerance(const Rounding& rounding) { return 30 * rounding.off; }

// Tests each sequence alone, and in a batch with longer and shorter ones.
TEST_P(Layers, WholeSequencesMatchTheOracleInAnyBatch) {
  const std::vector<int64_t> lengths = {17, 3, 1, 9};
  for (const Rounding& rounding : kRoundings) {
    TransformerEncoder encoder = Make(rounding.type).batch;
    const LayersOracle oracle(*encoder, Options());
    const torch::NoGradGuard no_grad;
    const Tensor x = Normal({4, 17, kWidth}, rounding.type);
    for (const bool causal : CausalMasks()) {
      // Both masks matter even if the mixer is always causal: the convolution is causal only if the
      // mask is.
      const Tensor together =
          encoder->forward(x, Mask{.causal = causal, .lengths = Lengths(lengths)});
      for (int64_t n = 0; n < 4; ++n) {
        const int64_t length = lengths[static_cast<size_t>(n)];
        const Tensor want = TensorOf(oracle.Encoder(SequenceOf(x, n, length), causal));
        const Tensor alone =
            encoder->forward(x.narrow(0, n, 1).narrow(1, 0, length), Mask{.causal = causal})[0];
        EXPECT_LT(RelativeOff(together[n].narrow(0, 0, length), want), Tolerance(rounding)) << n;
        EXPECT_LT(RelativeOff(alone, want), Tolerance(rounding)) << n;
      }
    }
  }
}

// Gradients of the input and of every parameter, at about two elements each.
TEST_P(Layers, GradientsMatchDifferencesOfTheOracle) {
  constexpr int64_t kLength = 6;
  TransformerOptions options = Options();
  options.activation = Activation::kGelu;  // finite differences across relu's kink are wrong
  TransformerEncoder encoder = Make(torch::kFloat64, options).batch;
  LayersOracle oracle(*encoder, options);
  for (const bool causal : CausalMasks()) {
    // If the mixer is always causal, only a convolution makes the two masks differ.
    const bool same = options.convolution == 0 && info().always_causal;
    if (same && !causal) continue;
    const Tensor x = Normal({1, kLength, kWidth}).requires_grad_();
    const Tensor weights = Normal({kLength, kWidth});
    Rows rows = SequenceOf(x, 0, kLength);
    const Rows weight = SequenceOf(weights.unsqueeze(0), 0, kLength);
    const auto loss = [&] {
      double sum = 0;
      const Rows out = oracle.Encoder(rows, causal);
      for (size_t t = 0; t < out.size(); ++t) sum += Dot(out[t], weight[t]);
      return sum;
    };
    std::vector<std::string> names = {"x"};
    std::vector<Tensor> inputs = {x};
    for (const auto& item : encoder->named_parameters()) {
      names.push_back(item.key()), inputs.push_back(item.value());
    }
    const std::vector<Tensor> gradients =
        Gradients((encoder->forward(x, Mask{.causal = causal})[0] * weights).sum(), inputs);
    for (size_t which = 0; which < inputs.size(); ++which) {
      const Tensor got = gradients[which].contiguous();
      const int64_t first = got.numel() > 1 ? static_cast<int64_t>(which % 2) : 0;
      for (int64_t i = first; i < got.numel(); i += std::max<int64_t>(got.numel() / 2, 1)) {
        const auto at = static_cast<size_t>(i);
        double& number =
            which == 0 ? rows[at / kWidth][at % kWidth] : oracle.Weight(names[which], at);
        constexpr double kStep = 1e-5;
        const double before = number;
        const auto at_shift = [&](double shift) {
          number = before + shift;
          return loss();
        };
        // A fourth-order difference, because a norm of small outputs is strongly curved.
        const double slope = (8 * (at_shift(kStep) - at_shift(-kStep)) -
                              (at_shift(2 * kStep) - at_shift(-2 * kStep))) /
                             (12 * kStep);
        number = before;
        EXPECT_NEAR(got.data_ptr<double>()[i], slope, 1e-6 * std::max(1.0, std::abs(slope)))
            << names[which] << " " << i;
      }
    }
  }
}

TEST_P(RecurrentLayers, PiecesAndStepsMatchTheOracle) {
  constexpr int64_t kLength = 17;
  for (const Rounding& rounding : kRoundings) {
    Transformer built = Make(rounding.type);
    const LayersOracle oracle(*built.batch, Options());
    ASSERT_FALSE(built.recurrent.is_empty());
    const Tensor x = Normal({2, kLength, kWidth}, rounding.type).requires_grad_();
    const Tensor want = torch::stack({TensorOf(oracle.Encoder(SequenceOf(x, 0, kLength), true)),
                                      TensorOf(oracle.Encoder(SequenceOf(x, 1, kLength), true))});
    const Tensor weights = Normal({2, kLength, kWidth}, rounding.type);
    std::vector<Tensor> inputs = built.batch->parameters(), whole;
    inputs.push_back(x);
    if (info().causal) {
      whole = Gradients((built.batch->forward(x, Mask{.causal = true}) * weights).sum(), inputs);
    }
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{17}, {16, 1}, {3, 1, 2, 11}}) {
      RecurrentState state, copy;
      std::vector<Tensor> out;
      int64_t begin = 0;
      for (const int64_t count : cuts) {
        if (begin == cuts[0]) copy = state;
        out.push_back(built.batch->Piece(x.narrow(1, begin, count), state));
        begin += count;
      }
      const Tensor all = torch::cat(out, 1);
      EXPECT_LT(RelativeOff(all, want), Tolerance(rounding)) << cuts.size();
      const std::vector<Tensor> got = Gradients((all * weights).sum(), inputs);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_LT(Off(got[i], whole[i]), Tolerance(rounding) * std::max(1.0, Largest(whole[i])))
            << cuts.size() << " " << i;
      }
      if (whole.empty()) whole = got;  // forward() is not causal: the first cut replaces it
      const torch::NoGradGuard no_grad;
      for (int64_t t = cuts.size() < 2 ? 0 : cuts[0]; t < kLength; ++t) {
        EXPECT_LT(RelativeOff(built.recurrent->forward(x.select(1, t), copy), want.select(1, t)),
                  Tolerance(rounding))
            << t << " of " << cuts.size();
      }
    }
  }
}

TEST_P(NotRecurrentLayers, RefusesPieces) {
  Transformer built = Make(torch::kFloat64);
  EXPECT_TRUE(built.recurrent.is_empty());
  RecurrentState state;
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         built.batch->Piece(Normal({1, 3, kWidth}), state);
                       }),
                       "no recurrent form"));
}

// Decoders with self attention and the mixer's cross attention over a memory, in batches: whole
// sequences and steps.
TEST_P(DecoderLayers, WholeAndStepsMatchTheOracle) {
  constexpr int64_t kLength = 9;
  const std::vector<int64_t> lengths = {7, 1, 4};
  for (const Rounding& rounding : kRoundings) {
    if (GetParam().shifted) {
      const std::string error = ErrorOf([&] { BuildDecoder({.transformer = Options()}); });
      EXPECT_TRUE(Contains(error, "no token shift")) << error;
      return;
    }
    DecoderOptions options{.transformer = Options()};
    options.transformer.convolution = 0;  // decoders have none
    torch::manual_seed(6);
    Decoder built = BuildDecoder(options);
    Perturb(*built.batch);
    built.batch->to(rounding.type);
    const LayersOracle oracle(*built.batch, options.transformer);
    EXPECT_EQ(built.recurrent.is_empty(), !Remembers(info()));
    Tensor x = Normal({3, kLength, kWidth}, rounding.type).requires_grad_();
    Tensor memory = Normal({3, 7, kWidth}, rounding.type).requires_grad_();
    const Mask mask{.lengths = Lengths(lengths)};
    const Tensor out = built.batch->forward(x, memory, mask);
    std::vector<Tensor> want;
    for (int64_t n = 0; n < 3; ++n) {
      const Rows own = SequenceOf(memory, n, lengths[static_cast<size_t>(n)]);
      want.push_back(TensorOf(oracle.Decoder(SequenceOf(x, n, kLength), own, options)));
    }
    EXPECT_LT(RelativeOff(out, torch::stack(want)), Tolerance(rounding));
    DecoderState state = built.recurrent->Begin(memory, mask.lengths), copy;
    std::vector<Tensor> steps;
    for (int64_t t = 0; t < kLength; ++t) {
      if (t == 4) copy = state;
      steps.push_back(built.recurrent->forward(x.select(1, t), state));
    }
    EXPECT_LT(RelativeOff(torch::stack(steps, 1), torch::stack(want)), Tolerance(rounding));
    EXPECT_LT(RelativeOff(built.recurrent->forward(x.select(1, 4), copy), steps[4]),
              Tolerance(rounding));
    std::vector<Tensor> inputs = built.batch->parameters();
    inputs.push_back(x), inputs.push_back(memory);
    const Tensor weights = torch::randn_like(out.detach());
    const std::vector<Tensor> whole = Gradients((out * weights).sum(), inputs);
    const std::vector<Tensor> got = Gradients((torch::stack(steps, 1) * weights).sum(), inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(Off(got[i], whole[i]), Tolerance(rounding) * std::max(1.0, Largest(whole[i]))) << i;
    }
  }
}

}  // namespace
}  // namespace linnet::nn
