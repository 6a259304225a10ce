// Depthwise and masked convolution, norms of heads, polynomial features, LSTM and dropout: compares
// fused forms with plain forms.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/depthwise.h"
#include "linnet/ops/dropout.h"
#include "linnet/ops/head_norm.h"
#include "linnet/ops/lstm.h"
#include "linnet/ops/masked_convolution.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/polynomial.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// Compares outputs and gradients of the fused form in fp32 with the plain form (conv1d) in double.
TEST(DepthwiseConvolution, FusedEqualsPlain) {
  torch::manual_seed(1);
  const Tensor some = torch::tensor({int64_t{11}, int64_t{0}, int64_t{5}});
  for (const int64_t width : {1, 7, 15}) {
    for (const bool causal : {false, true}) {
      for (const Tensor& lengths : {Tensor(), some}) {
        const std::vector<Tensor> x = {torch::randn({3, 11, 21}), torch::randn({width, 21}),
                                       torch::randn({21})};
        const Tensor weights = torch::randn({3, 11, 21}, torch::kDouble);
        std::vector<Tensor> results[2];
        for (const bool plain : {false, true}) {
          const torch::Dtype dtype = plain ? torch::kDouble : torch::kFloat32;
          std::vector<Tensor> leaves;
          for (const Tensor& t : x) leaves.push_back(t.to(dtype).clone().requires_grad_());
          const Tensor out = DepthwiseConvolution(leaves[0], leaves[1], leaves[2], lengths, causal);
          results[plain] = torch::autograd::grad({(out * weights.to(dtype)).sum()}, leaves);
          results[plain].push_back(out.detach());
        }
        for (size_t i = 0; i < results[0].size(); ++i) {
          EXPECT_LT(RelativeOff(results[0][i], results[1][i]), 1e-5) << width << causal << i;
        }
      }
    }
  }
}

TEST(MaskedConvolution, FusedEqualsPlain) {
  torch::manual_seed(2);
  const auto check = [](at::IntArrayRef image, int64_t out, int64_t inputs,
                        const MaskedConvolutionOptions& options, bool small) {
    const Operation operation = [&](const Tensors& x) -> Tensors {
      return {MaskedConvolution(x[0], x[1], x[2], options)};
    };
    Check(operation, {torch::randn(image), Weight(out, inputs), torch::randn({out})}, small);
  };
  check({2, 5, 4, 3}, 4, 15 + 9, {.rows = 2, .columns = 5}, true);
  check({2, 5, 4, 3}, 4, 15 + 9, {.rows = 2, .columns = 5, .gelu = true}, true);
  check({1, 9, 7, 16}, 33, 2 * 48 + 16, {.rows = 3, .columns = 3, .gelu = true}, false);
  check({2, 3, 2, 4}, 5, 6 * 9 * 4 + 20, {.rows = 7, .columns = 9}, false);
  check({1, 4, 5, 2}, 3, 2 * 2, {.rows = 3, .columns = 1}, true);
  // The window ends within a pixel, so the gradient of x needs conv2d.
  check({1, 4, 5, 3}, 4, 3 * 3 + 4, {.rows = 2, .columns = 3}, true);
  // Tensors that are not contiguous.
  const Operation turned = [](const Tensors& x) -> Tensors {
    return {MaskedConvolution(x[0].permute({0, 2, 3, 1}), x[1].t(), x[2].select(1, 0),
                              {.rows = 2, .columns = 3, .gelu = true})
                .transpose(1, 2)};
  };
  Check(turned, {torch::randn({2, 3, 4, 5}), Weight(9 + 6, 4), torch::randn({4, 2})}, true);
}

// In bf16, where the processor has its products: near fp32, and equal to it elsewhere and for other
// shapes.
TEST(MaskedConvolution, Bf16) {
  torch::manual_seed(4);
  for (const int64_t channels : {64, 5}) {
    const Tensors x = {torch::randn({2, 4, 6, channels}), Weight(128, 5 * channels),
                       torch::randn({128})};
    Tensors results[2];
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      const Tensors leaves = Leaves(x, torch::kFloat32);
      const Tensor out =
          MaskedConvolution(leaves[0], leaves[1], leaves[2],
                            {.rows = 2, .columns = 3, .gelu = true, .precision = precision});
      Tensors& result = results[precision == Precision::kBf16];
      result = torch::autograd::grad({(out * out).sum()}, leaves);
      result.push_back(out.detach());
    }
    const bool narrow = channels == 64 && kHasFused && HasBf16();
    for (size_t i = 0; i < results[0].size(); ++i) {
      const double size = results[0][i].norm().item<double>();
      const double error = (results[1][i] - results[0][i]).norm().item<double>() / size;
      EXPECT_LT(error, 2e-2) << i;
      EXPECT_EQ(error > 0, narrow) << i;
    }
  }
}

