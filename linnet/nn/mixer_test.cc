#include "linnet/nn/mixer.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "linnet/base/error.h"
#include "linnet/nn/feature_map.h"
#include "linnet/ops/lowest_score.h"
#include "linnet/ops/lsh_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

double Off(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }
// The largest difference relative to the largest magnitude.
double RelativeOff(const Tensor& got, const Tensor& want) {
  return Off(got, want) / std::max(want.abs().max().item<double>(), 1e-30);
}
bool Finite(const Tensor& x) { return torch::isfinite(x).all().item<bool>(); }
Tensor Lengths(std::vector<int64_t> lengths) { return torch::tensor(lengths); }
Tensor Normal(std::vector<int64_t> sizes, torch::ScalarType type = torch::kFloat64) {
  return torch::randn(sizes, torch::kFloat64).to(type);
}
double Largest(const Tensor& x) { return x.abs().max().item<double>(); }

// In double the plain forms run, in fp32 the fused ones: the same, but for rounding.
struct Rounding {
  torch::ScalarType type;
  double off;
};
const Rounding kRoundings[] = {{torch::kFloat64, 1e-12}, {torch::kFloat32, 1e-4}};

// One of the kinds with one of its parameters.
struct Variant {
  std::string name;
  MixerSpec spec;
  friend void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{"full", {.kind = "full"}},
                                   {"full_scaled", {.kind = "full", .scale = 0.75f}}};
  for (const Similarity similarity :
       {Similarity::kSoftmax, Similarity::kPolynomial2, Similarity::kRbf}) {
    variants.push_back({std::string("kernel_") + NameOf(similarity),
                        {.kind = "kernel", .similarity = similarity}});
  }
  for (const char* map : {"elu", "relu", "polynomial2", "rff", "favor"}) {
    variants.push_back({std::string("linear_") + map, {.kind = "linear", .feature_map = map}});
    variants.push_back(
        {std::string("causal_linear_") + map, {.kind = "causal-linear", .feature_map = map}});
  }
  for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
    variants.push_back({std::string("reformer_") + NameOf(variant),
                        {.kind = "reformer",
                         .lsh_rounds = 3,
                         .lsh_buckets = 4,
                         .lsh_chunk = 4,
                         .lsh_variant = variant}});
  }
  return variants;
}

bool CanBeCausal(const MixerSpec& spec) { return FindMixer(spec.kind).causal; }

class EveryKind : public testing::TestWithParam<Variant> {
 protected:
  // In evaluation mode, so that nothing is random.
  static Mixer MakeOf(const MixerSpec& spec, torch::ScalarType type) {
    torch::manual_seed(11);
    Mixer attention = MakeMixer(spec, {3, 4, 5});
    attention->to(type);
    attention->eval();
    return attention;
  }
  Mixer Make(torch::ScalarType type = torch::kFloat64) { return MakeOf(GetParam().spec, type); }
  // The mask that every kind has a meaning for.
  Mask Causal() const { return Mask{.causal = CanBeCausal(GetParam().spec)}; }
};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryKind, GradientsAreFiniteDifferences) {
  const Mixer attention = Make();
  torch::manual_seed(1);
  std::vector<Tensor> inputs = {Normal({2, 7, 3, 4}), Normal({2, 7, 3, 4}), Normal({2, 7, 3, 5})};
  const Tensor weights = Normal({2, 7, 3, 5});
  Mask mask = Causal();
  mask.lengths = Lengths({7, 5});
  const auto loss = [&] {
    return (attention->forward(inputs[0], inputs[1], inputs[2], mask) * weights).sum();
  };
  for (Tensor& input : inputs) input.requires_grad_();
  loss().backward();
  constexpr double kStep = 1e-6;
  for (size_t which = 0; which < inputs.size(); ++which) {
    const Tensor gradient =
        inputs[which].grad().defined() ? inputs[which].grad() : torch::zeros_like(inputs[which]);
    torch::NoGradGuard no_grad;
    double* values = inputs[which].data_ptr<double>();
    for (int64_t i = 0; i < inputs[which].numel(); i += 5) {
      const double before = values[i];
      values[i] = before + kStep;
      const double above = loss().item<double>();
      values[i] = before - kStep;
      const double below = loss().item<double>();
      values[i] = before;
      const double slope = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient.flatten()[i].item<double>(), slope,
                  1e-6 * std::max(1.0, std::abs(slope)))
          << "input " << which << ", number " << i;
    }
  }
}

