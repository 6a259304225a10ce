// Tests every registered mixer in every form: whole sequences, pieces and single steps with a
// state, a memory, batches of sequences of unequal length, copies of a state. Compares values and
// gradients with the plain loops of test_oracle.h. Forms that a mixer lacks according to the
// registry must throw an error.
//
// Mixers take no packed sequences; ops/causal_linear_test.cc tests those of ops/causal_linear.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "linnet/nn/decoder.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_slopes.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

// 1 to 3; 67, a prime longer than every chunk; and, each with its neighbors, the chunk size of the
// hashing mixers (8), the block size of the fused kernels (32) and the chunk size of plain causal
// attention (64).
constexpr int64_t kRaggedLengths[] = {1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 67};

constexpr MixerSizes kSizes[] = {{3, 4, 5}, {1, 8, 1}, {2, 1, 17}};  // H, D, M

// A mixer's inputs: queries [N, L, H, D], keys [N, S, H, D], values [N, S, H, M], and others.
using Inputs = std::vector<Tensor>;

class Conformance : public testing::TestWithParam<std::tuple<MixerCase, MixerSizes>> {
 protected:
  const MixerCase& Case() const { return std::get<0>(GetParam()); }
  const MixerInfo& info() const { return Case().info; }
  MixerSpec Spec() const {
    MixerSpec spec = Case().spec;
    const MixerSizes& sizes = std::get<1>(GetParam());
    spec.heads = static_cast<int>(sizes.heads), spec.query_dim = static_cast<int>(sizes.query_dim);
    spec.value_dim = static_cast<int>(sizes.value_dim);
    return spec;
  }
  // The mixer under test, in evaluation mode for deterministic outputs.
  Mixer Make(torch::ScalarType type = torch::kFloat64) {
    torch::manual_seed(11);
    Mixer mixer = MakeMixer(Spec());
    mixer->to(type);
    mixer->eval();
    omega_ = OmegaOf(*mixer);
    own_ = std::make_shared<const std::map<std::string, Row>>(ParametersOf(*mixer));
    return mixer;
  }
  // Random inputs, the same for every type. Queries and keys are small, so that few similarities
  // vanish and the division magnifies no rounding errors. The tensors are not contiguous: in
  // memory, heads come before positions.
  Inputs Draw(int64_t batch, int64_t queries, int64_t keys, torch::ScalarType type) const {
    torch::manual_seed(100 * queries + keys);
    const MixerSpec spec = Spec();
    Inputs in;
    for (const ProjectionInfo& part : MixerProjections(spec)) {
      const int64_t length = in.empty() ? queries : keys;
      const int64_t heads = part.shared ? 1 : spec.heads / part.readers;
      const Tensor x = (in.size() < 2 ? 0.5 : 1.0) * Normal({batch, heads, length, part.width});
      in.push_back(part.shared ? x.to(type).squeeze(1) : x.to(type).transpose(1, 2));
    }
    return in;
  }
  // Whether Recall() supports a state that steps or pieces filled.
  bool Recalls() const {
    return info().projections == nullptr && Case().spec.window == 0 && !Case().spec.rotary;
  }