TEST(MaskedConvolution, ThreadsAgree) {
  torch::manual_seed(5);
  const int before = at::get_num_threads();
  const Tensors x = {torch::randn({3, 7, 6, 5}), Weight(13, 25 + 15), torch::randn({13})};
  Tensors results[2];
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    const Tensors leaves = Leaves(x, torch::kFloat32);
    const Tensor out =
        MaskedConvolution(leaves[0], leaves[1], leaves[2], {.rows = 2, .columns = 5, .gelu = true});
    Tensors& result = results[threads == 3];
    result = torch::autograd::grad({out.square().sum()}, leaves);
    result.push_back(out.detach());
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << i;
  }
}

// The input of a first convolution has no gradient, and the window may end within a pixel.
TEST(MaskedConvolution, InputsWithoutGradient) {
  torch::manual_seed(3);
  const Tensor image = torch::randn({2, 5, 4, 3});
  for (const bool gelu : {false, true}) {
    const Operation operation = [&](const Tensors& x) -> Tensors {
      return {MaskedConvolution(image.to(x[0].dtype()), x[0], x[1],
                                {.rows = 2, .columns = 3, .gelu = gelu})};
    };
    ExpectFusedEqualsPlain(operation, {Weight(7, 9 + 5), torch::randn({7})}, 1e-5);
  }
}

TEST(MaskedConvolution, RefusesOtherShapes) {
  const Tensor x = torch::zeros({1, 4, 5, 2}), bias = torch::zeros({3});
  const auto refuses = [&](int64_t inputs, const MaskedConvolutionOptions& options) {
    EXPECT_THROW(MaskedConvolution(x, torch::zeros({3, inputs}), bias, options), Error);
  };
  refuses(11, {.rows = 3, .columns = 3});  // less than the rows above
  refuses(17, {.rows = 3, .columns = 3});  // beyond the pixel
  refuses(12, {.rows = 3, .columns = 2});
  refuses(0, {.rows = 0, .columns = 3});
  EXPECT_THROW(MaskedConvolution(x[0], torch::zeros({3, 12}), bias, {.rows = 3, .columns = 3}),
               Error);
  EXPECT_THROW(MaskedConvolution(x, torch::zeros({4, 12}), bias, {.rows = 3, .columns = 3}), Error);
  EXPECT_THROW(MaskedConvolution(torch::zeros({1, 4, 5, 0}), torch::zeros({3, 0}), bias, {}),
               Error);
  EXPECT_THROW(MaskedConvolution(x.narrow(1, 0, 0), torch::zeros({3, 2}), bias, {}), Error);
  EXPECT_THROW(MaskedConvolution(x, torch::zeros({3, 2}, torch::kDouble), bias, {}), Error);
}

TEST(HeadNorm, FusedEqualsPlain) {
  torch::manual_seed(1);
  const int64_t none = 0;
  for (const auto& [normed, width] : {std::pair{none, int64_t{5}}, {10, 5}, {23, 23}}) {
    const Operation norm = [normed = normed, width = width](const Tensors& x) -> Tensors {
      return {SiluL2Norm(x[0], normed, width, 1e-6)};
    };
    ExpectFusedEqualsPlain(norm, {torch::randn({3, 7, 23}) * 2}, 1e-5);
  }
  for (const auto function : {kernels::GateFunction::kSilu, kernels::GateFunction::kSigmoid}) {
    const Operation gated = [&](const Tensors& x) -> Tensors {
      return {GatedRmsNorm(x[0], x[1], x[2], function, 1e-5)};
    };
    const Tensor x = torch::randn({2, 5, 3, 9}), weight = torch::randn({9});
    ExpectFusedEqualsPlain(gated, {x, weight, torch::randn({2, 5, 3, 9})}, 1e-5);
    // A gate between other columns, and a transposed one.
    const Operation among = [&](const Tensors& t) -> Tensors {
      return {GatedRmsNorm(t[0], t[1], t[2].narrow(2, 4, 27).unflatten(2, {3, 9}), function, 1e-5)};
    };
    ExpectFusedEqualsPlain(among, {x, weight, torch::randn({2, 5, 40})}, 1e-5);
    const Operation turned = [&](const Tensors& t) -> Tensors {
      return {GatedRmsNorm(t[0], t[1], t[2].transpose(1, 2), function, 1e-5)};
    };
    ExpectFusedEqualsPlain(turned, {x, weight, torch::randn({2, 3, 5, 9})}, 1e-5);
    ExpectFusedEqualsPlain(turned, {x.narrow(1, 0, 1), weight, torch::randn({2, 3, 1, 9})}, 1e-5);
  }
  const Operation plain_norm = [](const Tensors& x) -> Tensors {
    return {GatedRmsNorm(x[0], x[1], Tensor(), kernels::GateFunction::kSilu, 1e-5)};
  };
  ExpectFusedEqualsPlain(plain_norm, {torch::randn({2, 5, 3, 9}), torch::randn({9})}, 1e-5);
}