TEST_P(EveryKind, PaddingDoesNotLeak) {
  const Mixer attention = Make();
  const Tensor q = Normal({2, 9, 3, 4});
  const Tensor k = Normal({2, 9, 3, 4}).requires_grad_();
  const Tensor v = Normal({2, 9, 3, 5}).requires_grad_();
  const Mask mask{.lengths = Lengths({9, 4})};
  const Tensor out = attention->forward(q, k, v, mask);
  out.square().sum().backward();
  EXPECT_EQ(v.grad()[1].slice(0, 4).abs().max().item<double>(), 0);
  if (k.grad().defined()) {
    EXPECT_EQ(k.grad()[1].slice(0, 4).abs().max().item<double>(), 0);
  }
  Tensor other_q = q.clone(), other_k = k.detach().clone(), other_v = v.detach().clone();
  other_k[1].slice(0, 4).fill_(7);
  other_v[1].slice(0, 4).fill_(-3);
  // Reformer's keys are its queries.
  if (GetParam().spec.kind == "reformer") other_q[1].slice(0, 4).fill_(7);
  EXPECT_EQ(Off(attention->forward(other_q, other_k, other_v, mask), out), 0);
  // A shorter sequence alone gives what it gives within the batch.
  const auto alone = [](const Tensor& x) { return x.narrow(0, 1, 1).narrow(1, 0, 4); };
  EXPECT_LT(RelativeOff(attention->forward(alone(q), alone(k), alone(v), Mask{}), alone(out)),
            1e-12);
}

// What lies behind the lengths may be anything.
TEST_P(EveryKind, PaddingNeedNotBeNumbers) {
  for (const Rounding& rounding : kRoundings) {
    const Mixer attention = Make(rounding.type);
    const std::vector<Tensor> clean = {Normal({2, 9, 3, 4}, rounding.type),
                                       Normal({2, 9, 3, 4}, rounding.type),
                                       Normal({2, 9, 3, 5}, rounding.type)};
    const Tensor weights = Normal({2, 9, 3, 5}, rounding.type);
    Mask mask = Causal();
    mask.lengths = mask.query_lengths = Lengths({9, 4});
    const auto run = [&](float padding) {
      std::vector<Tensor> all;
      for (const Tensor& x : clean) {
        all.push_back(x.clone());
        all.back()[1].slice(0, 4).fill_(padding);
        all.back().requires_grad_();
      }
      const Tensor out = attention->forward(all[0], all[1], all[2], mask);
      (out * weights).sum().backward();
      std::vector<Tensor> results = {out.detach()};
      for (const Tensor& x : all) {
        results.push_back(x.grad().defined() ? x.grad() : torch::zeros_like(x));
      }
      return results;
    };
    const std::vector<Tensor> want = run(0);
    for (const float padding : {NAN, INFINITY, 3e38f}) {
      const std::vector<Tensor> got = run(padding);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(torch::equal(got[i], want[i])) << i << " " << padding;
        EXPECT_TRUE(Finite(got[i])) << i << " " << padding;
      }
    }
    if (!attention->recurrent()) continue;
    const auto recalled = [&](float padding) {
      Tensor k = clean[1].clone(), v = clean[2].clone();
      k[1].slice(0, 4).fill_(padding);
      v[1].slice(0, 4).fill_(padding);
      MixerState memory;
      attention->Remember(k, v, Lengths({9, 4}), memory);
      return attention->Recall(clean[0].select(1, 0), memory);
    };
    EXPECT_TRUE(torch::equal(recalled(NAN), recalled(0)));
  }
}