  // The values of Mask::causal that the mixer accepts; only one if both have the same effect.
  std::vector<bool> CausalMasks() const {
    if (FindMixer(Spec()).always_causal) return {true};
    return info().causal ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  // Expects an InputError that names the kind and contains `part`.
  void ExpectRefusal(const std::function<void()>& run, const std::string& part = "") const {
    const std::string error = ErrorOf(run);
    EXPECT_TRUE(Contains(error, "'" + info().name + "'") && Contains(error, part)) << error;
  }

  // A length above one chunk of the plain form, which runs in double (64 positions; in recurrences,
  // 1), or above one block of the fused form, which runs in fp32 (32 positions).
  int64_t Longest(const Rounding& rounding) const {
    return rounding.type != torch::kFloat64 ? 33 : info().projections == nullptr ? 65 : 9;
  }

  // The oracle's input for head h of sequence n.
  Head HeadOf(const Inputs& in, const Mask& mask, int64_t n, int64_t h) const {
    const auto count = [&](const Tensor& lengths, const Tensor& x) {
      return lengths.defined() ? lengths[n].item<int64_t>() : x.size(1);
    };
    const int64_t queries = count(mask.query_lengths, in[0]), keys = count(mask.lengths, in[1]);
    // The head of x that head h reads.
    const auto read = [&](const Tensor& x) { return h / (Spec().heads / x.size(2)); };
    Head head{.q = RowsOf(in[0], n, read(in[0]), queries),
              .k = RowsOf(in[1], n, read(in[1]), keys),
              .v = RowsOf(in[2], n, read(in[2]), keys),
              .causal = mask.causal || info().always_causal,
              .omega = omega_,
              .own = own_,
              .index = static_cast<size_t>(h)};
    for (size_t i = 3; i < in.size(); ++i) {
      const Tensor x = in[i].dim() == 3 ? in[i].unsqueeze(2) : in[i];
      head.more.push_back(RowsOf(x, n, read(x), keys));
    }
    if (mask.allowed.defined()) {
      const Tensor allowed =
          mask.allowed.expand({in[0].size(0), in[0].size(2), in[0].size(1), in[1].size(1)})[n][h]
              .contiguous();
      const bool* data = allowed.data_ptr<bool>();
      for (int64_t i = 0; i < queries; ++i) {
        head.allowed.emplace_back(data + i * in[1].size(1), data + i * in[1].size(1) + keys);
      }
    }
    return head;
  }

  // The heads that share a norm with head h, including head h.
  std::vector<Head> HeadsWith(const Inputs& in, const Mask& mask, int64_t n, int64_t h) const {
    const int64_t set = NormHeads(Spec()), first = h / set * set;
    std::vector<Head> heads;
    for (int64_t i = first; i < first + set; ++i) heads.push_back(HeadOf(in, mask, n, i));
    return heads;
  }

  // The oracle's outputs [N, L, H, M] in double; zeros behind query_lengths.
  Tensor Want(const Inputs& in, const Mask& mask) const {
    const int64_t heads = Spec().heads, dim = Spec().value_dim, set = NormHeads(Spec());
    Tensor want = torch::zeros({in[0].size(0), in[0].size(1), heads, dim}, torch::kFloat64);
    auto at = want.accessor<double, 4>();
    for (int64_t n = 0; n < want.size(0); ++n) {
      for (int64_t h = 0; h < heads; h += set) {
        const std::vector<Head> together = HeadsWith(in, mask, n, h);
        if (together[0].k.empty()) continue;
        const std::vector<Rows> outs = OutsOf(*Case().oracle, Spec(), together);
        for (size_t i = 0; i < outs.size() * outs[0].size(); ++i) {
          const size_t own = i / outs[0].size(), t = i % outs[0].size();
          for (int64_t m = 0; m < dim; ++m) {
            at[n][static_cast<int64_t>(t)][h + static_cast<int64_t>(own)][m] =
                outs[own][t][static_cast<size_t>(m)];
          }
        }
      }
    }
    return want;
  }

  // Checks gradients of sum(weights * out) for all inputs against central differences of the
  // oracle: for all elements of small inputs, and for about 24 (length above 9: 8) of large ones.
  void ExpectSlopes(const Inputs& in, const Mask& mask, const Tensor& weights,
                    const std::vector<Tensor>& gradients, double tolerance) const {
    double scale = 1;
    for (const Tensor& gradient : gradients) scale = std::max(scale, Largest(gradient));
    std::map<std::pair<int64_t, int64_t>, OracleLoss> losses;  // by sequence and set of heads
    for (size_t which = 0; which < in.size(); ++which) {
      const Tensor got = gradients[which].to(torch::kFloat64).contiguous();
      const int64_t length = got.size(1), dim = got.size(-1);
      const int64_t heads = got.dim() == 3 ? 1 : got.size(2), readers = Spec().heads / heads;
      const int64_t probes = length > 9 ? 8 : 24;  // the oracle's time grows with the length
      for (int64_t i = 0; i < got.numel(); i += std::max<int64_t>(got.numel() / probes, 1)) {
        const int64_t d = i % dim, h = i / dim % heads, t = i / (dim * heads) % length;
        const int64_t n = i / (dim * heads * length);
        double slope = 0;
        for (int64_t own = h * readers; own < (h + 1) * readers; ++own) {
          const std::pair<int64_t, int64_t> set(n, own / NormHeads(Spec()));
          auto loss = losses.find(set);
          if (loss == losses.end()) {
            const OracleLoss fresh(*Case().oracle, Spec(), HeadsWith(in, mask, n, own), weights[n]);
            loss = losses.emplace(set, fresh).first;
          }
          slope += loss->second.Slope(static_cast<size_t>(own), which, static_cast<size_t>(t),
                                      static_cast<size_t>(d));
        }
        ASSERT_NEAR(got.data_ptr<double>()[i], slope, tolerance * scale)
            << "input " << which << " of sequence " << n << ", position " << t << ", head " << h
            << ", number " << d;
      }
    }
  }

  Rows omega_;
  std::shared_ptr<const std::map<std::string, Row>> own_;
};
class RecurrentConformance : public Conformance {};
class NotRecurrentConformance : public Conformance {};
class CrossConformance : public Conformance {};
class NotCrossConformance : public Conformance {};

// The first case of each mixer with every size, and each other case with one size, in turn.
auto CasesWhere(const std::function<bool(const MixerCase&)>& applies) {
  std::vector<Conformance::ParamType> cases;
  size_t turn = 0;
  for (const MixerCase& one : MixerCases()) {
    if (!applies(one)) continue;
    if (!one.first) cases.emplace_back(one, kSizes[turn++ % std::size(kSizes)]);
    for (const MixerSizes& sizes : kSizes) {
      if (one.first) cases.emplace_back(one, sizes);
    }
  }
  return testing::ValuesIn(cases);
}
std::string MixerTestName(const testing::TestParamInfo<Conformance::ParamType>& info) {
  const auto& [one, sizes] = info.param;
  return StrCat(one.name, "_", sizes.heads, "x", sizes.query_dim, "x", sizes.value_dim);
}

const auto kAny = [](const MixerCase&) { return true; };
const auto kSteps = [](const MixerCase& one) { return Remembers(one.info); };
const auto kCrosses = [](const MixerCase& one) { return Crosses(one); };
INSTANTIATE_TEST_SUITE_P(Mixers, Conformance, CasesWhere(kAny), MixerTestName);
INSTANTIATE_TEST_SUITE_P(Mixers, RecurrentConformance, CasesWhere(kSteps), MixerTestName);
INSTANTIATE_TEST_SUITE_P(Mixers, NotRecurrentConformance, CasesWhere(std::not_fn(kSteps)),
                         MixerTestName);
INSTANTIATE_TEST_SUITE_P(Mixers, CrossConformance, CasesWhere(kCrosses), MixerTestName);
INSTANTIATE_TEST_SUITE_P(Mixers, NotCrossConformance, CasesWhere(std::not_fn(kCrosses)),
                         MixerTestName);

TEST_P(Conformance, ModuleAndRegistryAgree) {
  const Mixer mixer = Make();
  EXPECT_EQ(mixer->recurrent(), Remembers(info()));
  EXPECT_EQ(mixer->cross(), Crosses(Case()));
  EXPECT_EQ(omega_.empty(), !info().maps || OmegaColumns(Spec(), Spec().query_dim) == 0);
}

TEST_P(Conformance, WholeSequencesMatchTheOracle) {
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    for (const int64_t length : kRaggedLengths) {
      const Inputs in = Draw(2, length, length, rounding.type);
      for (const bool causal : {false, true}) {
        if (causal && !info().causal) continue;
        EXPECT_LT(RelativeOff(mixer->Mix(in, {causal}), Want(in, {causal})), rounding.off)
            << rounding.type << " " << length << " " << causal;
      }
    }
  }
}

