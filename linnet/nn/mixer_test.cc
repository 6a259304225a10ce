// Tests edge cases of mixers: inputs, parameters, and the registry. mixer_conformance_test.cc tests
// values and gradients in every form.
#include "linnet/nn/mixer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "linnet/nn/feature_map.h"
#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_util.h"
#include "linnet/ops/lowest_score.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class EveryKind : public testing::TestWithParam<MixerCase> {
 protected:
  // In evaluation mode, for deterministic outputs.
  static Mixer MakeOf(const MixerSpec& spec, torch::ScalarType type) {
    torch::manual_seed(11);
    Mixer attention = MakeMixer(spec, {3, 4, 5});
    attention->to(type);
    attention->eval();
    return attention;
  }
  Mixer Make(torch::ScalarType type = torch::kFloat64) { return MakeOf(GetParam().spec, type); }
  // A mask that every kind accepts.
  Mask Causal() const { return Mask{.causal = GetParam().info.causal}; }
};
// Mixers that read only queries, keys and values, with equally many heads of each.
// gated_mixer_test.cc tests the mixers that read more.
std::vector<MixerCase> AttentionCases() {
  std::vector<MixerCase> cases = MixerCases();
  std::erase_if(cases, [](const MixerCase& one) {
    return one.info.projections != nullptr || one.spec.key_heads > 0;
  });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, testing::ValuesIn(AttentionCases()),
                         [](const auto& info) { return info.param.name; });

// The output and the gradients of a query without keys are 0, also with eps = 0.
TEST_P(EveryKind, QueriesWithoutKeysGiveZero) {
  MixerSpec spec = GetParam().spec;
  spec.eps = 0;
  for (const Rounding& rounding : kRoundings) {
    const Mixer attention = MakeOf(spec, rounding.type);
    const auto leaf = [&](std::vector<int64_t> sizes) {
      return Normal(sizes, rounding.type).requires_grad_();
    };
    const Tensor q = leaf({2, 6, 3, 4}), k = leaf({2, 6, 3, 4}), v = leaf({2, 6, 3, 5});
    Mask mask = Causal();
    mask.lengths = Lengths({0, 4});
    const Tensor out = attention->forward(q, k, v, mask);
    EXPECT_TRUE(Finite(out));
    EXPECT_EQ(Largest(out[0]), 0);
    out.sum().backward();
    for (const Tensor& x : {q, k, v}) {
      if (!x.grad().defined()) continue;
      EXPECT_TRUE(Finite(x.grad()));
      EXPECT_EQ(Largest(x.grad()[0]), 0);
    }
    // The relu features of these inputs are zero; the features of other maps are not.
    const Tensor none = -torch::ones({2, 6, 3, 4}, rounding.type);
    const Tensor whole = attention->forward(none, none, v, Causal());
    EXPECT_TRUE(Finite(whole));
    if (!attention->recurrent()) continue;
    const auto at = [](const Tensor& x) { return x.select(1, 0); };
    MixerState state, memory;
    const Tensor first = attention->Step(at(none), at(none), at(v), state);
    EXPECT_TRUE(Finite(first));
    if (spec.feature_map == "relu") {
      EXPECT_EQ(Largest(whole), 0);
      EXPECT_EQ(Largest(first), 0);
    }
    if (!attention->cross()) continue;
    attention->Remember(k, v, Lengths({0, 4}), memory);
    const Tensor recalled = attention->Recall(at(q), memory);
    EXPECT_TRUE(Finite(recalled));
    EXPECT_EQ(Largest(recalled[0]), 0);
  }
}

