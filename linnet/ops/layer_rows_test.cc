// The products, norms and feed-forward blocks of a layer: compares fused forms with plain forms,
// plain forms with finite differences, and bf16 with fp32.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cstdint>

#include "linnet/error.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using kernels::Activation;
using torch::Tensor;

struct Sizes {
  int64_t batch, length, dim, hidden;
};
// Small sizes; sizes that are not multiples of the vector width; sizes with several blocks of rows;
// rows that are a multiple of 512 bytes, which MatMulStride() spreads with AVX2.
const Sizes kSizes[] = {
    {1, 3, 4, 6}, {2, 37, 33, 70}, {3, 700, 24, 40}, {2, 37, 128, 256}, {1, 40, 256, 130}};

TEST(Linears, FusedEqualsPlain) {
  torch::manual_seed(1);
  for (const Sizes& s : kSizes) {
    for (const bool normed : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        const Norm norm = normed ? Norm{t[7], t[8]} : Norm{};
        return Linears(t[0], {t[1], t[3], t[5]}, {t[2], t[4], t[6]}, Precision::kFp32, norm);
      };
      Tensors x = {Random({s.batch, s.length, s.dim})};
      for (const int64_t out : {s.hidden, int64_t{1}, s.dim}) {
        x.insert(x.end(), {Weight(out, s.dim), Random({out})});
      }
      if (normed) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
      Check(operation, x, s.dim < 10);
    }
  }
}

TEST(Project, FusedEqualsPlain) {
  torch::manual_seed(2);
  for (const Sizes& s : kSizes) {
    for (const bool normed : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        const Norm norm = normed ? Norm{t[4], t[5]} : Norm{};
        return Tensors{Project(t[0], t[1], t[2], t[3], norm, Precision::kFp32)};
      };
      Tensors x = {Random({s.batch, s.length, s.hidden}), Weight(s.dim, s.hidden), Random({s.dim}),
                   Random({s.batch, s.length, s.dim})};
      if (normed) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
      Check(operation, x, s.dim < 10);
    }
  }
}

Tensors FeedForwardInputs(const Sizes& s, int norms) {
  Tensors x = {Random({s.batch, s.length, s.dim}), Weight(s.hidden, s.dim), Random({s.hidden}),
               Weight(s.dim, s.hidden), Random({s.dim})};
  for (int i = 0; i < norms; ++i) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
  return x;
}

Operation FeedForwardOperation(bool before, bool after, Activation activation,
                               Precision precision) {
  return [=](const Tensors& t) {
    FeedForwardOptions options{.activation = activation, .precision = precision};
    size_t at = 5;
    if (before) options.norm_before = {t[at], t[at + 1]}, at += 2;
    if (after) options.norm_after = {t[at], t[at + 1]};
    return Tensors{FeedForward(t[0], t[1], t[2], t[3], t[4], options)};
  };
}

TEST(FeedForward, FusedEqualsPlain) {
  torch::manual_seed(3);
  for (const Sizes& s : kSizes) {
    for (const int norms : {0, 1, 2, 3}) {
      const bool before = norms & 1, after = norms & 2;
      for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
        Check(FeedForwardOperation(before, after, activation, Precision::kFp32),
              FeedForwardInputs(s, before + after), s.dim < 10);
      }
    }
  }
}

// Each thread sums its own gradients. The storage of the returned gradients must contain only the
// total, not the sums of all threads.
TEST(FeedForward, ThreadsAgreeAndTheirMemoryIsFreed) {
  torch::manual_seed(13);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const Sizes s{8, 1024, 64, 128};
  const Operation operation =
      FeedForwardOperation(false, true, Activation::kGelu, Precision::kFp32);
  ExpectFusedEqualsPlain(operation, FeedForwardInputs(s, 1), 1e-5);
  Tensors inputs = FeedForwardInputs(s, 1);
  int64_t parameters = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = inputs[i].detach().requires_grad_();
    if (i > 0) parameters += inputs[i].numel();
  }
  operation(inputs)[0].sum().backward();
  EXPECT_LE(inputs[1].grad().storage().nbytes(), static_cast<size_t>(parameters) * sizeof(float));
  at::set_num_threads(before);
}