TEST_P(Conformance, Bf16IsNearTheOracle) {
  constexpr double kOff = 0.06;  // a few roundings to eight bits
  const Mixer mixer = Make(torch::kBFloat16);
  for (const int64_t length : {1, 3, 33}) {
    const Inputs in = Draw(2, length, length, torch::kBFloat16);
    for (const bool causal : CausalMasks()) {
      const Mask mask{.causal = causal};
      const Tensor got = mixer->Mix(in, mask);
      EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(Finite(got));
      if (Case().oracle->hashes != nullptr && Case().oracle->hashes(Spec())) continue;
      EXPECT_LT(RelativeOff(got.to(torch::kFloat64), Want(in, mask)), kOff) << length;
    }
  }
}

TEST_P(Conformance, GradientsMatchDifferencesOfTheOracle) {
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    for (const int64_t length : std::vector<int64_t>{1, 2, 3, 7, Longest(rounding)}) {
      Inputs in = Draw(2, length, length, rounding.type);
      for (Tensor& x : in) x.requires_grad_();
      for (const bool causal : CausalMasks()) {
        SCOPED_TRACE(StrCat(rounding.type, ", length ", length, ", causal ", causal));
        const Mask mask{.causal = causal};
        const Tensor out = mixer->Mix(in, mask);
        const Tensor weights = torch::randn_like(out.detach());
        ExpectSlopes(in, mask, weights, Gradients((out * weights).sum(), in),
                     rounding.type == torch::kFloat64 ? 1e-6 : 1e-3);
      }
    }
  }
}