// Also without an eps, the answer of a query that sees nothing is zero, and hands no gradient on.
TEST_P(EveryKind, NothingSeenIsZero) {
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
    // relu sees nothing of these, others do.
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
    attention->Remember(k, v, Lengths({0, 4}), memory);
    const Tensor recalled = attention->Recall(at(q), memory);
    EXPECT_TRUE(Finite(recalled));
    EXPECT_EQ(Largest(recalled[0]), 0);
  }
}

TEST_P(EveryKind, QueriesThatDoNotCountGetZeros) {
  const Mixer attention = Make();
  Tensor q = Normal({2, 6, 3, 4}).requires_grad_();
  const Tensor k = Normal({2, 6, 3, 4}), v = Normal({2, 6, 3, 5});
  Mask mask = Causal();
  const Tensor all = attention->forward(q, k, v, mask);
  mask.query_lengths = Lengths({6, 2});
  const Tensor out = attention->forward(q, k, v, mask);
  EXPECT_EQ(Off(out[0], all[0]), 0);
  EXPECT_EQ(Off(out[1].slice(0, 0, 2), all[1].slice(0, 0, 2)), 0);
  EXPECT_EQ(out[1].slice(0, 2).abs().max().item<double>(), 0);
}

// No input that has a meaning may give a number that has none.
TEST_P(EveryKind, HardInputsGiveNumbers) {
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

TEST_P(EveryKind, RefusesWhatHasNoMeaning) {
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
  const Tensor wide = Normal({1, 3, 3, 6});  // it was made for 4
  refuses(wide, wide, v, Mask{});
  // Lengths of any strides are taken.
  const Tensor x = Normal({2, 3, 3, 4}), values = Normal({2, 3, 3, 5});
  EXPECT_TRUE(
      torch::equal(attention->forward(x, x, values, Mask{.lengths = Lengths({2}).expand({2})}),
                   attention->forward(x, x, values, Mask{.lengths = Lengths({2, 2})})));
  refuses(q, q, v, Mask{.lengths = torch::tensor({3.0})});
  refuses(q, q, v, Mask{.query_lengths = Lengths({3, 3})});
  refuses(q, q, v, Mask{.allowed = torch::ones({2, 3}, torch::kBool)});
  refuses(q, q, v, Mask{.allowed = torch::ones({3, 3})});
  const Mask allowed{.allowed = torch::ones({3, 3}, torch::kBool)};
  const std::string& kind = GetParam().spec.kind;
  if (kind == "full" || kind == "kernel") {
    EXPECT_TRUE(Finite(attention->forward(q, q, v, allowed)));
  } else {
    refuses(q, q, v, allowed);
  }
  if (kind == "causal-linear" || kind == "reformer") {
    refuses(q, longer, Normal({1, 4, 3, 5}), Mask{});
  } else {
    EXPECT_TRUE(Finite(attention->forward(q, longer, Normal({1, 4, 3, 5}), Mask{})));
  }
}

// The kinds with a recurrent form, in self attention: whole, step by step, in ragged pieces, forked.
TEST_P(EveryKind, BatchIsRecurrentIsPieces) {
  const MixerSpec& spec = GetParam().spec;
  for (const auto& [type, off] : kRoundings) {
    const Mixer attention = Make(type);
    ASSERT_EQ(attention->recurrent(), spec.kind != "reformer");
    const Tensor q = Normal({2, 13, 3, 4}, type), k = Normal({2, 13, 3, 4}, type),
                 v = Normal({2, 13, 3, 5}, type);
    MixerState state;
    if (!attention->recurrent()) {
      EXPECT_THROW(attention->Step(q[0], k[0], v[0], state), Error);
      EXPECT_THROW(attention->Piece(q, k, v, state), Error);
      return;
    }
    // What steps to the end of 'linear' is its causal twin.
    MixerSpec causal = spec;
    if (spec.kind == "linear") causal.kind = "causal-linear";
    const Mixer whole = MakeOf(causal, type);
    const Tensor want = whole->forward(q, k, v, Mask{.causal = true});
    MixerState fork;
    for (int64_t t = 0; t < 13; ++t) {
      if (t == 6) fork = state;
      const Tensor out = attention->Step(q.select(1, t), k.select(1, t), v.select(1, t), state);
      EXPECT_LT(RelativeOff(out, want.select(1, t)), off) << t;
      EXPECT_EQ(state.length, t + 1);
    }
    // The fork still stands where it was taken, and going on with it does not reach the other.
    const MixerState end = state;
    for (int64_t t = 6; t < 9; ++t) {
      const Tensor out = attention->Step(q.select(1, t), k.select(1, t), v.select(1, t), fork);
      EXPECT_LT(RelativeOff(out, want.select(1, t)), off) << t;
    }
    EXPECT_EQ(
        Off(attention->Recall(q.select(1, 12), state), attention->Recall(q.select(1, 12), end)), 0);
    EXPECT_LT(RelativeOff(attention->Recall(q.select(1, 12), state), want.select(1, 12)), off);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{13}, {1, 12}, {5, 8}, {6, 1, 6}, {3, 3, 3, 4}}) {
      MixerState carried;
      int64_t begin = 0;
      for (const int64_t count : cuts) {
        const auto piece = [&](const Tensor& x) { return x.narrow(1, begin, count); };
        EXPECT_LT(RelativeOff(attention->Piece(piece(q), piece(k), piece(v), carried), piece(want)),
                  off);
        begin += count;
      }
    }
  }
}

