// All forms of one checkpoint agree: nn in batch form, nn step by step, and the runtime with every
// split of the sequence into a prefix and steps.
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "linnet/engine.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/tasks/images/images.h"

namespace linnet::parity {
namespace {

using torch::Tensor;

// Odd sizes on purpose: none is a multiple of the vector width.
ModelSpec Ragged(const std::string& task, Activation activation, bool grid,
                 std::vector<MixerSpec> pattern, int patch = 1) {
  for (MixerSpec& mixer : pattern) mixer.heads = 3, mixer.query_dim = 5, mixer.value_dim = 7;
  ModelSpec spec;
  spec.task = task;
  spec.stack = {.pattern = pattern,
                .repeat = pattern.size() > 1 ? 1 : 3,
                .d_model = 22,
                .d_ff = 37,
                .activation = activation};
  spec.input.value_embedding = 12;
  if (task == "images") {
    spec.part = ImageSpec{.width = 5, .height = 3, .channels = 3};
    spec.input.max_length = 44, spec.head.mixtures = 4;
    if (grid) {
      spec.input.positions = Positions::kGrid, spec.input.pixel_above = true;
      spec.stack.d_model = 20, spec.stack.norm_first = true;
      spec.input.stem = {.channels = 5, .rows = 3, .columns = 5};
    }
    if (patch > 1) spec.input.patch = {.tokens = patch, .width = 28, .d_ff = 19};
    return spec;
  }
  spec.part = std::monostate();
  spec.head = {.kind = HeadKind::kCategorical, .classes = 11};
  spec.input.vocabulary = 11, spec.input.max_length = 41;
  if (task == "couplet") {
    spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefgh"};
    spec.input.positions = Positions::kAdded, spec.input.value_embedding = spec.stack.d_model;
    spec.head.tied = true;
  }
  return spec;
}

struct ParityCase {
  std::string task;
  Activation activation;
  bool grid = false;         // grid positions, pixel above, a stem, norm first
  std::string name = "elu";  // in the name of the test
  std::vector<MixerSpec> pattern = {MixerSpec()};
  int patch = 1;
};
class Parity : public testing::TestWithParam<ParityCase> {
 protected:
  void SetUp() override {
    torch::manual_seed(7);
    model_ = nn::SequenceModel(Ragged(GetParam().task, GetParam().activation, GetParam().grid,
                                      GetParam().pattern, GetParam().patch));
    model_->eval();
    path_ = (std::filesystem::temp_directory_path() /
             ("linnet_parity_test." + std::to_string(getpid()) + ".safetensors"))
                .string();
    nn::SaveModel(path_, *model_, "");
    runtime_ = Model::Open(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
  nn::SequenceModel model_ = nullptr;
  std::shared_ptr<const Model> runtime_;
};

TEST_P(Parity, BatchStepsAndRuntimeAgreeAtEveryCut) {
  const torch::NoGradGuard no_grad;
  const ModelSpec& spec = model_->spec();
  const int64_t length = spec.input.max_length, batch = 3, width = spec.OutputSize();
  const Tensor tokens = torch::randint(spec.input.vocabulary, {batch, length}, torch::kInt64);
  const Tensor want = model_->forward(tokens);
  const double scale = want.abs().max().item<double>();
  const auto expect_close = [&](const Tensor& got, const Tensor& to, const std::string& what) {
    EXPECT_LT((got - to).abs().max().item<double>() / scale, 1e-4) << what;
  };

  nn::SequenceState state;
  for (int64_t t = 0; t < length; ++t) {
    expect_close(model_->Step(tokens.select(1, t), t, state), want.select(1, t),
                 "nn step " + std::to_string(t));
  }

  Engine engine(runtime_);
  const size_t n = static_cast<size_t>(batch);
  for (int64_t cut = 0; cut <= length; ++cut) {
    const std::string at = "cut at " + std::to_string(cut);
    State sequences = engine.NewState(n);
    if (cut > 0) {
      const Tensor prefix = tokens.narrow(1, 0, cut).to(torch::kInt32).contiguous();
      const Tensor out = torch::empty({batch, cut, width});
      engine.Prefix(sequences, {prefix.data_ptr<int32_t>(), n * static_cast<size_t>(cut)},
                    static_cast<size_t>(cut),
                    {out.data_ptr<float>(), static_cast<size_t>(out.numel())});
      expect_close(out, want.narrow(1, 0, cut), "prefix, " + at);
    }
    for (int64_t t = cut; t < length; ++t) {
      const Tensor step = tokens.select(1, t).to(torch::kInt32).contiguous();
      const Tensor out = torch::empty({batch, width});
      engine.Step(sequences, {step.data_ptr<int32_t>(), n},
                  {out.data_ptr<float>(), static_cast<size_t>(out.numel())});
      expect_close(out, want.select(1, t), "step " + std::to_string(t) + ", " + at);
    }
  }
}

// Reformer has no recurrent form. So this test compares nn and the runtime on whole sequences only.
TEST(WholeParity, ReformerMatchesTraining) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(7);
  const ModelSpec spec =
      Ragged("images", Activation::kGelu, /*grid=*/true,
             {{.kind = "reformer", .lsh_rounds = 3, .lsh_buckets = 8, .lsh_chunk = 6},
              {.kind = "reformer", .lsh_buckets = 8, .lsh_chunk = 6, .scale = 1.5f}});
  nn::SequenceModel model(spec);
  model->eval();
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("linnet_parity_test." + std::to_string(getpid()) + ".safetensors"))
                               .string();
  nn::SaveModel(path, *model, "");
  Engine engine(Model::Open(path));
  std::filesystem::remove(path);
  const int64_t batch = 3, width = spec.OutputSize();
  for (const int64_t length : {int64_t{1}, int64_t{13}, int64_t{spec.input.max_length}}) {
    const Tensor tokens = torch::randint(spec.input.vocabulary, {batch, length}, torch::kInt32);
    const Tensor want = model->forward(tokens.to(torch::kInt64));
    const Tensor out = torch::empty({batch, length, width});
    engine.Whole(3, {tokens.data_ptr<int32_t>(), static_cast<size_t>(tokens.numel())},
                 static_cast<size_t>(length),
                 {out.data_ptr<float>(), static_cast<size_t>(out.numel())});
    EXPECT_LT((out - want).abs().max().item<double>() / want.abs().max().item<double>(), 1e-4);
  }
}

// The training loss, converted from nats to bits, equals the runtime's bits/dim.
TEST_P(Parity, BitsPerDimEqualsTheTrainingLoss) {
  if (!model_->spec().image()) GTEST_SKIP() << "images only";
  const torch::NoGradGuard no_grad;
  const int64_t bytes = model_->spec().input.max_length + 1;
  const Tensor images = torch::randint(256, {7, bytes}, torch::kInt64);
  const Tensor nats = nn::MixtureOfLogisticsNats(model_->forward(images.narrow(1, 0, bytes - 1)),
                                                 images.narrow(1, 1, bytes - 1));
  const Tensor narrow = images.to(torch::kUInt8).contiguous();
  Engine engine(runtime_);
  const BitsPerDimResult got =
      BitsPerDim(engine, {narrow.data_ptr<uint8_t>(), static_cast<size_t>(narrow.numel())});
  EXPECT_NEAR(got.mean, nats.mean().item<double>() / std::log(2.0), 1e-4);
}

// All causal recurrent mixers, and some tasks, activations, feature maps and patterns of mixers.
std::vector<ParityCase> Cases() {
  std::vector<ParityCase> cases = {
      {"images", Activation::kRelu},
      {"images", Activation::kGelu},
      {"images", Activation::kGelu, true},
      {"couplet", Activation::kGelu},
      {"copy", Activation::kRelu, false, "relu", {{.feature_map = "relu"}}},
      {"images", Activation::kRelu, false, "polynomial2", {{.feature_map = "polynomial2"}}},
      {"copy", Activation::kGelu, false, "scaled", {{.kind = "full", .scale = 0.75f}}},
      {"copy",
       Activation::kGelu,
       false,
       "hybrid",
       {{.kind = "gated-delta-net"},
        {.kind = "full", .window = 6, .rotary = true, .out_bias = false, .key_heads = 1}}},
      {"images",
       Activation::kRelu,
       true,
       "window",
       {{.kind = "full", .window = 17, .qkv_bias = false}}},
      {"couplet",
       Activation::kGelu,
       false,
       "rotary",
       {{.kind = "full", .rotary = true, .rotary_base = 100, .key_heads = 1}}},
      {"images",
       Activation::kGelu,
       true,
       "mixed",
       {{}, {.kind = "full"}, {.feature_map = "favor"}}},
      {"images", Activation::kGelu, false, "patches", {{}}, 3},
      {"images",
       Activation::kRelu,
       true,
       "row_patches",
       {{.kind = "gated-delta-net"}, {.kind = "full"}},
       15}};
  for (const MixerInfo& info : Mixers()) {
    if (info.causal && info.recurrent) {
      cases.push_back({"copy", Activation::kGelu, false, info.name, {{.kind = info.name}}});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.task + "_" + NameOf(info.param.activation) +
                     (info.param.grid ? "_grid" : "") + "_" + info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace linnet::parity