// Finite inputs give finite outputs and gradients.
TEST_P(EveryKind, ExtremeInputsGiveFiniteResults) {
  for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
    const Mixer attention = Make(type);
    const auto check = [&](const std::string& what, const Tensor& q_in, const Tensor& k_in,
                           const Tensor& v_in, const Mask& mask) {
      const auto leaf = [&](const Tensor& x) { return x.to(type).detach().requires_grad_(); };
      const Tensor q = leaf(q_in), k = leaf(k_in), v = leaf(v_in);
      const Tensor out = attention->forward(q, k, v, mask);
      EXPECT_TRUE(Finite(out)) << what;
      out.sum().backward();
      for (const Tensor& x : {q, k, v}) {
        EXPECT_TRUE(!x.grad().defined() || Finite(x.grad())) << what;
      }
      return out;
    };
    const Tensor zeros = torch::zeros({2, 9, 3, 4}), q = torch::randn({2, 9, 3, 4});
    const Tensor k = torch::randn({2, 9, 3, 4}), v = torch::randn({2, 9, 3, 5});
    check("zero queries", zeros, k, v, Causal());
    check("zero keys", q, zeros, v, Causal());
    check("all zero", zeros, zeros, v, Causal());
    check("large", 1e4 * q, 1e4 * k, 1e4 * v, Causal());
    check("large and equal", 1e4 * torch::ones_like(q), 1e4 * torch::ones_like(k), 1e4 * v,
          Causal());
    check("large and opposite", 1e4 * q, -1e4 * q, v, Causal());
    for (const char* which : {"first", "causal"}) {
      Mask mask = which == std::string("causal") ? Causal() : Mask{};
      const auto one = [](const Tensor& x) { return x.narrow(1, 0, 1); };
      check("one token", one(q), one(k), one(v), mask);
      mask.lengths = Lengths({0, 3});
      const Tensor out = check("no keys", q, k, v, mask);
      EXPECT_EQ(out[0].abs().max().item<double>(), 0);
    }
  }
}

TEST_P(EveryKind, RefusesInvalidShapesAndMasks) {
  const Mixer attention = Make();
  const Tensor q = Normal({1, 3, 3, 4}), longer = Normal({1, 4, 3, 4}), v = Normal({1, 3, 3, 5});
  const auto refuses = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Mask& mask) {
    EXPECT_THROW(attention->forward(a, b, c, mask), Error);
  };
  refuses(q, longer, Normal({1, 4, 3, 5}), Mask{.causal = true});
  refuses(q, longer, v, Mask{});
  refuses(q, Normal({1, 3, 2, 4}), v, Mask{});
  refuses(q, Normal({1, 3, 3, 5}), v, Mask{});
  refuses(q[0], q[0], v[0], Mask{});
  refuses(q, q, v, Mask{.lengths = Lengths({3, 3})});
  for (const int64_t length : {-1, 4}) {
    refuses(q, q, v, Mask{.lengths = Lengths({length})});
    refuses(q, q, v, Mask{.query_lengths = Lengths({length})});
  }
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    refuses(q.to(type), q, v, Mask{});
    refuses(q, q.to(type), v, Mask{});
    refuses(q, q, v.to(type), Mask{});
  }
  const auto empty = [](const Tensor& x) { return x.narrow(1, 0, 0); };
  refuses(empty(q), empty(q), empty(v), Causal());
  refuses(q, empty(q), empty(v), Mask{});
  const Tensor wide = Normal({1, 3, 3, 6});  // the mixer's query_dim is 4
  refuses(wide, wide, v, Mask{});
  // Lengths may have any strides.
  const Tensor x = Normal({2, 3, 3, 4}), values = Normal({2, 3, 3, 5});
  EXPECT_TRUE(
      torch::equal(attention->forward(x, x, values, Mask{.lengths = Lengths({2}).expand({2})}),
                   attention->forward(x, x, values, Mask{.lengths = Lengths({2, 2})})));
  refuses(q, q, v, Mask{.lengths = torch::tensor({3.0})});
  refuses(q, q, v, Mask{.query_lengths = Lengths({3, 3})});
  refuses(q, q, v, Mask{.allowed = torch::ones({2, 3}, torch::kBool)});
  refuses(q, q, v, Mask{.allowed = torch::ones({3, 3})});
}

