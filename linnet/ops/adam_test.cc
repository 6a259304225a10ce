// Adam updates: compares the fused form with the plain form, and FlatAdam with separate tensors.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "linnet/ops/adam.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// Several steps over tensors of several sizes, one of them without a gradient.
TEST(Adam, FusedEqualsPlain) {
  torch::manual_seed(9);
  const std::vector<int64_t> sizes = {3, 70000, 131072, 5};
  Tensors parameters[2], first[2], second[2];
  for (const int64_t size : sizes) {
    const Tensor p = Random({size});
    for (const int plain : {0, 1}) {
      parameters[plain].push_back(p.clone().requires_grad_());
      first[plain].push_back(torch::zeros({size}));
      second[plain].push_back(torch::zeros({size}));
    }
  }
  torch::NoGradGuard no_grad;
  for (int step = 0; step < 4; ++step) {
    Tensors gradients;
    for (const int64_t size : sizes) gradients.push_back(Random({size}));
    std::vector<double> norms[2];
    for (const int plain : {0, 1}) {
      for (size_t i = 0; i + 1 < sizes.size(); ++i) {
        parameters[plain][i].mutable_grad() = gradients[i].clone();
      }
      const auto run = [&] {
        norms[plain] = GradientNorms(parameters[plain]);
        AdamUpdate(parameters[plain], first[plain], second[plain], {1, 0.5, 0.25, 1},
                   {.decay = 0.99f, .step = 0.1f, .root_scale = 1.1f, .adaptive = step > 0});
      };
      if (plain != 0) {
        PlainGuard guard;
        run();
      } else {
        run();
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_NEAR(norms[0][i], norms[1][i], 1e-4 * (1 + norms[1][i]));
      EXPECT_LT((parameters[0][i] - parameters[1][i]).abs().max().item<double>(), 1e-5);
      EXPECT_FALSE(parameters[0][i].grad().defined());
    }
  }
}

// Several steps with clipping; in every other step one tensor has no gradient.
TEST(Adam, FlatEqualsSeparate) {
  torch::manual_seed(10);
  const std::vector<std::vector<int64_t>> shapes = {{3}, {70, 11}, {5, 2, 4}, {}};
  Tensors parameters[2], first, second;
  for (const std::vector<int64_t>& shape : shapes) {
    const Tensor p = Random(shape);
    for (Tensors& list : parameters) list.push_back(p.clone().requires_grad_());
    first.push_back(torch::zeros(shape));
    second.push_back(torch::zeros(shape));
  }
  FlatAdam flat(parameters[1]);
  torch::NoGradGuard no_grad;
  for (int step = 0; step < 6; ++step) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (i == 1 && step % 2 == 1) continue;
      const Tensor gradient = Random(shapes[i]);
      for (Tensors& list : parameters) list[i].mutable_grad() = gradient.clone();
    }
    constexpr double kClip = 2;
    const kernels::AdamStep now = {
        .decay = 0.99f, .step = 0.1f, .root_scale = step < 3 ? 1.1f : 1, .adaptive = step > 0};
    std::vector<double> scales = GradientNorms(parameters[0]);
    for (double& norm : scales) norm = norm > kClip ? kClip / (norm + 1e-6) : 1;
    AdamUpdate(parameters[0], first, second, scales, now);
    flat.Update(now, kClip);
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_FALSE(parameters[1][i].grad().defined());
      EXPECT_LT(RelativeOff(parameters[1][i], parameters[0][i].to(torch::kDouble)), 1e-5) << i;
      EXPECT_LT(RelativeOff(flat.first_moments()[i], first[i].to(torch::kDouble)), 1e-5) << i;
      EXPECT_LT(RelativeOff(flat.second_moments()[i], second[i].to(torch::kDouble)), 1e-5) << i;
    }
  }
}

TEST(Adam, FlatSkipsUpdatesWithNonFiniteGradients) {
  torch::manual_seed(11);
  const Tensors parameters = {Random({40}).requires_grad_(), Random({7}).requires_grad_()};
  FlatAdam flat(parameters);
  torch::NoGradGuard no_grad;
  const auto update = [&](double last) {
    for (const Tensor& p : parameters) p.mutable_grad() = torch::ones_like(p);
    parameters[1].mutable_grad()[6] = last;
    flat.Update({.decay = 0.99f, .step = 0.1f}, /*clip=*/1);
  };
  update(1);
  EXPECT_TRUE(flat.Finite());
  Tensors before;
  const auto all = [&] {
    Tensors tensors = parameters;
    for (const Tensors& list : {flat.first_moments(), flat.second_moments()}) {
      tensors.insert(tensors.end(), list.begin(), list.end());
    }
    return tensors;
  };
  for (const Tensor& x : all()) before.push_back(x.clone());
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    update(bad);
    EXPECT_FALSE(flat.Finite());
    const Tensors after = all();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
  }
  update(1);
  EXPECT_FALSE(flat.Finite());
}

}  // namespace
}  // namespace linnet::ops