// In bf16, the fused and the plain form round the same numbers, except for gradients in the
// backward.
TEST(FeedForward, Bf16FusedIsNearPlain) {
  if (!HasBf16()) GTEST_SKIP() << "this processor has no products in bf16";
  torch::manual_seed(4);
  const Sizes s = kSizes[1];
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    ExpectFusedEqualsPlain(FeedForwardOperation(true, true, activation, Precision::kBf16),
                           FeedForwardInputs(s, 2), 0.02);
  }
}

// Compares the plain form on fp32 tensors with the plain form on double tensors. The latter rounds
// fewer gradients.
TEST(FeedForward, PlainBf16IsNearPlainInDouble) {
  torch::manual_seed(14);
  const PlainGuard plain;
  const Sizes s = kSizes[1];
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    ExpectFusedEqualsPlain(FeedForwardOperation(true, true, activation, Precision::kBf16),
                           FeedForwardInputs(s, 2), 0.03);
  }
}

// Compares the plain form of one to three products of one x with products of the rounded operands
// in double.
TEST(Linears, PlainBf16RoundsTheOperandsOnly) {
  torch::manual_seed(6);
  const PlainGuard plain;
  for (const int products : {1, 2, 3}) {
    Tensors x = {Random({2, 9, 24}).requires_grad_()}, grads, weights, biases;
    for (int i = 0; i < products; ++i) {
      weights.push_back(Weight(5 + i, 24).requires_grad_());
      biases.push_back(Random({5 + i}).requires_grad_());
      grads.push_back(Random({2, 9, 5 + i}));
    }
    const auto rounded = [](const Tensor& t) {
      return t.detach().to(torch::kBFloat16).to(torch::kDouble);
    };
    const Tensors y = Linears(x[0], weights, biases, Precision::kBf16);
    Tensors leaves = x;
    leaves.insert(leaves.end(), weights.begin(), weights.end());
    leaves.insert(leaves.end(), biases.begin(), biases.end());
    const auto got = torch::autograd::grad({y.begin(), y.end()}, leaves, grads);
    Tensor grad_x = torch::zeros({18, 24}, torch::kDouble);
    const Tensor rows = rounded(x[0]).flatten(0, 1);
    for (int i = 0; i < products; ++i) {
      const Tensor weight = rounded(weights[i]), grad = rounded(grads[i]).flatten(0, 1);
      const Tensor out = torch::matmul(rows, weight.t()) + biases[i].detach().to(torch::kDouble);
      EXPECT_LT(RelativeOff(y[i].flatten(0, 1), out), 1e-5);
      EXPECT_LT(RelativeOff(got[1 + i], torch::matmul(grad.t(), rows)), 1e-5);
      EXPECT_LT(
          RelativeOff(got[1 + products + i], grads[i].to(torch::kDouble).flatten(0, 1).sum(0)),
          1e-5);
      grad_x += torch::matmul(grad, weight);
    }
    EXPECT_LT(RelativeOff(got[0].flatten(0, 1), grad_x), 1e-5);
  }
}

// The products before and after an attention, in their plain form: compares bf16 with fp32.
TEST(Linears, PlainNarrowIsNearFp32) {
  torch::manual_seed(7);
  const PlainGuard plain;
  const Tensors x = {Random({2, 9, 24}), Weight(8, 24), Random({8}),  Weight(16, 24), Random({16}),
                     Weight(24, 24),     Random({24}),  Random({24}), Random({24})};
  for (const bool normed : {false, true}) {
    const auto run = [&](bool narrow) {
      const Tensors t = Leaves(x, torch::kFloat32);
      Tensors y = narrow ? NarrowLinears(t[0], {t[1], t[3]}, {t[2], t[4]})
                         : Linears(t[0], {t[1], t[3]}, {t[2], t[4]}, Precision::kFp32);
      EXPECT_EQ(y[1].scalar_type(), narrow ? torch::kBFloat16 : torch::kFloat32);
      const Norm norm = normed ? Norm{t[7], t[8]} : Norm{};
      const Tensor out = Project(torch::cat(y, 2), t[5], t[6], t[0], norm,
                                 narrow ? Precision::kBf16 : Precision::kFp32);
      EXPECT_EQ(out.scalar_type(), torch::kFloat32);
      Tensors all = {out.detach()};
      const Tensors leaves(t.begin(), t.begin() + (normed ? 9 : 7));
      const Tensor weight = torch::arange(out.numel(), torch::kFloat32).cos().view(out.sizes());
      for (const Tensor& grad : torch::autograd::grad({(out * weight).sum()}, leaves)) {
        all.push_back(grad);
      }
      return all;
    };
    const Tensors want = run(false), got = run(true);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), torch::kFloat32);
      EXPECT_LT(RelativeOff(got[i], want[i].to(torch::kDouble)), 0.03) << i << " " << normed;
    }
  }
}