// Arguments that do not fit throw an error that names the kind, and the state stays unchanged.
TEST_P(EveryKind, RecurrentFormsRefuseWhatDoesNotFit) {
  const Mixer attention = Make();
  if (!attention->recurrent()) return;
  MixerState state;
  const auto refuses = [](const char* what, const auto& run) {
    try {
      run();
      ADD_FAILURE() << "accepted " << what;
    } catch (const Error&) {
    }
  };
  const auto q = [](int64_t n, int64_t h = 3, int64_t d = 4) { return Normal({n, h, d}); };
  const auto rows = [](int64_t n, int64_t s, int64_t d) { return Normal({n, s, 3, d}); };
  for (const bool begun : {false, true}) {
    if (begun) attention->Step(q(2), q(2), q(2, 3, 5), state);
    const auto remember = [&](const Tensor& k, const Tensor& v, const Tensor& lengths) {
      attention->Remember(k, v, lengths, state);
    };
    refuses("fewer values", [&] { remember(rows(2, 5, 4), rows(2, 3, 5), {}); });
    refuses("keys of 6", [&] { remember(rows(2, 5, 6), rows(2, 5, 5), {}); });
    refuses("no keys", [&] { remember(rows(2, 0, 4), rows(2, 0, 5), {}); });
    refuses("another type",
            [&] { remember(rows(2, 5, 4), rows(2, 5, 5).to(torch::kFloat32), {}); });
    for (const Tensor& lengths : {Lengths({5}), Lengths({6, 1}), Lengths({-1, 1}),
                                  torch::ones({2}, torch::kInt32), Lengths({1, 1}).view({2, 1})}) {
      refuses("lengths", [&] { remember(rows(2, 5, 4), rows(2, 5, 5), lengths); });
    }
    refuses("heads", [&] { attention->Step(q(2), q(2, 1), q(2, 1, 5), state); });
    refuses("queries of 6", [&] { attention->Step(q(2, 3, 6), q(2, 3, 6), q(2, 3, 5), state); });
    const auto piece = [&](int64_t n, int64_t l, int64_t s) {
      attention->Piece(rows(n, l, 4), rows(n, s, 4), rows(n, s, 5), state);
    };
    refuses("an empty piece", [&] { piece(2, 0, 0); });
    refuses("more keys than queries", [&] { piece(2, 3, 5); });
    if (begun) {
      refuses("one sequence into two", [&] { attention->Step(q(1), q(1), q(1, 3, 5), state); });
      refuses("three into two", [&] { attention->Step(q(3), q(3), q(3, 3, 5), state); });
      refuses("a piece of one", [&] { piece(1, 3, 3); });
      refuses("other values", [&] { attention->Step(q(2), q(2), q(2, 3, 6), state); });
      refuses("a query of one", [&] { attention->Recall(q(1), state); });
      refuses("a query of 6", [&] { attention->Recall(q(2, 3, 6), state); });
      refuses("a query in fp32", [&] { attention->Recall(q(2).to(torch::kFloat32), state); });
    }
    EXPECT_EQ(state.length, begun ? 1 : 0);
  }
}

TEST(FullAttention, TheCacheIsWrittenInPlace) {
  const Mixer attention = MakeMixer({.kind = "full"}, {2, 4, 4});
  torch::NoGradGuard no_grad;
  MixerState state;
  state.capacity = 50;
  const auto step = [&](MixerState& into) {
    attention->Step(torch::randn({1, 2, 4}), torch::randn({1, 2, 4}), torch::randn({1, 2, 4}),
                    into);
  };
  step(state);
  const void* where = state.tensors[0].data_ptr();
  for (int i = 1; i < 50; ++i) step(state);
  EXPECT_EQ(state.tensors[0].data_ptr(), where);
  MixerState fork = state;
  step(fork);
  EXPECT_NE(fork.tensors[0].data_ptr(), where);
  EXPECT_EQ(state.tensors[0].data_ptr(), where);
  EXPECT_EQ(state.length, 50);
}

// If only queries need gradients, the cache is not copied. The gradients equal those of forward().
TEST(FullAttention, GradientsOfQueriesDoNotMoveTheCache) {
  const Mixer attention = MakeMixer({.kind = "full"}, {2, 4, 5});
  const Tensor q = Normal({1, 9, 2, 4}).requires_grad_();
  const Tensor k = Normal({1, 9, 2, 4}), v = Normal({1, 9, 2, 5});
  attention->forward(q, k, v, Mask{.causal = true}).square().sum().backward();
  const Tensor want = q.grad().clone();
  q.mutable_grad() = Tensor();
  MixerState state;
  Tensor loss = torch::zeros({}, torch::kFloat64);
  const void* where = nullptr;
  for (int64_t t = 0; t < 9; ++t) {
    const auto at = [&](const Tensor& x) { return x.select(1, t); };
    loss = loss + attention->Step(at(q), at(k), at(v), state).square().sum();
    if (t == 0) where = state.tensors[0].data_ptr();
    EXPECT_EQ(state.tensors[0].data_ptr(), where) << t;
  }
  loss.backward();
  EXPECT_LT(RelativeOff(q.grad(), want), 1e-12);
}