// Compares outputs and gradients of sequence n of a batch with those of the same sequence alone and
// without padding. Outputs and gradients of padding must be zero.
void ExpectAsAlone(MixerImpl& mixer, const Inputs& in, const Tensor& out, const Tensor& weights,
                   const std::vector<Tensor>& gradients, const Mask& mask, int64_t n, double off) {
  const int64_t length = mask.lengths[n].item<int64_t>(), behind = in[0].size(1) - length;
  const auto expect_zeros = [&](const Tensor& x) {
    EXPECT_EQ(behind > 0 ? Largest(x[n].narrow(0, length, behind)) : 0, 0);
  };
  expect_zeros(out);
  for (const Tensor& gradient : gradients) expect_zeros(gradient);
  if (length == 0) return;
  Inputs alone;
  for (const Tensor& x : in) {
    alone.push_back(x.detach().narrow(0, n, 1).narrow(1, 0, length).requires_grad_());
  }
  const Tensor own = mixer.Mix(alone, {.causal = mask.causal})[0];
  EXPECT_LT(RelativeOff(out[n].narrow(0, 0, length), own), off);
  const std::vector<Tensor> want = Gradients((own * weights[n].narrow(0, 0, length)).sum(), alone);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_LT(Off(gradients[i][n].narrow(0, 0, length), want[i][0]),
              off * std::max(1.0, Largest(want[i])))
        << "input " << i;
  }
}

// Each sequence of a batch has the same outputs and gradients as alone, whatever the padding holds.
TEST_P(Conformance, SequencesDoNotDependOnTheBatch) {
  const Tensor lengths = Lengths({33, 9, 0, 1, 8});
  const int64_t batch = lengths.size(0);
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    for (const bool causal : CausalMasks()) {
      // 3e38 is finite, but fp32 arithmetic on it overflows. In double, infinity takes its place.
      for (const float padding : {NAN, rounding.type == torch::kFloat64 ? INFINITY : 3e38f}) {
        SCOPED_TRACE(StrCat(rounding.type, ", causal ", causal, ", padding ", padding));
        Inputs in = Draw(batch, 33, 33, rounding.type);
        for (Tensor& x : in) {
          for (int64_t n = 0; n < batch; ++n)
            x[n].slice(0, lengths[n].item<int64_t>()).fill_(padding);
          x.requires_grad_();
        }
        const Mask mask{.causal = causal, .lengths = lengths, .query_lengths = lengths};
        const Tensor out = mixer->Mix(in, mask);
        EXPECT_LT(RelativeOff(out, Want(in, mask)), rounding.off);
        const Tensor weights = torch::randn_like(out.detach());
        const std::vector<Tensor> gradients = Gradients((out * weights).sum(), in);
        for (int64_t n = 0; n < batch; ++n) {
          SCOPED_TRACE(StrCat("sequence ", n));
          ExpectAsAlone(*mixer, in, out, weights, gradients, mask, n, rounding.off);
        }
      }
    }
  }
}

