// Three forms of one speech checkpoint agree: nn, and the runtime on whole sequences and pieces.
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/nn/speech_model.h"
#include "linnet/runtime/narrow.h"
#include "linnet/tasks/speech/speech_encoder.h"

namespace linnet::parity {
namespace {

using torch::Tensor;

struct Case {
  std::string attention;
  int convolution = 0;
  bool norm_first = false;
  std::string feature_map = "elu";
  NetworkKind network = NetworkKind::kTransformer;
};

// Odd sizes on purpose: none is a multiple of the vector width.
ModelSpec Ragged(const Case& from) {
  ModelSpec spec;
  spec.task = "speech", spec.network = from.network;
  spec.stack = {.pattern = {{.kind = from.attention,
                             .feature_map = from.feature_map,
                             .lsh_rounds = 2,
                             .lsh_buckets = 6,
                             .lsh_chunk = 5,
                             .heads = 3,
                             .query_dim = 5,
                             .value_dim = 7}},
                .repeat = 3,
                .d_model = 22,
                .d_ff = 37,
                .activation = from.norm_first ? Activation::kGelu : Activation::kRelu,
                .norm_first = from.norm_first,
                .convolution = from.convolution};
  spec.input = {.vocabulary = 5, .max_length = 61, .value_embedding = 12};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 5};
  spec.part = SpeechSpec{.bands = 7, .stack = 5, .stride = 2, .lookahead = 1, .phones = "A B C D"};
  return spec;
}

class SpeechParity : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    torch::manual_seed(7);
    model_ = nn::SpeechModel(Ragged(GetParam()));
    model_->eval();
    path_ = std::filesystem::temp_directory_path() /
            ("linnet_speech_parity." + std::to_string(getpid()) + ".safetensors");
    nn::SaveModel(path_, *model_, "");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Log-probabilities computed by nn.
  Tensor Want(const Tensor& inputs) {
    const torch::NoGradGuard no_grad;
    return torch::log_softmax(model_->forward(inputs.unsqueeze(0), torch::tensor({inputs.size(0)})),
                              2)[0];
  }

  std::string path_;
  nn::SpeechModel model_ = nullptr;
};

std::span<const float> Floats(const Tensor& x) {
  return {x.data_ptr<float>(), static_cast<size_t>(x.numel())};
}
std::span<float> Room(const Tensor& x) {
  return {x.data_ptr<float>(), static_cast<size_t>(x.numel())};
}
double Off(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST_P(SpeechParity, TrainingAndRuntimeAgree) {
  SpeechEncoder encoder(Model::Open(path_));
  // The outputs of a short sequence must not depend on a longer one read before.
  for (const int64_t length : {61, 1, 2, 30}) {
    const Tensor inputs = torch::randn({length, model_->spec().speech()->Inputs()});
    const Tensor got = torch::empty({length, 5});
    encoder.Encode(Floats(inputs), Room(got));
    EXPECT_LT(Off(got, Want(inputs)), 2e-4) << length;
  }
}

TEST_P(SpeechParity, NarrowModelsGiveNearlyTheSameOutputs) {
  const Tensor inputs = torch::randn({40, model_->spec().speech()->Inputs()});
  const Tensor want = Want(inputs);
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    SpeechEncoder encoder(Model::Open(path_, {.precision = precision}));
    const Tensor got = torch::empty({40, 5}), again = torch::empty({40, 5});
    encoder.Encode(Floats(inputs), Room(got));
    // Hashing is discrete: rounding may change a bucket, and then Reformer's outputs differ.
    if (GetParam().attention != "reformer") {
      EXPECT_LT(Off(got, want), precision == Precision::kBf16 ? 0.05 : 0.2);
    }
    // A file in that precision gives the same outputs, bit for bit.
    const std::string narrowed = path_ + ".narrow";
    WriteNarrowed(Checkpoint::Open(path_), precision, narrowed);
    SpeechEncoder from_file(Model::Open(narrowed));
    from_file.Encode(Floats(inputs), Room(again));
    EXPECT_TRUE(torch::equal(got, again));
    std::filesystem::remove(narrowed);
  }
}

TEST_P(SpeechParity, PiecesEqualTheWhole) {
  SpeechEncoder encoder(Model::Open(path_));
  if (!model_->spec().Causal()) {
    EXPECT_THROW(encoder.NewState(), Error);
    return;
  }
  const int64_t in = model_->spec().speech()->Inputs();
  const Tensor inputs = torch::randn({61, in});
  const Tensor want = Want(inputs);
  for (const int64_t piece : {1, 2, 7, 61}) {
    State state = encoder.NewState(), fork;
    for (int64_t t = 0; t < 61; t += piece) {
      const int64_t count = std::min(piece, 61 - t);
      const Tensor part = inputs.narrow(0, t, count).contiguous(), got = torch::empty({count, 5});
      if (t == 14) fork = state.Clone();
      encoder.Extend(state, Floats(part), Room(got));
      EXPECT_LT(Off(got, want.narrow(0, t, count)), 2e-4) << piece << " at " << t;
    }
    EXPECT_EQ(state.position(), 61u);
    // Sinusoidal position encodings continue beyond the 61 positions of training.
    const Tensor one = torch::randn({1, in}), out = torch::empty({1, 5});
    const Tensor longer = torch::cat({inputs, one}), all = torch::empty({62, 5});
    encoder.Extend(state, Floats(one), Room(out));
    encoder.Encode(Floats(longer), Room(all));
    EXPECT_LT(Off(out[0], all[61]), 2e-4) << piece;
    if (fork.batch() > 0) {
      encoder.Extend(fork, Floats(inputs.narrow(0, 14, 1).contiguous()), Room(out));
      EXPECT_LT(Off(out[0], want[14]), 2e-4);
    }
  }
}

TEST_P(SpeechParity, RefusesInvalidArguments) {
  const auto model = Model::Open(path_);
  SpeechEncoder encoder(model);
  std::vector<float> inputs(61 * encoder.inputs()), out(61 * 5);
  EXPECT_THROW(encoder.Encode(std::span(inputs).first(encoder.inputs()), out), Error);
  EXPECT_THROW(encoder.Encode(std::span(inputs).first(3), std::span(out).first(5)), Error);
  EXPECT_NO_THROW(encoder.Encode({}, {}));
  Engine engine(model);
  const std::vector<int32_t> tokens(3);  // the model reads frames, not tokens
  EXPECT_THROW(engine.Whole(1, tokens, 3, std::span(out).first(5)), Error);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SpeechParity,
    testing::Values(Case{"linear"}, Case{"linear", 5, true}, Case{"linear", 3, false, "favor"},
                    Case{"full"}, Case{"full", 3, true}, Case{"reformer"},
                    Case{"reformer", 3, true}, Case{"causal-linear"},
                    Case{"causal-linear", 4, true}, Case{"causal-linear", 3, false, "relu"},
                    Case{"linear", 0, false, "elu", NetworkKind::kLstm}),
    [](const auto& info) {
      std::string name = info.param.network == NetworkKind::kLstm ? "lstm" : info.param.attention;
      name += std::to_string(info.param.convolution) + info.param.feature_map;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace linnet::parity