// Tensors made in inference mode must not be written outside inference mode.
TEST(FullAttention, ContinuesAfterInferenceMode) {
  const Mixer attention = MakeMixer({.kind = "full"}, {2, 4, 5});
  const Tensor x = Normal({1, 6, 2, 4}), v = Normal({1, 6, 2, 5});
  const Tensor want = attention->forward(x, x, v, Mask{.causal = true});
  MixerState state;
  torch::NoGradGuard no_grad;
  for (int64_t t = 0; t < 6; ++t) {
    const c10::InferenceMode inference(t < 3);
    const auto at = [&](const Tensor& y) { return y.select(1, t); };
    EXPECT_LT(RelativeOff(attention->Step(at(x), at(x), at(v), state), at(want)), 1e-12) << t;
  }
}

TEST(FullAttention, AWindowsStateIsConstant) {
  const Mixer attention =
      MakeMixer({.kind = "full", .window = 5, .rotary = true, .key_heads = 1}, {2, 4, 3});
  torch::NoGradGuard no_grad;
  MixerState state;
  for (int64_t t = 0; t < 20; ++t) {
    attention->Step(Normal({1, 2, 4}), Normal({1, 1, 4}), Normal({1, 1, 3}), state);
    const int64_t kept = std::min<int64_t>(t + 1, 4);
    EXPECT_EQ(state.tensors[0].sizes(), torch::IntArrayRef({1, 1, kept, 4})) << t;
    EXPECT_EQ(state.tensors[1].sizes(), torch::IntArrayRef({1, 1, kept, 3})) << t;
  }
}

// A memory with lengths ends in padding, so no positions can be appended.
TEST(FullAttention, MemoriesWithLengthsCannotBeExtended) {
  const Mixer attention = MakeMixer({.kind = "full"}, {2, 4, 5});
  const Tensor k = Normal({2, 5, 2, 4}), v = Normal({2, 5, 2, 5});
  MixerState state;
  attention->Remember(k, v, Lengths({5, 3}), state);
  const auto at = [](const Tensor& x) { return x.select(1, 0); };
  EXPECT_THROW(attention->Step(at(k), at(k), at(v), state), Error);
  EXPECT_THROW(attention->Piece(k, k, v, state), Error);
  EXPECT_THROW(attention->Remember(k, v, {}, state), Error);
  EXPECT_EQ(state.length, 5);
}

// A state does not change if the caller later writes to the tensors passed to Remember().
TEST(FullAttention, StatesDoNotShareTheCallersTensors) {
  const Mixer attention = MakeMixer({.kind = "full"}, {2, 4, 5});
  for (const bool gradient : {false, true}) {
    const Tensor k = Normal({2, 5, 2, 4}).requires_grad_(gradient) * 1;
    const Tensor v = Normal({2, 5, 2, 5}).requires_grad_(gradient) * 1;
    const Tensor q = Normal({2, 2, 4}), lengths = Lengths({5, 3});
    for (const bool padded : {false, true}) {
      MixerState state;
      attention->Remember(k, v, padded ? lengths : Tensor(), state);
      const Tensor before = attention->Recall(q, state);
      torch::NoGradGuard no_grad;
      k.fill_(7), v.fill_(7), lengths.fill_(1);
      EXPECT_EQ(Off(attention->Recall(q, state), before), 0) << gradient << padded;
    }
  }
}

