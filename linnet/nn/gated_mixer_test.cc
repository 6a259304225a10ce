// Tests gated recurrences with extreme and invalid inputs. mixer_conformance_test.cc tests their
// output values.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "linnet/nn/mixer.h"
#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {
namespace {

using torch::Tensor;
using Parts = std::vector<Tensor>;

class GatedKind : public testing::TestWithParam<MixerCase> {
 protected:
  static constexpr MixerSizes kSizes = {3, 4, 5};

  Mixer Make(torch::ScalarType type = torch::kFloat64) const {
    torch::manual_seed(11);
    Mixer mixer = MakeMixer(GetParam().spec, kSizes);
    mixer->to(type);
    return mixer;
  }
  Parts Draw(int64_t batch, int64_t length, double scale,
             torch::ScalarType type = torch::kFloat64) const {
    MixerSpec spec = GetParam().spec;
    spec.heads = 3, spec.query_dim = 4, spec.value_dim = 5;
    Parts parts;
    for (const ProjectionInfo& info : MixerProjections(spec)) {
      std::vector<int64_t> sizes = {batch, length, 3 / info.readers, info.width};
      if (info.shared) sizes.erase(sizes.begin() + 2);
      parts.push_back((scale * Normal(sizes)).to(type).requires_grad_());
    }
    return parts;
  }
};

std::vector<MixerCase> GatedCases() {
  std::vector<MixerCase> cases = MixerCases();
  std::erase_if(cases, [](const MixerCase& one) { return one.info.projections == nullptr; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Kinds, GatedKind, testing::ValuesIn(GatedCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GatedKind, ExtremeInputsGiveFiniteResults) {
  for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
    const Mixer mixer = Make(type);
    for (const double scale : {0.0, 1.0, 1e4}) {
      const Parts in = Draw(2, 9, scale, type);
      const Tensor out = mixer->Mix(in, Mask{.lengths = Lengths({0, 7})});
      EXPECT_TRUE(Finite(out)) << scale;
      EXPECT_EQ(Largest(out[0]), 0) << scale;
      for (const Tensor& gradient : Gradients(out.sum(), in)) {
        EXPECT_TRUE(Finite(gradient)) << scale;
        EXPECT_EQ(Largest(gradient[0]), 0) << scale;
      }
    }
  }
}

// Arguments that do not fit throw an error that names the kind, and the state stays unchanged.
TEST_P(GatedKind, RefusesWhatDoesNotFit) {
  const Mixer mixer = Make();
  const Parts in = Draw(2, 6, 1);
  MixerState state;
  mixer->MixPiece(in, state);
  const Tensor before = state.tensors[0].clone();
  const auto refuses = [&](const char* what, const std::function<void()>& run) {
    const std::string error = ErrorOf(run);
    EXPECT_TRUE(Contains(error, "'" + GetParam().info.name + "'")) << what << ": " << error;
    EXPECT_EQ(state.length, 6) << what;
    EXPECT_TRUE(torch::equal(state.tensors[0], before)) << what;
  };
  const auto every = [&](const char* what, const Parts& parts) {
    refuses(what, [&] { mixer->Mix(parts, {}); });
    refuses(what, [&] { mixer->MixPiece(parts, state); });
  };
  refuses("attention's form", [&] { mixer->forward(in[0], in[1], in[2], {}); });
  every("a missing projection", Parts(in.begin(), in.end() - 1));
  for (size_t i = 0; i < in.size(); ++i) {
    Parts changed = in;
    changed[i] = in[i].narrow(1, 0, 5);
    every("a shorter projection", changed);
    changed[i] = torch::cat({in[i], in[i]}, -1);
    every("a wider projection", changed);
    changed[i] = in[i].unsqueeze(0);
    every("too many axes", changed);
  }
  every("no positions", Draw(2, 0, 1));
  refuses("another batch", [&] { mixer->MixPiece(Draw(3, 6, 1), state); });
  refuses("another type", [&] { mixer->MixPiece(Draw(2, 6, 1, torch::kFloat32), state); });
  for (const Mask& mask : {Mask{.lengths = Lengths({6, 7})}, Mask{.lengths = Lengths({6})},
                           Mask{.query_lengths = Lengths({-1, 6})},
                           Mask{.allowed = torch::ones({6, 6}, torch::kBool)}}) {
    refuses("a mask", [&] { mixer->Mix(in, mask); });
  }
}

}  // namespace
}  // namespace linnet::nn