// Gradients go through the state: pieces have the whole's.
TEST_P(EveryKind, GradientsThroughPieces) {
  for (const auto& [type, off] : kRoundings) {
    const Mixer attention = Make(type);
    if (!attention->recurrent() || GetParam().spec.kind == "linear") return;
    std::vector<Tensor> inputs = {Normal({2, 9, 3, 4}, type), Normal({2, 9, 3, 4}, type),
                                  Normal({2, 9, 3, 5}, type)};
    const Tensor weights = Normal({2, 9, 3, 5}, type);
    for (Tensor& input : inputs) input.requires_grad_();
    (attention->forward(inputs[0], inputs[1], inputs[2], Mask{.causal = true}) * weights)
        .sum()
        .backward();
    std::vector<Tensor> want;
    for (Tensor& input : inputs) {
      want.push_back(input.grad().clone());
      input.mutable_grad() = Tensor();
    }
    MixerState state;
    Tensor loss = torch::zeros({}, type);
    int64_t begin = 0;
    for (const int64_t count : {4, 2, 3}) {
      const auto piece = [&](const Tensor& x) { return x.narrow(1, begin, count); };
      loss = loss + (attention->Piece(piece(inputs[0]), piece(inputs[1]), piece(inputs[2]), state) *
                     piece(weights))
                        .sum();
      begin += count;
    }
    loss.backward();
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LT(RelativeOff(inputs[i].grad(), want[i]), 100 * off) << i;
    }
  }
}

// Over a memory: whole, and one query at a time from a state that was built once.
TEST_P(EveryKind, CrossAttentionRecalls) {
  for (const auto& [type, off] : kRoundings) {
    const Mixer attention = Make(type);
    if (!attention->recurrent() || GetParam().spec.kind == "causal-linear") return;
    const Tensor q = Normal({2, 5, 3, 4}, type), k = Normal({2, 8, 3, 4}, type),
                 v = Normal({2, 8, 3, 5}, type);
    const Tensor lengths = Lengths({8, 3});
    const Tensor want = attention->forward(q, k, v, Mask{.lengths = lengths});
    MixerState memory;
    attention->Remember(k, v, lengths, memory);
    for (int64_t t = 0; t < 5; ++t) {
      EXPECT_LT(RelativeOff(attention->Recall(q.select(1, t), memory), want.select(1, t)), off);
    }
    const MixerState nothing;
    EXPECT_THROW(attention->Recall(q.select(1, 0), nothing), Error);
  }
}