// The error of an estimate from F independent features falls as F^(-1/2): the slope of the line
// through (log F, log error) is near -0.5.
TEST(FeatureMap, RandomFeaturesConverge) {
  struct Case {
    const char* map;
    Similarity similarity;
  };
  for (const Case& c : {Case{"rff", Similarity::kRbf}, Case{"favor", Similarity::kSoftmax}}) {
    torch::manual_seed(4);
    const Tensor q = Normal({4, 16, 1, 8}) / 2, k = Normal({4, 16, 1, 8}) / 2;
    const Tensor v = Normal({4, 16, 1, 8});
    const Tensor want =
        MakeMixer({.kind = "kernel", .eps = 0, .similarity = c.similarity}, {1, 8, 8})
            ->forward(q, k, v, Mask{.causal = true});
    std::vector<double> x, y;
    for (const int features : {32, 128, 512, 2048}) {
      const Mixer attention =
          MakeMixer({.kind = "causal-linear", .feature_map = c.map, .features = features, .eps = 0},
                    {1, 8, 8});
      attention->to(torch::kFloat64);
      double squares = 0;
      constexpr int kDraws = 8;
      for (int draw = 0; draw < kDraws; ++draw) {
        RedrawFeatures(*attention);
        squares += (attention->forward(q, k, v, Mask{.causal = true}) - want)
                       .square()
                       .mean()
                       .item<double>();
      }
      x.push_back(std::log(features));
      y.push_back(std::log(squares / kDraws) / 2);
    }
    double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
    for (size_t i = 0; i < x.size(); ++i) mean_x += x[i] / 4, mean_y += y[i] / 4;
    for (size_t i = 0; i < x.size(); ++i) {
      xy += (x[i] - mean_x) * (y[i] - mean_y);
      xx += (x[i] - mean_x) * (x[i] - mean_x);
    }
    EXPECT_NEAR(xy / xx, -0.5, 0.1) << c.map;
    EXPECT_LT(std::exp(y.back()), 0.05) << c.map;
  }
}

TEST(FeatureMap, RandomMapsAreSavedAndRedrawn) {
  const MixerSpec spec{.kind = "causal-linear", .feature_map = "favor", .features = 24};
  const Mixer attention = MakeMixer(spec, {2, 8, 8});
  const Tensor omega = attention->named_buffers()["feature_map.omega"];
  ASSERT_EQ(omega.sizes(), torch::IntArrayRef({8, OmegaColumns(spec, 8)}));
  const Tensor before = omega.clone();
  RedrawFeatures(*attention);
  EXPECT_GT(Off(omega, before), 0);
  // Blocks of eight columns are orthogonal, with the lengths of normal vectors.
  const Tensor block = omega.narrow(1, 8, 8);
  const Tensor products = torch::matmul(block.t(), block);
  EXPECT_LT((products - torch::diag(torch::diagonal(products))).abs().max().item<double>(), 1e-4);
  EXPECT_GT(torch::diagonal(products).std().item<double>(), 0.1);
}

// The denominator is bounded from below by its standard deviation, also if the estimate is
// negative.
TEST(FeatureMap, RffHasAFloor) {
  const FeatureMap map = MakeFeatureMap({.feature_map = "rff", .features = 16}, 4);
  ASSERT_TRUE(map->floor().has_value());
  EXPECT_DOUBLE_EQ(*map->floor(), 0.25);  // F^(-1/2)
  const Tensor z = torch::zeros({3, 16});
  z.select(1, 5).fill_(-8);
  const Tensor out =
      map->Divide(torch::ones({3, 1}), torch::tensor({-1.0, 0.0, 5.0}).view({3, 1}), z, 1e-6);
  EXPECT_FLOAT_EQ(out[0].item<float>(), 0.5f);
  EXPECT_FLOAT_EQ(out[1].item<float>(), 0.5f);
  EXPECT_FLOAT_EQ(out[2].item<float>(), 0.2f);
  // With few features the estimate becomes negative, and outputs stay bounded.
  torch::manual_seed(5);
  const Mixer few =
      MakeMixer({.kind = "causal-linear", .feature_map = "rff", .features = 2}, {1, 4, 1});
  const Tensor q = torch::randn({64, 8, 1, 4}), k = 3 * torch::randn({64, 8, 1, 4});
  const Tensor ones = torch::ones({64, 8, 1, 1});
  const Tensor got = few->forward(q, k, ones, Mask{.causal = true});
  EXPECT_LT(got.min().item<double>(), 0.99) << "no estimate was below the floor";
  EXPECT_LE(got.max().item<double>(), 1.0001);
}

