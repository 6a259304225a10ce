// Cross entropy, CTC and the mixture of logistics: compares fused forms with plain forms, and plain
// forms with finite differences.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/kernels/pixel_logistics.h"
#include "linnet/ops/cross_entropy.h"
#include "linnet/ops/ctc.h"
#include "linnet/ops/mixture_of_logistics.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

TEST(CrossEntropy, FusedEqualsPlain) {
  torch::manual_seed(6);
  for (const int64_t classes : {1, 2, 11, 257, 8003}) {
    const Tensor targets = torch::randint(classes, {33}, torch::kInt64);
    const Operation operation = [&](const Tensors& t) {
      return Tensors{CrossEntropyNats(t[0], targets)};
    };
    ExpectFusedEqualsPlain(operation, {Random({33, classes}) * 4}, 1e-5);
  }
  const Tensor targets = torch::tensor({int64_t{0}, int64_t{4}, int64_t{2}});
  ExpectGradientsMatchDifferences(
      [&](const Tensors& t) { return Tensors{CrossEntropyNats(t[0], targets)}; }, {Random({3, 5})});
}

TEST(CrossEntropy, LargeAndInfiniteLogits) {
  const Tensor logits = torch::tensor({1e30F, 1e30F, -1e30F, 80.0F, 90.0F, -INFINITY}).view({2, 3});
  const Tensor nats = CrossEntropyNats(logits, torch::tensor({int64_t{1}, int64_t{0}}));
  EXPECT_NEAR(nats[0].item<double>(), std::log(2.0), 1e-6);
  EXPECT_NEAR(nats[1].item<double>(), 10 + std::log1p(std::exp(-10.0)), 1e-5);
  const Tensor leaf = logits.clone().requires_grad_();
  CrossEntropyNats(leaf, torch::tensor({int64_t{1}, int64_t{0}})).sum().backward();
  const double e = std::exp(-10.0) / (1 + std::exp(-10.0));
  const Tensor want = torch::tensor({0.5, -0.5, 0.0, e - 1, 1 - e, 0.0}).view({2, 3});
  EXPECT_LT((leaf.grad() - want).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(CrossEntropyNats(torch::zeros({0, 3}), torch::zeros({0}, torch::kInt64)).numel(), 0);
}

TEST(CrossEntropy, RefusesInvalidArguments) {
  const auto refuses = [](const Tensor& logits, const Tensor& targets, const std::string& what) {
    try {
      CrossEntropyNats(logits, targets);
      ADD_FAILURE() << "no error about " << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refuses(torch::zeros({2, 3}), torch::zeros({3}, torch::kInt64), "[R, C]");
  refuses(torch::zeros({2, 3}), torch::zeros({2}), "int64");
  refuses(torch::zeros({2, 3}), torch::tensor({int64_t{0}, int64_t{3}}), "target 3");
  refuses(torch::zeros({2, 3}), torch::tensor({int64_t{-1}, int64_t{0}}), "target -1");
}

TEST(Ctc, FusedEqualsPlain) {
  torch::manual_seed(8);
  for (const int64_t classes : {3, 34}) {
    const Tensor targets = torch::randint(1, classes, {4, 40}, torch::kInt64);
    const auto of = [](std::vector<int64_t> values) { return torch::tensor(values); };
    // The third target has too few frames, and the last target is empty.
    const Tensor frames = of({130, 99, 20, 50}), tokens = of({40, 17, 40, 0});
    const Operation operation = [&](const Tensors& t) {
      const Tensor nats = CtcNats(torch::log_softmax(t[0], 2), targets, frames, tokens);
      return Tensors{torch::where(nats.isinf(), torch::zeros_like(nats), nats)};
    };
    ExpectFusedEqualsPlain(operation, {Random({4, 131, classes}) * 2}, 1e-4);
    // The loss is infinite for the third target, which has too few frames, and for the first, which
    // contains a class of probability 0.
    Tensor p = torch::log_softmax(Random({4, 131, classes}), 2);
    p[0].select(1, targets[0][5].item<int64_t>()).fill_(-INFINITY);
    for (const torch::Dtype type : {torch::kFloat32, torch::kFloat64}) {
      const Tensor nats = CtcNats(p.to(type), targets, frames, tokens);
      EXPECT_TRUE(torch::equal(nats.isinf(), torch::tensor({true, false, true, false}))) << nats;
    }
  }
}

TEST(MixtureOfLogistics, FusedEqualsPlain) {
  torch::manual_seed(7);
  const Tensor bytes = torch::randint(256, {3, 70}, torch::kInt64);
  const Operation operation = [&](const Tensors& t) {
    return Tensors{MixtureOfLogisticsNats(t[0], bytes)};
  };
  ExpectFusedEqualsPlain(operation, {Random({3, 70, 30})}, 1e-5);
  // Bytes far in the tails of narrow components, and one very wide component.
  const Tensor far = torch::tensor({{-2.0, -6.9}, {3.0, -6.9}, {1.0, -9.0}, {0.1, 70.0}});
  const Tensor byte = torch::tensor({int64_t{200}, int64_t{3}, int64_t{0}, int64_t{17}});
  ExpectFusedEqualsPlain(
      [&](const Tensors& t) {
        const Tensor logits = torch::cat({torch::zeros_like(t[0].narrow(1, 0, 1)), t[0]}, 1);
        return Tensors{MixtureOfLogisticsNats(logits, byte)};
      },
      {far}, 1e-5);
  const Tensor two = torch::tensor({int64_t{0}, int64_t{100}, int64_t{255}});
  ExpectGradientsMatchDifferences(
      [&](const Tensors& t) { return Tensors{MixtureOfLogisticsNats(t[0], two)}; },
      {Random({3, 6})});
}

TEST(PixelLogistics, FusedEqualsPlain) {
  torch::manual_seed(9);
  const int64_t mixtures = 4, pixels = 12;
  Tensor bytes = torch::randint(256, {pixels, 3}, torch::kInt64);
  bytes[0].fill_(0), bytes[1].fill_(255);
  const Tensor logits = Random({pixels, 10 * mixtures});
  const Tensor nats = PixelLogisticsNats(logits, bytes).to(torch::kFloat64);
  const Tensor floats = logits.to(torch::kFloat32).contiguous();
  for (int64_t i = 0; i < pixels; ++i) {
    uint8_t rgb[3];
    float want[3];
    for (int color = 0; color < 3; ++color) rgb[color] = bytes[i][color].item<uint8_t>();
    kernels::PixelNats(mixtures, floats[i].data_ptr<float>(), rgb, want);
    EXPECT_NEAR(nats[i].item<double>(), want[0] + want[1] + want[2], 1e-4);
  }
  ExpectFusedEqualsPlain(
      [&](const Tensors& t) {
        return Tensors{PixelLogisticsNats(t[0], bytes.view({3, 4, 3}))};
      },
      {logits.view({3, 4, 40})}, 1e-5);
  ExpectGradientsMatchDifferences(
      [&](const Tensors& t) { return Tensors{PixelLogisticsNats(t[0], bytes.narrow(0, 0, 3))}; },
      {Random({3, 20})});
  EXPECT_THROW(PixelLogisticsNats(logits, bytes.narrow(1, 0, 2)), Error);
  EXPECT_THROW(PixelLogisticsNats(logits.narrow(1, 0, 39), bytes), Error);
}

// Autograd does not record how a kernel computes gradients, so second derivatives throw.
TEST(Losses, FusedRefuseSecondDerivatives) {
  torch::manual_seed(25);
  const Tensor targets = torch::randint(5, {3}, torch::kInt64);
  const auto second = [&] {
    const Tensor logits = Random({3, 5}).requires_grad_();
    const Tensor loss = CrossEntropyNats(logits, targets).sum();
    const auto first =
        torch::autograd::grad({loss}, {logits}, {}, c10::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {logits})[0];
  };
  EXPECT_THROW(second(), Error);
  PlainGuard plain;
  EXPECT_GT(second().abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace linnet::ops