TEST_P(Conformance, MasksAreAppliedOrRefused) {
  const Mixer mixer = Make();
  const Inputs in = Draw(2, 9, 9, torch::kFloat64);
  const int64_t heads = Spec().heads;
  Mask mask{.lengths = Lengths({9, 7}), .query_lengths = Lengths({9, 7})};
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{9, 9}, {2, 1, 9, 9}, {1, heads, 9, 9}, {2, heads, 1, 9}}) {
    mask.allowed = torch::rand(sizes) < 0.5;
    if (sizes[sizes.size() - 2] == 9) mask.allowed.select(-2, 3).fill_(false);  // query 3: no key
    if (!Case().oracle->masks) {
      ExpectRefusal([&] { mixer->Mix(in, mask); }, "no form for arbitrary masks");
      continue;
    }
    for (const bool causal : CausalMasks()) {
      mask.causal = causal;
      Inputs leaves = in;
      for (Tensor& x : leaves) x = x.clone().requires_grad_();
      const Tensor out = mixer->Mix(leaves, mask);
      EXPECT_LT(RelativeOff(out, Want(in, mask)), 1e-12) << causal;
      const Tensor weights = torch::randn_like(out.detach());
      ExpectSlopes(in, mask, weights, Gradients((out * weights).sum(), leaves), 1e-6);
    }
  }
}

TEST_P(Conformance, NonCausalMixersRefuseACausalMask) {
  if (info().causal) return;  // WholeSequencesMatchTheOracle tests causal masks
  const Inputs in = Draw(1, 3, 3, torch::kFloat64);
  const Mixer mixer = Make();
  ExpectRefusal([&] { mixer->Mix(in, Mask{.causal = true}); }, "causal");
}

// Runs MixPiece() over the given pieces of the inputs, in turn.
Tensor InPieces(MixerImpl& mixer, const Inputs& in, const std::vector<int64_t>& cuts,
                MixerState& state) {
  std::vector<Tensor> out;
  int64_t begin = state.length;
  for (const int64_t count : cuts) {
    Inputs piece;
    for (const Tensor& x : in) piece.push_back(x.narrow(1, begin, count));
    out.push_back(mixer.MixPiece(piece, state));
    begin += count;
    EXPECT_EQ(state.length, begin);
  }
  return torch::cat(out, 1);
}
Tensor InSteps(MixerImpl& mixer, const Inputs& in, int64_t end, MixerState& state) {
  std::vector<Tensor> out;
  for (int64_t t = state.length; t < end; ++t) {
    Inputs at;
    for (const Tensor& x : in) at.push_back(x.select(1, t));
    out.push_back(mixer.MixStep(at, state));
    EXPECT_EQ(state.length, t + 1);
  }
  return torch::stack(out, 1);
}

// Steps are causal, also for mixers that are not causal over whole sequences.
TEST_P(RecurrentConformance, PiecesAndStepsMatchTheOracle) {
  const Mask past{.causal = true};
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    const torch::NoGradGuard no_grad;
    for (const int64_t length : {1, 2, 3, 7, 9, 31, 33, 64, 67}) {
      SCOPED_TRACE(StrCat(rounding.type, ", length ", length));
      const Inputs in = Draw(2, length, length, rounding.type);
      const Tensor want = Want(in, past);
      for (const std::vector<int64_t>& cuts : Cuts(length)) {
        MixerState state;
        EXPECT_LT(RelativeOff(InPieces(*mixer, in, cuts, state), want), rounding.off)
            << cuts.size() << " pieces";
      }
      // Runs steps only at the shortest lengths and at the longest, which covers those between.
      if (length > 3 && length < kRaggedLengths[std::size(kRaggedLengths) - 1]) continue;
      MixerState state;
      EXPECT_LT(RelativeOff(InSteps(*mixer, in, length, state), want), rounding.off) << "steps";
      if (!Recalls()) continue;
      EXPECT_LT(RelativeOff(mixer->Recall(in[0].select(1, length - 1), state),
                            want.select(1, length - 1)),
                rounding.off);
    }
  }
}