// bf16 results must be near fp32 results but differ from them, which shows that bf16 was used.
TEST(Linears, Bf16IsNearFp32) {
  EXPECT_THROW(PrecisionNamed("fp8"), Error);
  EXPECT_EQ(PrecisionNamed("f32"), Precision::kFp32);
  if (!HasBf16()) GTEST_SKIP() << "this processor has no products in bf16";
  torch::manual_seed(5);
  const Tensors x = {Random({3, 17, 24}), Weight(13, 24), Random({13})};
  const auto run = [&](Precision precision) {
    const Tensors leaves = Leaves(x, torch::kFloat32);
    const Tensor y = Linear(leaves[0], leaves[1], leaves[2], precision);
    Tensors all = {y.detach()};
    for (const Tensor& grad : torch::autograd::grad({y.square().sum()}, leaves)) {
      EXPECT_EQ(grad.scalar_type(), torch::kFloat32);
      all.push_back(grad);
    }
    return all;
  };
  const Tensors fp32 = run(Precision::kFp32), bf16 = run(Precision::kBf16);
  for (size_t i = 0; i < fp32.size(); ++i) {
    const double off = RelativeOff(bf16[i], fp32[i].to(torch::kDouble));
    EXPECT_LT(off, 0.02) << i;
    EXPECT_GT(off, 0) << i;
  }
}

TEST(PlainGuard, MakesOperationsPlain) {
  torch::manual_seed(8);
  const Tensor x = Random({4, 8}), weight = Weight(3, 8), bias = Random({3});
  EXPECT_TRUE(Fused(x));
  {
    PlainGuard plain;
    EXPECT_FALSE(Fused(x));
    EXPECT_TRUE(
        torch::equal(Linear(x, weight, bias, Precision::kFp32), at::linear(x, weight, bias)));
  }
  EXPECT_TRUE(Fused(x));
}

TEST(LayerRows, RefuseInvalidArguments) {
  const Tensor x = Random({4, 8}), weight = Weight(3, 8), bias = Random({3});
  EXPECT_THROW(Linear(Random({4, 7}), weight, bias, Precision::kFp32), Error);
  EXPECT_THROW(Linear(x, weight, Random({4}), Precision::kFp32), Error);
  EXPECT_THROW(Project(x, weight, bias, Random({4, 4}), {}, Precision::kFp32), Error);
  EXPECT_THROW(FeedForward(x, weight, bias, Weight(8, 4), Random({8}), {}), Error);
}

// A kernel would read past the end of a weight whose type is smaller than fp32.
TEST(LayerRows, RefuseParametersOfAnotherTypeOrDevice) {
  const Tensor x = Random({4, 8}), weight = Weight(3, 8), bias = Random({3});
  const Tensor residual = Random({4, 3}), second = Weight(8, 3), second_bias = Random({8});
  const auto refuses = [&](const auto& other, Precision precision) {
    const auto linear = [&](const Tensor& w, const Tensor& b) { Linear(x, w, b, precision); };
    EXPECT_THROW(linear(other(weight), bias), Error);
    EXPECT_THROW(linear(weight, other(bias)), Error);
    EXPECT_THROW(Project(x, other(weight), bias, residual, {}, precision), Error);
    const auto block = [&](const Tensor& w1, const Tensor& w2, const Tensor& b2) {
      FeedForward(x, w1, bias, w2, b2, {.precision = precision});
    };
    EXPECT_THROW(block(other(weight), second, second_bias), Error);
    EXPECT_THROW(block(weight, other(second), second_bias), Error);
    EXPECT_THROW(block(weight, second, other(second_bias)), Error);
  };
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kDouble}) {
    refuses([&](const Tensor& t) { return t.to(type); }, Precision::kFp32);
  }
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    refuses([](const Tensor& t) { return t.to(torch::kMeta); }, precision);
  }
}

}  // namespace
}  // namespace linnet::ops
