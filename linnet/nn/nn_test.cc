#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/nn/transformer.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

double Off(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

Tensor Attend(const std::string& kind, const Tensor& q, const Tensor& k, const Tensor& v,
              const Mask& mask) {
  AttentionSpec spec;
  spec.kind = kind;
  return MakeAttention(spec)->forward(q, k, v, mask);
}

class EveryKind : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, testing::Values("full", "linear", "causal-linear"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Padding must not leak: what lies behind a sequence's length changes nothing, and has no gradient.
TEST_P(EveryKind, PaddingDoesNotLeak) {
  torch::manual_seed(1);
  Tensor q = torch::randn({2, 9, 3, 4}), k = torch::randn({2, 9, 3, 4});
  Tensor v = torch::randn({2, 9, 3, 5}).requires_grad_();
  k.requires_grad_();
  const Mask mask{.lengths = torch::tensor({int64_t{9}, int64_t{4}})};
  const Tensor out = Attend(GetParam(), q, k, v, mask);
  out.square().sum().backward();
  EXPECT_EQ(k.grad()[1].slice(0, 4).abs().max().item<double>(), 0);
  EXPECT_EQ(v.grad()[1].slice(0, 4).abs().max().item<double>(), 0);
  Tensor other_k = k.detach().clone(), other_v = v.detach().clone();
  other_k[1].slice(0, 4).fill_(7);
  other_v[1].slice(0, 4).fill_(-3);
  EXPECT_EQ(Off(Attend(GetParam(), q, other_k, other_v, mask), out), 0);
}

// A sequence without a single key gives zero, and gradients that are numbers.
TEST_P(EveryKind, NoKeysGiveZero) {
  const Tensor q = torch::randn({1, 3, 2, 4}).requires_grad_();
  const Tensor k = torch::randn({1, 3, 2, 4}), v = torch::randn({1, 3, 2, 4});
  const Tensor out = Attend(GetParam(), q, k, v, Mask{.lengths = torch::zeros({1}, torch::kInt64)});
  EXPECT_EQ(out.abs().max().item<double>(), 0);
  out.sum().backward();
  EXPECT_TRUE(torch::isfinite(q.grad()).all().item<bool>());
}

TEST(Attention, RefusesWhatItCannotDo) {
  const Tensor x = torch::zeros({1, 3, 1, 2}), longer = torch::zeros({1, 4, 1, 2});
  EXPECT_THROW(Attend("linear", x, x, x, Mask{.causal = true}), Error);
  EXPECT_THROW(Attend("causal-linear", x, longer, longer, Mask{}), Error);
  EXPECT_THROW(Attend("nosuch", x, x, x, Mask{}), Error);
  AttentionSpec linear;
  linear.kind = "linear";
  EXPECT_THROW(MakeRecurrentAttention(linear), Error);
  EXPECT_TRUE(BuildTransformer({.attention = linear}).recurrent.is_empty());
}

ModelSpec SmallImages(const std::string& kind) {
  ModelSpec spec;
  spec.attention.kind = kind;
  spec.layers = 2, spec.heads = 3, spec.query_dim = 4, spec.value_dim = 5, spec.d_model = 16;
  spec.d_ff = 24, spec.value_embedding = 10, spec.width = 6, spec.height = 4, spec.max_length = 23;
  return spec;
}

// One network, three uses: the whole sequence, step by step, and a fork half way.
TEST(SequenceModel, BatchEqualsRecurrentAndStatesFork) {
  for (const char* kind : {"causal-linear", "full"}) {
    torch::manual_seed(3);
    SequenceModel model(SmallImages(kind));
    model->eval();
    torch::NoGradGuard no_grad;
    const Tensor tokens = torch::randint(256, {3, 23}, torch::kInt64);
    const Tensor batch = model->forward(tokens);
    SequenceState state, fork;
    for (int64_t t = 0; t < 23; ++t) {
      if (t == 11) fork = state;
      EXPECT_LT(Off(model->Step(tokens.select(1, t), t, state), batch.select(1, t)), 1e-4) << t;
    }
    EXPECT_LT(Off(model->Step(tokens.select(1, 11), 11, fork), batch.select(1, 11)), 1e-4) << kind;
    EXPECT_THROW(model->Step(tokens.select(1, 0), 23, state), Error);
    EXPECT_THROW(model->forward(torch::zeros({1, 24}, torch::kInt64)), Error);
  }
}

TEST(SequenceModel, SeesNothingOfTheFuture) {
  for (const char* kind : {"causal-linear", "full"}) {
    SequenceModel model(SmallImages(kind));
    const Tensor tokens = torch::randint(256, {1, 23}, torch::kInt64);
    const Tensor before = model->forward(tokens).slice(1, 0, 12);
    tokens.slice(1, 12).fill_(0);
    EXPECT_EQ(Off(model->forward(tokens).slice(1, 0, 12), before), 0) << kind;
  }
}

TEST(SequenceModel, SavesAndLoads) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("linnet_nn_test." + std::to_string(getpid()) + ".safetensors"))
                               .string();
  SequenceModel model(SmallImages("causal-linear"));
  {
    torch::NoGradGuard no_grad;
    model->first_value.copy_(torch::softmax(torch::randn({256}), 0));
  }
  SaveModel(path, *model, "{}");
  SequenceModel loaded = LoadModel(path);
  std::filesystem::remove(path);
  const auto want = ModelTensors(*model), got = ModelTensors(*loaded);
  EXPECT_EQ(want.size(), TensorTable(model->spec()).size());
  for (const TensorInfo& info : TensorTable(model->spec())) {
    EXPECT_EQ(Off(got.at(info.name), want.at(info.name)), 0) << info.name;
  }
}

TEST(SequenceModel, DropoutActsInTrainingOnly) {
  SequenceModel model(SmallImages("causal-linear"), TrainingOptions{.dropout = 0.5});
  const Tensor tokens = torch::randint(256, {1, 23}, torch::kInt64);
  EXPECT_GT(Off(model->forward(tokens), model->forward(tokens)), 0);
  model->eval();
  EXPECT_EQ(Off(model->forward(tokens), model->forward(tokens)), 0);
}

// A density over 256 bytes sums to one, also where the components are narrow or far outside.
TEST(MixtureOfLogistics, IsADistribution) {
  torch::manual_seed(4);
  const Tensor logits =
      torch::randn({50, 30}) * torch::tensor({1.0, 1.0, 3.0}).repeat_interleave(10);
  const Tensor nats = MixtureOfLogisticsNats(logits.unsqueeze(1).expand({50, 256, 30}),
                                             torch::arange(256).expand({50, 256}));
  EXPECT_LT(Off((-nats).exp().sum(1), torch::ones({50})), 1e-4);
}

TEST(MaskedCrossEntropy, CountsOnlyTheMask) {
  const Tensor logits = torch::randn({2, 4, 5}), targets = torch::randint(5, {2, 4}, torch::kInt64);
  Tensor mask = torch::zeros({2, 4});
  mask[0][1] = mask[1][3] = 1;
  const Tensor want = -(torch::log_softmax(logits[0][1], 0)[targets[0][1]] +
                        torch::log_softmax(logits[1][3], 0)[targets[1][3]]) /
                      2;
  EXPECT_LT(Off(MaskedCrossEntropy(logits, targets, mask), want), 1e-5);
}

TEST(Optimizer, RefusesUnknownNames) {
  EXPECT_THROW(Optimizer({.name = "sgd"}, {}), Error);
  EXPECT_THROW(Optimizer({.rectify_from = 3}, {}), Error);
}

}  // namespace
}  // namespace linnet::nn