// Gradients flow from each piece or step through the state to all earlier ones.
TEST_P(RecurrentConformance, GradientsThroughPiecesAndStepsEqualTheWholes) {
  const Mask past{.causal = true};
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    for (const int64_t length : std::vector<int64_t>{2, 7, Longest(rounding)}) {
      Inputs in = Draw(2, length, length, rounding.type);
      for (Tensor& x : in) x.requires_grad_();
      const MixerSpec spec = Spec();
      const Tensor weights = Normal({2, length, spec.heads, spec.value_dim}, rounding.type);
      std::vector<Tensor> whole;
      if (info().causal) {
        whole = Gradients((mixer->Mix(in, past) * weights).sum(), in);
      }
      const auto check = [&](const Tensor& out, const std::string& form) {
        SCOPED_TRACE(StrCat(rounding.type, ", length ", length, ", ", form));
        const std::vector<Tensor> got = Gradients((out * weights).sum(), in);
        if (whole.empty()) {  // forward() is not causal: the first form, checked here, replaces it
          ExpectSlopes(in, past, weights, got, rounding.type == torch::kFloat64 ? 1e-6 : 1e-3);
          whole = got;
        }
        // A key of one channel, divided by its absolute value, is 1 or -1: its gradient is only
        // rounding error.
        const bool cancels = info().gated && spec.query_dim == 1 && rounding.off > 1e-6;
        const double off = rounding.off * (cancels ? 100 : 10);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LT(Off(got[i], whole[i]), off * std::max(1.0, Largest(whole[i]))) << i;
        }
      };
      for (const std::vector<int64_t>& cuts : Cuts(length)) {
        MixerState state;
        check(InPieces(*mixer, in, cuts, state), StrCat(cuts.size(), " pieces"));
      }
      if (length > 33) continue;
      MixerState state;
      check(InSteps(*mixer, in, length, state), "steps");
    }
  }
}

// A state is a value: a copy can continue differently without an effect on the original, and a
// state restored from copies of its tensors continues like the original.
TEST_P(RecurrentConformance, CopiedAndRestoredStatesContinue) {
  constexpr int64_t kLength = 33;
  const Mask past{.causal = true};
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    const torch::NoGradGuard no_grad;
    const Inputs in = Draw(3, kLength, kLength, rounding.type);
    for (const int64_t cut : {1, 8, 32}) {
      SCOPED_TRACE(StrCat(rounding.type, ", cut ", cut));
      Inputs other;  // equal before the cut
      for (const Tensor& x : in) {
        other.push_back(torch::cat({x.narrow(1, 0, cut), -x.narrow(1, cut, kLength - cut)}, 1));
      }
      MixerState state;
      InPieces(*mixer, in, {cut}, state);
      MixerState copy = state, restored = state;
      for (Tensor& x : restored.tensors) x = x.clone();
      const auto go_on = [&](const Inputs& inputs, MixerState& from) {
        const Tensor want = Want(inputs, past).narrow(1, cut, kLength - cut);
        EXPECT_LT(RelativeOff(InSteps(*mixer, inputs, kLength, from), want), rounding.off);
      };
      go_on(in, state);
      EXPECT_EQ(copy.length, cut);
      go_on(other, copy);
      go_on(in, restored);
      if (!Recalls()) continue;
      const auto expect_last = [&](const Inputs& inputs, const MixerState& from) {
        const Tensor query = inputs[0].select(1, kLength - 1);
        EXPECT_LT(
            RelativeOff(mixer->Recall(query, from), Want(inputs, past).select(1, kLength - 1)),
            rounding.off);
      };
      expect_last(in, state);
      expect_last(other, copy);
      expect_last(in, restored);
    }
  }
}