TEST(Polynomial2, FusedEqualsPlain) {
  torch::manual_seed(4);
  for (const int64_t dim : {1, 3, 8, 33}) {
    const Tensors x = {torch::randn({2, 5, 3, dim}, torch::kDouble)};
    const Tensors weights = RandomLike({torch::empty({2, 5, 3, 1 + dim + dim * (dim + 1) / 2})});
    Tensors results[2];
    for (const bool plain : {false, true}) {
      const Tensors leaves = Leaves(x, plain ? torch::kDouble : torch::kFloat32);
      const Tensor phi = Polynomial2(leaves[0]);
      results[plain] = torch::autograd::grad({Loss({phi}, weights)}, leaves);
      results[plain].push_back(phi.detach());
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_LT(RelativeOff(results[0][i], results[1][i]), 1e-6) << dim << " " << i;
    }
  }
  // A view whose rows are not dense, without gradients, and no rows at all.
  const Tensor view = torch::randn({4, 6, 2}).transpose(1, 2);
  EXPECT_TRUE(torch::equal(Polynomial2(view), Polynomial2(view.contiguous())));
  EXPECT_EQ(Polynomial2(torch::empty({0, 3})).sizes(), (std::vector<int64_t>{0, 10}));
  EXPECT_THROW(Polynomial2(torch::empty({2, 0})), Error);
}

TEST(HeadNorm, RefusesOtherShapes) {
  const Tensor x = torch::randn({2, 5, 3, 9}), weight = torch::randn({9});
  const auto silu = kernels::GateFunction::kSilu;
  EXPECT_THROW(SiluL2Norm(x, 8, 3, 1e-6), InputError);
  EXPECT_THROW(SiluL2Norm(x, 12, 3, 1e-6), InputError);
  EXPECT_THROW(GatedRmsNorm(x, torch::randn({8}), x, silu, 1e-5), InputError);
  EXPECT_THROW(GatedRmsNorm(x, weight, x.narrow(1, 0, 4), silu, 1e-5), InputError);
  EXPECT_THROW(GatedRmsNorm(x[0], weight, Tensor(), silu, 1e-5), InputError);
}