// For any number and location of keys, outputs are at most kRandom times the largest value if
// values are random, and kEqual times the value if all are equal.
TEST(FeatureMap, RffOutputsAreBounded) {
  constexpr double kRandom = 3, kEqual = 6;
  for (const int64_t dim : {4, 32}) {
    for (const int features : {0, 256}) {
      for (const int64_t length : {30, 600}) {
        for (const char* keys : {"spread", "far", "in one place"}) {
          torch::manual_seed(9);
          const Mixer attention = MakeMixer(
              {.kind = "causal-linear", .feature_map = "rff", .features = features}, {2, dim, 5});
          const Tensor q = torch::randn({2, length, 2, dim}), v = torch::randn({2, length, 2, 5});
          Tensor k = torch::randn({2, length, 2, dim});
          if (keys == std::string("far")) k = 100 * k;
          if (keys == std::string("in one place")) k = 3 + 0.01 * k;
          const Tensor out = attention->forward(q, k, v, Mask{.causal = true});
          EXPECT_LT(Largest(out), kRandom * Largest(v))
              << dim << " " << features << " " << length << " " << keys;
          const Tensor ones = torch::ones_like(v);
          EXPECT_LT(Largest(attention->forward(q, k, ones, Mask{.causal = true})), kEqual)
              << dim << " " << features << " " << length << " " << keys;
        }
      }
    }
  }
}

// A map depends only on the spec's fields for feature maps; spec.kind may be unknown.
TEST(FeatureMap, DoesNotDependOnTheMixer) {
  for (const char* map : {"elu", "relu", "polynomial2", "rff", "favor"}) {
    const MixerSpec spec{.kind = "mine", .feature_map = map};
    const FeatureMap made = MakeFeatureMap(spec, 8);
    EXPECT_EQ(made->Keys(torch::randn({3, 8})).size(1), FeatureSize(spec, 8)) << map;
    EXPECT_EQ(made->Queries(torch::randn({3, 8})).size(1), FeatureSize(spec, 8)) << map;
    if (map == std::string("elu") || map == std::string("relu")) continue;
    EXPECT_THROW(made->Keys(torch::randn({3, 6})), Error) << map;
    EXPECT_THROW(made->Queries(torch::randn({3, 6})), Error) << map;
    if (map == std::string("polynomial2")) continue;
    EXPECT_THROW(made->Keys(Normal({3, 8})), Error) << map << " in double";
  }
  EXPECT_THROW(MakeFeatureMap({.feature_map = "rff", .features = 7}, 8), Error);
  EXPECT_THROW(MakeFeatureMap({.feature_map = "favor", .features = -1}, 8), Error);
  EXPECT_THROW(MakeFeatureMap({.feature_map = "rff"}, 0), Error);
}

// The score of masked keys is finite in half precision, too.
TEST(LowestScore, IsFiniteInItsType) {
  EXPECT_TRUE(Finite(torch::zeros({1}, torch::kHalf).fill_(ops::LowestScore(torch::kHalf))));
}

// fp32 agrees with double on queries and keys that are close together, but far from the origin.
TEST(KernelAttention, RbfKeepsSmallDifferences) {
  for (const double scale : {1.0, 100.0, 1e4}) {
    const Tensor q = scale * torch::ones({1, 2, 1, 32});
    const Tensor k = q.clone();
    k[0][1] += 0.25;
    const Tensor v = torch::eye(2).view({1, 2, 1, 2});
    const MixerSpec spec{.kind = "kernel", .eps = 0, .similarity = Similarity::kRbf};
    const Mixer attention = MakeMixer(spec, {1, 32, 2});
    const auto wide = [](const Tensor& x) { return x.to(torch::kFloat64); };
    EXPECT_LT(
        Off(attention->forward(q, k, v, {}), attention->forward(wide(q), wide(k), wide(v), {})),
        1e-5)
        << scale;
  }
}

class Mean : public MixerImpl {
 public:
  Tensor forward(const Tensor& q, const Tensor&, const Tensor& v, const Mask&) override {
    return v.mean(1, true).expand({-1, q.size(1), -1, -1});
  }
};