TEST_P(NotRecurrentConformance, RefusesRecurrentForms) {
  const Mixer mixer = Make();
  const Inputs in = Draw(1, 3, 3, torch::kFloat64);
  const auto first = [](const Tensor& x) { return x.select(1, 0); };
  MixerState state;
  const std::function<void()> forms[] = {
      [&] { mixer->Step(first(in[0]), first(in[1]), first(in[2]), state); },
      [&] { mixer->Piece(in[0], in[1], in[2], state); },
      [&] { mixer->Remember(in[1], in[2], {}, state); },
      [&] { mixer->Recall(first(in[0]), state); }};
  for (const auto& form : forms) {
    EXPECT_TRUE(Contains(ErrorOf(form), "no recurrent form"));
    EXPECT_TRUE(state.empty());
  }
  TransformerOptions options{.pattern = {Spec()}, .d_model = 8, .d_ff = 8};
  EXPECT_TRUE(BuildTransformer(options).recurrent.is_empty());
}

// Attention over a memory: whole, and one query at a time from a state built at once or in parts.
TEST_P(CrossConformance, CrossAttentionMatchesTheOracle) {
  for (const Rounding& rounding : kRoundings) {
    const Mixer mixer = Make(rounding.type);
    for (const int64_t queries : {1, 5}) {
      for (const int64_t keys : {1, 2, 8, 33, 67}) {
        SCOPED_TRACE(StrCat(rounding.type, ", ", queries, " queries, ", keys, " keys"));
        Inputs in = Draw(3, queries, keys, rounding.type);
        const Mask mask{.lengths = Lengths({keys, (keys + 1) / 2, 0})};
        in[1][1].slice(0, (keys + 1) / 2).fill_(NAN), in[2][1].slice(0, (keys + 1) / 2).fill_(NAN);
        in[1][2].fill_(INFINITY), in[2][2].fill_(NAN);
        for (Tensor& x : in) x.requires_grad_();
        const Tensor want = Want(in, mask);
        const Tensor weights = torch::randn_like(want).to(rounding.type);
        const Tensor out = mixer->Mix(in, mask);
        EXPECT_LT(RelativeOff(out, want), rounding.off);
        const std::vector<Tensor> gradients = Gradients((out * weights).sum(), in);
        ExpectSlopes(in, mask, weights, gradients, rounding.type == torch::kFloat64 ? 1e-6 : 1e-3);
        MixerState memory;
        mixer->Remember(in[1], in[2], mask.lengths, memory);
        EXPECT_EQ(memory.length, keys);
        std::vector<Tensor> recalled;
        for (int64_t t = 0; t < queries; ++t) {
          recalled.push_back(mixer->Recall(in[0].select(1, t), memory));
        }
        const Tensor all = torch::stack(recalled, 1);
        EXPECT_LT(RelativeOff(all, want), rounding.off);
        const std::vector<Tensor> through = Gradients((all * weights).sum(), in);
        for (size_t i = 0; i < in.size(); ++i) {
          EXPECT_LT(Off(through[i], gradients[i]),
                    10 * rounding.off * std::max(1.0, Largest(gradients[i])))
              << i;
        }
      }
    }
    const Inputs in = Draw(2, 3, 9, rounding.type);
    MixerState parts;
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>(0, 4), {4, 1}, {5, 4}}) {
      mixer->Remember(in[1].narrow(1, begin, count), in[2].narrow(1, begin, count), {}, parts);
    }
    const Tensor want = Want(in, {});
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_LT(RelativeOff(mixer->Recall(in[0].select(1, t), parts), want.select(1, t)),
                rounding.off);
    }
    const MixerState nothing;
    EXPECT_TRUE(Contains(ErrorOf([&] { mixer->Recall(in[0].select(1, 0), nothing); }),
                         "nothing to recall"));
  }
}

TEST_P(NotCrossConformance, RefusesAMemory) {
  const Mixer mixer = Make();
  for (const int64_t keys : {2, 4}) {
    const Inputs in = Draw(1, 3, keys, torch::kFloat64);
    ExpectRefusal([&] { mixer->Mix(in, {}); });
  }
  const TransformerOptions full{
      .pattern = {{.kind = "full", .heads = 1, .query_dim = 4, .value_dim = 4}},
      .d_model = 8,
      .d_ff = 8};
  ExpectRefusal([&] { BuildDecoder({.transformer = full, .cross = {Spec()}}); }, "memory");
}

}  // namespace
}  // namespace linnet::nn