TEST(DepthwiseConvolution, PaddingMakesNoNan) {
  Tensor x = torch::randn({2, 6, 4});
  x.select(0, 1).narrow(0, 2, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  x.requires_grad_();
  const Tensor w = torch::randn({3, 4}).requires_grad_(), b = torch::randn({4}).requires_grad_();
  const Tensor lengths = torch::tensor({int64_t{6}, int64_t{2}});
  for (const bool plain : {false, true}) {
    std::optional<PlainGuard> guard;
    if (plain) guard.emplace();
    const Tensor out = DepthwiseConvolution(x, w, b, lengths, false);
    EXPECT_TRUE(out.isfinite().all().item<bool>());
    EXPECT_EQ(out.select(0, 1).narrow(0, 2, 4).abs().sum().item<double>(), 0);
    for (const Tensor& grad : torch::autograd::grad({out.sum()}, {x, w, b})) {
      EXPECT_TRUE(grad.isfinite().all().item<bool>());
    }
  }
}

TEST(DepthwiseConvolution, RefusesInvalidArguments) {
  const Tensor x = torch::randn({2, 6, 4}), b = torch::randn({4});
  EXPECT_THROW(DepthwiseConvolution(x, torch::randn({3, 5}), b, {}, false), Error);
  EXPECT_THROW(DepthwiseConvolution(x, torch::randn({2, 4}), b, {}, false), Error);
  EXPECT_NO_THROW(DepthwiseConvolution(x, torch::randn({2, 4}), b, {}, true));
  EXPECT_THROW(DepthwiseConvolution(x, torch::randn({3, 4}), torch::randn({5}), {}, true), Error);
  EXPECT_THROW(DepthwiseConvolution(x, torch::randn({3, 4}), b, torch::ones({2}), true), Error);
  EXPECT_THROW(DepthwiseConvolution(x[0], torch::randn({3, 4}), b, {}, true), Error);
}

// Compares outputs and gradients of the fused form in fp32 with the plain form in double, for both
// directions.
TEST(Lstm, FusedEqualsPlain) {
  torch::manual_seed(2);
  for (const int64_t length : {1, 9}) {
    for (const bool backward : {false, true}) {
      const std::vector<Tensor> x = {torch::randn({3, length, 5}), torch::randn({28, 5}),
                                     torch::randn({28, 7}), torch::randn({28}), torch::randn({28})};
      const Tensor lengths = torch::tensor({length, int64_t{1}, (length + 1) / 2});
      const Tensor weights = torch::randn({3, length, 7}, torch::kDouble);
      std::vector<Tensor> results[2];
      for (const bool plain : {false, true}) {
        const torch::Dtype dtype = plain ? torch::kDouble : torch::kFloat32;
        std::vector<Tensor> leaves;
        for (const Tensor& t : x) leaves.push_back(t.to(dtype).clone().requires_grad_());
        const Tensor out =
            Lstm(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], lengths, backward);
        results[plain] = torch::autograd::grad({(out * weights.to(dtype)).sum()}, leaves);
        results[plain].push_back(out.detach());
      }
      for (size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_LT(RelativeOff(results[0][i], results[1][i]), 1e-5) << length << backward << i;
      }
    }
  }
}

TEST(Lstm, RefusesInvalidArguments) {
  const Tensor x = torch::randn({2, 4, 5}), w = torch::randn({12, 5}), u = torch::randn({12, 3});
  const Tensor b = torch::randn({12}), lengths = torch::tensor({int64_t{4}, int64_t{2}});
  EXPECT_NO_THROW(Lstm(x, w, u, b, b, lengths, false));
  EXPECT_THROW(Lstm(x[0], w, u, b, b, lengths, false), Error);
  EXPECT_THROW(Lstm(x, u, u, b, b, lengths, false), Error);
  EXPECT_THROW(Lstm(x, w, w, b, b, lengths, false), Error);
  EXPECT_THROW(Lstm(x, w, u, b[0], b, lengths, false), Error);
  EXPECT_THROW(Lstm(x, w, u, b, b, lengths.to(torch::kInt32), false), Error);
}

// The backward uses the forward's mask; the seed comes from libtorch's generator; the number of
// threads changes nothing.
TEST(Dropout, BackwardUsesTheSameMask) {
  const int threads = at::get_num_threads();
  Tensor first;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    torch::manual_seed(4);
    const Tensor x = torch::rand({300, 700}).add(1).requires_grad_();
    const Tensor y = Dropout(x, 0.3);
    EXPECT_NEAR((y == 0).to(torch::kFloat32).mean().item<double>(), 0.3, 0.005);
    const Tensor grad = torch::autograd::grad({(y * 2).sum()}, {x})[0];
    EXPECT_TRUE(torch::equal(grad == 0, y == 0));
    EXPECT_TRUE(torch::allclose(grad.masked_select(grad != 0), torch::full({1}, 2 / 0.7)));
    EXPECT_TRUE(torch::allclose(y, torch::where(y == 0, torch::zeros_like(x), x / 0.7)));
    EXPECT_FALSE(torch::equal(Dropout(x, 0.3), y));
    if (count > 1) {
      EXPECT_TRUE(torch::equal(y, first));
    }
    first = y.detach();
  }
  at::set_num_threads(threads);
  EXPECT_EQ(Dropout(torch::ones({5}), 1).sum().item<double>(), 0);
  EXPECT_TRUE(torch::equal(Dropout(torch::ones({5}), 0), torch::ones({5})));
}

}  // namespace
}  // namespace linnet::ops