// What does not fit is refused by name, and the state stays as it was.
TEST_P(EveryKind, RecurrentFormsRefuseWhatDoesNotFit) {
  const Mixer attention = Make();
  if (!attention->recurrent()) return;
  MixerState state;
  const auto refuses = [](const char* what, const auto& run) {
    try {
      run();
      ADD_FAILURE() << "took " << what;
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
  MixerState state{.capacity = 50};
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

// Also while gradients are recorded that reach the queries alone; they are those of the whole.
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

// What inference mode made may not be written to outside of it.
TEST(FullAttention, GoesOnBehindInferenceMode) {
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

// A memory with lengths has a hole behind them: nothing can follow.
TEST(FullAttention, DoesNotGoOnBehindLengths) {
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

// A state is a value: what the caller does with its tensors afterwards is no part of it.
TEST(FullAttention, TheStateIsItsOwn) {
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

TEST(FullAttention, ArbitraryMasksMeanTheSame) {
  torch::manual_seed(2);
  const Tensor q = Normal({2, 6, 3, 4}), k = Normal({2, 9, 3, 4}), v = Normal({2, 9, 3, 5});
  Mask mask{.lengths = Lengths({9, 7}), .allowed = torch::rand({2, 1, 6, 9}) < 0.5};
  mask.allowed[0][0][3].fill_(false);
  const Mixer full = MakeMixer({.kind = "full"}, {3, 4, 5});
  const Mixer kernel = MakeMixer({.kind = "kernel", .eps = 0}, {3, 4, 5});
  const Tensor out = full->forward(q, k, v, mask);
  EXPECT_EQ(out[0][3].abs().max().item<double>(), 0);
  const Tensor seen = out.slice(1, 4);
  EXPECT_LT(RelativeOff(kernel->forward(q, k, v, mask).slice(1, 4), seen), 1e-12);
  // Written out for one query.
  const Tensor scores = torch::mv(k[1].select(1, 0), q[1][4][0]) / 2;
  const Tensor visible = mask.allowed[1][0][4].logical_and(torch::arange(9) < 7);
  const Tensor weights = torch::softmax(scores.masked_select(visible), 0);
  const Tensor values = v[1].select(1, 0).index({visible});
  EXPECT_LT(RelativeOff(out[1][4][0], torch::mv(values.t(), weights)), 1e-12);
}

// Softmax over scale q . k, whatever the form: queries as much longer say the same.
TEST(Attention, ScaleIsOfTheScores) {
  torch::manual_seed(5);
  constexpr double kScale = 0.75;
  const Tensor q = Normal({2, 11, 3, 4}), k = Normal({2, 11, 3, 4}), v = Normal({2, 11, 3, 5});
  const Tensor longer = q * (kScale * 2);  // 2 = sqrt(D)
  for (MixerSpec spec :
       {MixerSpec{.kind = "full"}, MixerSpec{.kind = "reformer", .lsh_buckets = 4, .lsh_chunk = 3},
        MixerSpec{.kind = "reformer",
        .lsh_buckets = 4,
        .lsh_chunk = 3,
        .lsh_variant = LshVariant::kSimple}}) {
    spec.heads = 3, spec.query_dim = 4, spec.value_dim = 5;
    const Mixer plain = MakeMixer(spec);
    spec.scale = kScale;
    const Mixer scaled = MakeMixer(spec);
    plain->eval(), scaled->eval();
    const Mask mask{.causal = true};
    const Tensor want = plain->forward(longer, k, v, mask);
    EXPECT_GT(RelativeOff(plain->forward(q, k, v, mask), want), 1e-3) << Describe(spec);
    EXPECT_LT(RelativeOff(scaled->forward(q, k, v, mask), want), 1e-12) << Describe(spec);
  }
}

TEST(FeatureMap, Polynomial2IsItsKernel) {
  for (const bool causal : {false, true}) {
    for (const int64_t dim : {1, 3, 16, 32}) {
      torch::manual_seed(3);
      const Tensor q = torch::randn({2, 21, 2, dim}), k = torch::randn({2, 21, 2, dim});
      const Tensor v = torch::randn({2, 21, 2, 7});
      const Mixer linear = MakeMixer(
          {.kind = causal ? "causal-linear" : "linear", .feature_map = "polynomial2"}, {2, dim, 7});
      const Mixer kernel =
          MakeMixer({.kind = "kernel", .similarity = Similarity::kPolynomial2}, {2, dim, 7});
      const Mask mask{.causal = causal, .lengths = Lengths({21, 13})};
      const Tensor want = kernel->forward(q, k, v, mask);
      EXPECT_LT(RelativeOff(linear->forward(q, k, v, mask), want), 1e-5) << dim;
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
  // Blocks of eight directions are orthogonal, with the lengths of normal vectors.
  const Tensor block = omega.narrow(1, 8, 8);
  const Tensor products = torch::matmul(block.t(), block);
  EXPECT_LT((products - torch::diag(torch::diagonal(products))).abs().max().item<double>(), 1e-4);
  EXPECT_GT(torch::diagonal(products).std().item<double>(), 0.1);
}

// The sum that divides is held at the size of its own noise, also where the estimate is negative.
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
  // With few features the estimate does turn negative, and attention stays bounded.
  torch::manual_seed(5);
  const Mixer few =
      MakeMixer({.kind = "causal-linear", .feature_map = "rff", .features = 2}, {1, 4, 1});
  const Tensor q = torch::randn({64, 8, 1, 4}), k = 3 * torch::randn({64, 8, 1, 4});
  const Tensor ones = torch::ones({64, 8, 1, 1});
  const Tensor got = few->forward(q, k, ones, Mask{.causal = true});
  EXPECT_LT(got.min().item<double>(), 0.99) << "no estimate was below the floor";
  EXPECT_LE(got.max().item<double>(), 1.0001);
}

// However many keys there are and wherever they lie: random values come out at most this many times
// as large as the largest of them, and equal ones, whose sum is as negative as can be.
TEST(FeatureMap, RffStaysOfTheSizeOfTheValues) {
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

// A map follows from its own fields: the kind may be one's own, which this library does not know.
TEST(FeatureMap, IsMadeForAnyKind) {
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

// Queries and keys that are near each other and far from the origin.
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

// Scores that count for nothing are numbers of the type at hand.
TEST(Attention, TakesBf16) {
  EXPECT_TRUE(Finite(torch::zeros({1}, torch::kHalf).fill_(ops::LowestScore(torch::kHalf))));
  for (const MixerSpec& spec :
       {MixerSpec{.kind = "kernel"}, MixerSpec{.kind = "kernel", .similarity = Similarity::kRbf},
        MixerSpec{.kind = "linear"}, MixerSpec{},
        MixerSpec{.kind = "reformer", .lsh_buckets = 1, .lsh_chunk = 16},
        MixerSpec{.kind = "reformer",
        .lsh_buckets = 1,
        .lsh_chunk = 16,
        .lsh_variant = LshVariant::kSimple}}) {
    torch::manual_seed(12);
    const Mixer attention = MakeMixer(spec, {2, 4, 5});
    const auto rounded = [](const Tensor& x) { return x.to(torch::kBFloat16); };
    const Tensor q = rounded(torch::randn({2, 9, 2, 4})), k = rounded(torch::randn({2, 9, 2, 4}));
    const Tensor v = rounded(torch::randn({2, 9, 2, 5}));
    const Mask mask{.causal = CanBeCausal(spec), .lengths = Lengths({9, 5})};
    const auto exact = [](const Tensor& x) { return x.to(torch::kFloat32); };
    const Tensor want = attention->forward(exact(q), exact(k), exact(v), mask);
    const Tensor got = attention->forward(q, k, v, mask);
    EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
    EXPECT_LT(RelativeOff(exact(got), want), 0.03) << spec.kind;
  }
}

// Full attention over shared queries and keys, as the published Reformer defines it: every other
// position, itself only where there is none.
Tensor SharedQueryKey(const Tensor& q, const Tensor& v, bool causal, const Tensor& lengths) {
  const int64_t length = q.size(1);
  const Tensor k = q / q.norm(2, -1, true);
  Tensor scores = torch::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) /
                  std::sqrt(static_cast<double>(q.size(3)));
  scores = scores - 1e5 * torch::eye(length, q.options());
  const Tensor hidden = Hidden({.causal = causal, .lengths = lengths}, q, q);
  if (hidden.defined()) scores = scores.masked_fill(hidden, -1e30);
  const Tensor out = torch::matmul(torch::softmax(scores, -1), v.transpose(1, 2)).transpose(1, 2);
  return lengths.defined() ? DropQueries(out, {.query_lengths = lengths}) : out;
}

TEST(Reformer, OneBucketOneChunkIsFullAttention) {
  for (const bool causal : {false, true}) {
    for (const int rounds : {1, 3}) {  // equal rounds must not count a key thrice
      torch::manual_seed(6);
      const Tensor q = Normal({2, 11, 3, 4}), v = Normal({2, 11, 3, 5});
      const MixerSpec spec{
          .kind = "reformer", .lsh_rounds = rounds, .lsh_buckets = 1, .lsh_chunk = 11};
      for (const Tensor& lengths : {Tensor(), Lengths({11, 6})}) {
        const Tensor out = MakeMixer(spec, {3, 4, 5})
                               ->forward(q, q, v, Mask{.causal = causal, .lengths = lengths});
        EXPECT_LT(RelativeOff(out, SharedQueryKey(q, v, causal, lengths)), 1e-9);
      }
    }
  }
}

// Its definition, pair by pair.
TEST(Reformer, IsItsDefinition) {
  for (const bool causal : {false, true}) {
    torch::manual_seed(7);
    constexpr int64_t kLength = 22, kRounds = 3;  // no multiple of the chunk
    const ops::LshOptions options{.buckets = 6, .chunk = 4, .causal = causal};
    const Tensor q = Normal({1, kLength, 1, 5}), v = Normal({1, kLength, 1, 2});
    const Tensor planes = Normal({kRounds, 5, 3});
    const Tensor got = ops::LshAttention(q, v, {}, planes, options);
    const Tensor x = q.view({kLength, 5}), values = v.view({kLength, 2});

    const auto at = [](const Tensor& t, int64_t i) { return t[i].item<int64_t>(); };
    const Tensor buckets = ops::LshBuckets(q, planes, 6).view({kRounds, kLength});
    const Tensor order = ops::LshOrder(buckets);
    std::vector<std::vector<int64_t>> chunk(kRounds, std::vector<int64_t>(kLength));
    for (int64_t r = 0; r < kRounds; ++r) {
      for (int64_t place = 0; place < kLength; ++place) {
        chunk[r][at(order[r], place)] = place / options.chunk;
        if (place == 0) continue;
        const int64_t a = at(order[r], place - 1), b = at(order[r], place);
        EXPECT_LE(std::pair(at(buckets[r], a), a), std::pair(at(buckets[r], b), b));
      }
    }
    const auto sees = [&](int64_t r, int64_t i, int64_t j) {
      const int64_t back = chunk[r][i] - chunk[r][j];
      return at(buckets[r], i) == at(buckets[r], j) && (back == 0 || back == 1) &&
             (!causal || j <= i);
    };
    for (int64_t i = 0; i < kLength; ++i) {
      // Each key that any round shows counts once: rounds' sums weighted by the logsumexp come to
      // the sum over the union, every pair divided by how often it occurs.
      Tensor numerator = torch::zeros({2}, torch::kFloat64);
      double denominator = 0;
      for (int64_t r = 0; r < kRounds; ++r) {
        for (int64_t j = 0; j < kLength; ++j) {
          if (!sees(r, i, j) || i == j) continue;
          int times = 0;
          for (int64_t other = 0; other < kRounds; ++other) times += sees(other, i, j);
          const double weight =
              std::exp((torch::dot(x[i], x[j]) / x[j].norm()).item<double>() / std::sqrt(5.0)) /
              times;
          numerator += weight * values[j];
          denominator += weight;
        }
      }
      const Tensor want = denominator > 0 ? numerator / denominator : values[i];
      EXPECT_LT(Off(got[0][i][0], want), 1e-9) << i;
    }
  }
}

// A chunk longer than the sequence: the same, and no memory for what is not there.
TEST(Reformer, LongChunksAreTheSequence) {
  torch::manual_seed(9);
  const Tensor q = Normal({2, 11, 3, 4}), v = Normal({2, 11, 3, 5});
  for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
    std::vector<Tensor> outs;
    for (const int chunk : {11, 12, 1 << 20}) {
      const MixerSpec spec{.kind = "reformer",
                           .lsh_rounds = 2,
                           .lsh_buckets = 4,
                           .lsh_chunk = chunk,
                           .lsh_variant = variant};
      const Mixer attention = MakeMixer(spec, {3, 4, 5});
      attention->eval();
      outs.push_back(
          attention->forward(q, q, v, Mask{.causal = true, .lengths = Lengths({11, 6})}));
      EXPECT_LT(RelativeOff(outs.back(), outs[0]), 1e-12) << variant << chunk;
    }
  }
}

TEST(Reformer, HashesByAngle) {
  torch::manual_seed(8);
  const Tensor planes = Normal({2, 4, 3});
  const Tensor q = Normal({1, 50, 2, 4});
  const Tensor buckets = ops::LshBuckets(q, planes, 6);
  EXPECT_EQ(Off(ops::LshBuckets(q * 7, planes, 6), buckets), 0);
  // The opposite direction lies in the opposite bucket.
  EXPECT_EQ(Off((buckets + 3).remainder(6), ops::LshBuckets(-q, planes, 6)), 0);
  EXPECT_GT(buckets.max().item<int64_t>(), 3);
}

TEST(Reformer, DrawsNewPlanesOnlyInTraining) {
  const Mixer attention =
      MakeMixer({.kind = "reformer", .lsh_rounds = 1, .lsh_buckets = 8, .lsh_chunk = 4}, {1, 4, 4});
  const Tensor q = torch::randn({1, 64, 1, 4}), v = torch::randn({1, 64, 1, 4});
  const auto run = [&] { return attention->forward(q, q, v, Mask{}); };
  EXPECT_GT(Off(run(), run()), 0);
  attention->eval();
  EXPECT_EQ(Off(run(), run()), 0);
}

// A chunk that is longer than the sequence is the sequence.
TEST(Reformer, ChunksAreNoLongerThanTheSequence) {
  for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
    const auto run = [&](int chunk) {
      torch::manual_seed(9);
      const Mixer attention = MakeMixer({.kind = "reformer",
                                         .lsh_rounds = 2,
                                         .lsh_buckets = 2,
                                         .lsh_chunk = chunk,
                                         .lsh_variant = variant},
                                        {2, 4, 5});
      attention->eval();
      const Tensor q = Normal({1, 10, 2, 4}), v = Normal({1, 10, 2, 5});
      return attention->forward(q, q, v, Mask{.causal = true});
    };
    EXPECT_TRUE(torch::equal(run(1 << 20), run(10))) << variant;
  }
}

TEST(Reformer, RefusesPlanesThatDoNotFit) {
  const Tensor q = Normal({1, 10, 2, 4});
  const auto attend = [&](std::vector<int64_t> planes) {
    ops::LshAttention(q, q, {}, Normal(planes), {.buckets = 4, .chunk = 4});
  };
  attend({2, 4, 2});
  EXPECT_THROW(attend({2, 4, 8}), Error);
  EXPECT_THROW(attend({2, 5, 2}), Error);
  EXPECT_THROW(attend({2, 4}), Error);
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

TEST(Attention, AMapWithoutASizeKeepsItsInputs) {
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
  for (const MixerSizes& sizes :
       {MixerSizes{1, -4, 4}, {1, (int64_t{1} << 32) + 4, 4}, {0, 4, 4}, {1, 4, -1}}) {
    EXPECT_THROW(MakeMixer({.kind = "causal-linear", .feature_map = "favor"}, sizes), Error);
  }
}

TEST(Attention, RefusesBadSpecs) {
  const auto refuses = [](const MixerSpec& spec, const std::string& word) {
    try {
      MakeMixer(spec, {1, 4, 4});
      ADD_FAILURE() << "took a bad spec: " << word;
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