TEST(Attention, KindsAndMapsCanBeAdded) {
  RegisterMixer({.name = "test-mean", .description = "the mean of all values"},
                [](const MixerSpec&) -> Mixer { return std::make_shared<Mean>(); });
  const Tensor x = torch::randn({1, 3, 1, 2});
  EXPECT_LT(Off(MakeMixer({.kind = "test-mean"}, {1, 2, 2})->forward(x, x, x, {}),
                x.mean(1, true).expand_as(x)),
            1e-6);
  EXPECT_EQ(Mixers().back().name, "test-mean");
  const auto again = [] {
    RegisterMixer({.name = "full"},
                  [](const MixerSpec&) -> Mixer { return std::make_shared<Mean>(); });
  };
  EXPECT_THROW(again(), Error);

  class Square : public FeatureMapImpl {
   public:
    Tensor Keys(const Tensor& k) const override { return k.square(); }
  };
  RegisterFeatureMap(
      {.name = "test-square",
       .description = "x^2",
       .size = [](int query_dim, int) { return int64_t{query_dim}; }},
      [](const MixerSpec&, int64_t) -> FeatureMap { return std::make_shared<Square>(); });
  const Mixer squared =
      MakeMixer({.kind = "causal-linear", .feature_map = "test-square"}, {1, 2, 2});
  EXPECT_LT(Off(squared->forward(x, x, x, Mask{.causal = true})[0][0], x[0][0]), 1e-3);
}

TEST(Attention, FeatureMapsHaveTheirInputsSizeByDefault) {
  class Cube : public FeatureMapImpl {
   public:
    Tensor Keys(const Tensor& k) const override { return k.pow(3).abs(); }
  };
  RegisterFeatureMap({.name = "test-cube"}, [](const MixerSpec&, int64_t) -> FeatureMap {
    return std::make_shared<Cube>();
  });
  const Tensor x = torch::randn({1, 3, 1, 2});
  const Mixer attention =
      MakeMixer({.kind = "causal-linear", .feature_map = "test-cube"}, {1, 2, 2});
  EXPECT_TRUE(Finite(attention->forward(x, x, x, Mask{.causal = true})));
}

TEST(Attention, RefusesBadSizes) {
  for (const MixerSizes& sizes : {MixerSizes{1, -4, 4},
                                  {1, (int64_t{1} << 32) + 4, 4},
                                  {1, (int64_t{-1} << 32) + 4, 4},
                                  {0, 4, 4},
                                  {1, 4, -1}}) {
    EXPECT_THROW(MakeMixer({.kind = "causal-linear", .feature_map = "favor"}, sizes), Error);
  }
}

TEST(Attention, RefusesBadSpecs) {
  const auto refuses = [](const MixerSpec& spec, const std::string& word) {
    try {
      MakeMixer(spec, {1, 4, 4});
      ADD_FAILURE() << "accepted a bad spec: " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refuses({.kind = "nosuch"}, "causal-linear, linear, full, kernel, reformer");
  refuses({.feature_map = "nosuch"}, "elu, relu, polynomial2, rff, favor");
  refuses({.features = -1}, "features");
  refuses({.feature_map = "rff", .features = 7}, "even");
  refuses({.eps = -1}, "eps");
  refuses({.kind = "reformer", .lsh_rounds = 0}, "lsh_rounds");
  refuses({.kind = "reformer", .lsh_buckets = 3}, "even");
  refuses({.kind = "reformer", .lsh_chunk = 0}, "lsh_chunk");
  refuses({.kind = "full", .scale = -1}, "softmax_scale");
  const auto refuses_sizes = [](const MixerSizes& sizes) {
    for (const char* map : {"elu", "rff", "polynomial2"}) {
      EXPECT_THROW(MakeMixer({.feature_map = map}, sizes), Error);
    }
  };
  refuses_sizes({0, 4, 4});
  refuses_sizes({1, 0, 4});
  refuses_sizes({1, -3, 4});
  refuses_sizes({1, int64_t{1} << 33, 4});
  refuses_sizes({1, 4, 0});
}

}  // namespace
}  // namespace linnet::nn
