// Linear, softmax and LSH attention: compares fused forms with plain forms, and tests strides,
// masks and numbers of threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "linnet/error.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/linear_attention.h"
#include "linnet/ops/lsh_attention.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/softmax_attention.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

TEST(LinearAttention, FusedEqualsPlain) {
  torch::manual_seed(21);
  struct Case {
    int64_t n, l, s, h, d, m;
  };
  for (const Case& c : {Case{1, 5, 4, 2, 3, 2}, Case{2, 4, 7, 1, 2, 3}, Case{2, 70, 201, 2, 16, 33},
                        Case{2, 130, 65, 3, 33, 8}}) {
    for (const bool normalize : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          const Tensor lengths =
              padded ? torch::tensor({int64_t{3}, c.s}).slice(0, 0, c.n) : Tensor();
          return Tensors{LinearAttention(t[0], t[1], t[2], lengths,
                                         {kernels::FeatureMap::kElu, normalize, 1e-6f})};
        };
        Check(operation,
              {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.s, c.h, c.d}),
               Random({c.n, c.s, c.h, c.m})},
              c.l < 10);
      }
    }
  }
}

TEST(LinearAttention, TakesAnyStrides) {
  torch::manual_seed(22);
  const Operation operation = [](const Tensors& t) {
    // q has heads before positions, k has features first, v is a slice of a wider tensor.
    return Tensors{
        LinearAttention(t[0].transpose(1, 2), t[1].permute({1, 2, 3, 0}), t[2].slice(3, 1, 6))};
  };
  Check(operation, {Random({2, 3, 6, 4}), Random({4, 2, 5, 3}), Random({2, 5, 3, 7})}, true);
}

TEST(LinearAttention, RefusesInvalidArguments) {
  const Tensor q = Random({2, 5, 3, 4}), k = Random({2, 6, 3, 4}), v = Random({2, 6, 3, 7});
  EXPECT_THROW(LinearAttention(q, k, v.narrow(1, 0, 5)), Error);
  EXPECT_THROW(LinearAttention(q, k.narrow(3, 0, 3), v), Error);
  EXPECT_THROW(LinearAttention(q[0], k[0], v[0]), Error);
  EXPECT_THROW(LinearAttention(q, k.narrow(1, 0, 0), v.narrow(1, 0, 0)), Error);
  EXPECT_THROW(LinearAttention(q, k.to(torch::kDouble), v), Error);
  EXPECT_THROW(LinearAttention(q, k.to(torch::kMeta), v), Error);  // another device
  EXPECT_THROW(LinearAttention(q, k, v.to(torch::kMeta)), Error);
  EXPECT_THROW(LinearAttention(q, k, v, torch::tensor({3, 4}, torch::kInt32)), Error);
  EXPECT_THROW(LinearAttention(q, k, v, torch::tensor({int64_t{3}})), Error);
  const Tensor lengths = torch::tensor({int64_t{3}, int64_t{4}});
  EXPECT_THROW(LinearAttention(q, k, v, lengths.to(torch::kMeta)), Error);
  EXPECT_NO_THROW(LinearAttention(q, k, v, lengths));
}

// The bf16 kernels read and write bf16 and add in fp32, so they match fp32 up to bf16 rounding.
TEST(Attention, TakesBf16) {
  torch::manual_seed(23);
  const Tensors x = {Random({2, 300, 3, 16}), Random({2, 300, 3, 16}), Random({2, 300, 3, 8})};
  const Tensor weights = Random({2, 300, 3, 8});
  for (const bool causal : {false, true}) {
    const auto run = [&](torch::Dtype dtype) {
      const Tensors leaves = Leaves(x, dtype);
      const Tensor out = causal ? CausalLinearAttention(leaves[0], leaves[1], leaves[2])
                                : LinearAttention(leaves[0], leaves[1], leaves[2]);
      EXPECT_EQ(out.scalar_type(), dtype);
      Tensors all = torch::autograd::grad({(out * weights.to(dtype)).sum()}, leaves);
      all.push_back(out);
      return all;
    };
    const Tensors half = run(torch::kBFloat16), full = run(torch::kFloat32);
    for (size_t i = 0; i < half.size(); ++i) {
      EXPECT_LT(RelativeOff(half[i].to(torch::kFloat32), full[i]), 0.02) << causal << " " << i;
    }
  }
}

// Autograd does not record how a kernel computes gradients, so second derivatives throw.
TEST(Attention, FusedRefusesSecondDerivatives) {
  torch::manual_seed(24);
  const Tensors x = {Random({1, 5, 1, 4}), Random({1, 5, 1, 4}), Random({1, 5, 1, 3})};
  using Attention = Tensor (*)(const Tensors&);
  for (const Attention attention : {
           Attention([](const Tensors& t) { return CausalLinearAttention(t[0], t[1], t[2]); }),
           Attention([](const Tensors& t) { return LinearAttention(t[0], t[1], t[2]); }),
           Attention([](const Tensors& t) { return SoftmaxAttention(t[0], t[1], t[2]); }),
       }) {
    const auto second = [&] {
      const Tensors leaves = Leaves(x, torch::kFloat32);
      const Tensors first = torch::autograd::grad({attention(leaves).square().sum()}, {leaves[0]},
                                                  {}, c10::nullopt, /*create_graph=*/true);
      return torch::autograd::grad({first[0].square().sum()}, {leaves[1]})[0];
    };
    EXPECT_THROW(second(), Error);
    PlainGuard plain;
    EXPECT_GT(second().abs().max().item<double>(), 0);
  }
}

TEST(SoftmaxAttention, FusedEqualsPlain) {
  torch::manual_seed(15);
  struct Case {
    int64_t n, l, s, h, d, m;
  };
  for (const Case& c : {Case{1, 5, 5, 2, 3, 2}, Case{2, 4, 7, 1, 2, 3}, Case{2, 70, 201, 2, 16, 33},
                        Case{2, 230, 230, 3, 33, 8}}) {
    for (const bool causal : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          SoftmaxAttentionOptions options{.causal = causal, .offset = c.s - c.l};
          if (padded) options.lengths = torch::tensor({int64_t{3}, c.s}).slice(0, 0, c.n);
          return Tensors{SoftmaxAttention(t[0], t[1], t[2], options)};
        };
        Check(operation,
              {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.s, c.h, c.d}),
               Random({c.n, c.s, c.h, c.m})},
              c.l < 10);
      }
    }
  }
}

TEST(SoftmaxAttention, FusedWindowsAndSharedHeadsEqualPlainOnes) {
  torch::manual_seed(17);
  struct Case {
    int64_t n, l, s, heads, shared, window;
  };
  for (const Case& c : {Case{1, 5, 5, 4, 2, 2}, Case{2, 4, 7, 3, 1, 1}, Case{2, 70, 201, 2, 2, 90},
                        Case{2, 230, 230, 6, 2, 40}, Case{1, 230, 230, 2, 1, 0}}) {
    for (const bool padded : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        SoftmaxAttentionOptions options{
            .causal = true, .offset = c.s - c.l, .window = c.window, .scale = 0.5};
        if (padded) options.lengths = torch::tensor({int64_t{3}, c.s}).slice(0, 0, c.n);
        return Tensors{SoftmaxAttention(t[0], t[1], t[2], options)};
      };
      Check(operation,
            {Random({c.n, c.l, c.heads, 7}), Random({c.n, c.s, c.shared, 7}),
             Random({c.n, c.s, c.shared, 5})},
            c.l < 10);
    }
  }
}

TEST(SoftmaxAttention, TakesAnyStridesAndScale) {
  torch::manual_seed(16);
  const Operation operation = [](const Tensors& t) {
    // q has heads before positions, k has features first, v is a slice of a wider tensor.
    return Tensors{SoftmaxAttention(t[0].transpose(1, 2), t[1].permute({1, 2, 3, 0}),
                                    t[2].slice(3, 1, 6), {.causal = true, .scale = 0.9})};
  };
  Check(operation, {Random({2, 3, 6, 4}), Random({4, 2, 6, 3}), Random({2, 6, 3, 7})}, true);
}

// The results must not depend on whether options or `hidden` mask a key.
TEST(SoftmaxAttention, MaskedKeysDoNotCount) {
  torch::manual_seed(17);
  const Tensors x = {Random({2, 9, 3, 4}), Random({2, 12, 3, 4}), Random({2, 12, 3, 5})};
  const auto run = [&](const SoftmaxAttentionOptions& options) {
    return SoftmaxAttention(x[0], x[1], x[2], options);
  };
  const Tensor hidden = torch::ones({9, 12}, torch::kBool).triu(4);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{7}});
  const Tensor beyond = (torch::arange(12) >= lengths.unsqueeze(1)).view({2, 1, 1, 12});
  const auto near = [](const Tensor& a, const Tensor& b) {
    return torch::allclose(a, b, 1e-5, 1e-6);
  };
  const Tensor fused = run({.causal = true, .offset = 3, .lengths = lengths});
  EXPECT_TRUE(near(fused, run({.hidden = hidden.logical_or(beyond)})));
  EXPECT_TRUE(near(fused, run({.lengths = lengths, .hidden = hidden})));
  EXPECT_TRUE(near(fused, run({.causal = true, .offset = 3, .hidden = beyond})));
  EXPECT_EQ(fused[0].abs().max().item<double>(), 0);
  PlainGuard plain;
  EXPECT_TRUE(near(fused, run({.causal = true, .offset = 3, .lengths = lengths})));
}

TEST(SoftmaxAttention, ResultsDoNotDependOnThreads) {
  torch::manual_seed(18);
  const Tensors x = {Random({1, 400, 1, 20}), Random({1, 400, 1, 20}), Random({1, 400, 1, 24})};
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Tensors leaves = Leaves(x, torch::kFloat32);
    const Tensor out = SoftmaxAttention(leaves[0], leaves[1], leaves[2], {.causal = true});
    Tensors all = torch::autograd::grad({out.square().sum()}, leaves);
    all.push_back(out);
    at::set_num_threads(before);
    return all;
  };
  const Tensors one = run(1), two = run(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
}

TEST(SoftmaxAttention, MaskedRowsMakeNoNan) {
  torch::manual_seed(19);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{3}});
  const Tensor masked = torch::arange(70) >= lengths.unsqueeze(1);
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    Tensors x = {Random({2, 70, 2, 5}), Random({2, 70, 2, 5}), Random({2, 70, 2, 3})};
    x[1].index_put_({masked}, NAN);
    x[2].index_put_({masked}, NAN);
    const Tensors leaves = Leaves(x, dtype);
    const Tensor out = SoftmaxAttention(leaves[0], leaves[1], leaves[2], {.lengths = lengths});
    Tensors all = {out};
    for (const Tensor& g : torch::autograd::grad({out.square().sum() + out.sum()}, leaves)) {
      all.push_back(g);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(torch::isfinite(all[i]).all().item<bool>()) << i;
      EXPECT_EQ(all[i][0].abs().max().item<double>(), 0) << i;
      EXPECT_GT(all[i][1].abs().max().item<double>(), 0) << i;
    }
  }
}

TEST(SoftmaxAttention, RefusesInvalidArguments) {
  const Tensor x = torch::zeros({2, 5, 3, 4});
  const auto refuses = [](const Tensor& q, const Tensor& k, const Tensor& v,
                          const SoftmaxAttentionOptions& options = {}) {
    try {
      SoftmaxAttention(q, k, v, options);
    } catch (const InputError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refuses(x, x, x));
  EXPECT_FALSE(refuses(x, torch::zeros({2, 0, 3, 4}), torch::zeros({2, 0, 3, 4})));
  EXPECT_TRUE(refuses(x, torch::zeros({2, 5, 3, 3}), x));
  EXPECT_TRUE(refuses(x, torch::zeros({2, 4, 3, 4}), x));
  EXPECT_FALSE(refuses(x, torch::zeros({2, 5, 1, 4}), torch::zeros({2, 5, 1, 4})));
  EXPECT_TRUE(refuses(x, torch::zeros({2, 5, 2, 4}), torch::zeros({2, 5, 2, 4})));
  EXPECT_TRUE(refuses(x, x, torch::zeros({2, 5, 3, 0})));
  EXPECT_TRUE(refuses(x[0], x[0], x[0]));
  EXPECT_TRUE(refuses(x, x.to(torch::kDouble), x));
  EXPECT_TRUE(refuses(x, x, x, {.causal = true, .offset = -1}));
  EXPECT_TRUE(refuses(x, x, x, {.causal = true, .window = -1}));
  EXPECT_TRUE(refuses(x, x, x, {.lengths = torch::tensor({int64_t{3}})}));
  EXPECT_TRUE(refuses(x, x, x, {.lengths = torch::tensor({3, 4}, torch::kInt32)}));
}

TEST(LshAttention, FusedEqualsPlain) {
  torch::manual_seed(16);
  struct Case {
    int64_t n, l, h, d, m, rounds;
    LshOptions options;
  };
  for (const Case& c : {Case{1, 7, 2, 3, 2, 2, {.buckets = 2, .chunk = 3}},
                        Case{2, 100, 1, 8, 5, 1, {.buckets = 6, .chunk = 8}},
                        Case{2, 150, 2, 32, 33, 4, {.buckets = 8, .chunk = 32}},
                        Case{1, 64, 2, 16, 16, 4, {.buckets = 64, .chunk = 16}},
                        Case{3, 50, 1, 4, 4, 2, {.buckets = 1, .chunk = 7}}}) {
    const Tensor planes = Random({c.rounds, c.d, (c.options.buckets + 1) / 2});
    for (const bool causal : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          LshOptions options = c.options;
          options.causal = causal;
          const Tensor lengths =
              padded ? torch::tensor({c.l / 2 + 1, int64_t{0}, c.l}).slice(0, 0, c.n) : Tensor();
          // Strided rows, as a joint projection of all heads produces them.
          const Tensor q = torch::cat({t[0], t[0]}, 3).narrow(3, c.d, c.d);
          const Tensor v = t[1].transpose(1, 2).contiguous().transpose(1, 2);
          return Tensors{LshAttention(q, v, lengths, planes.to(q.dtype()), options)};
        };
        Check(operation, {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.l, c.h, c.m})}, c.l < 10);
      }
    }
  }
}

TEST(LshAttention, ResultsDoNotDependOnThreads) {
  torch::manual_seed(17);
  const Tensor q = torch::randn({1, 500, 1, 16}), v = torch::randn({1, 500, 1, 16});
  const Tensor planes = torch::randn({2, 16, 4});
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const Tensor leaf = q.clone().requires_grad_();
    const Tensor out = LshAttention(leaf, v, {}, planes, {.buckets = 8, .causal = true});
    return Tensors{out.detach(), torch::autograd::grad({out.square().sum()}, {leaf})[0]};
  };
  const int before = at::get_num_threads();
  const Tensors one = run(1), three = run(3);
  at::set_num_threads(before);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(one[i], three[i])) << i;
}

TEST(LshAttention, RefusesInvalidArguments) {
  const Tensor q = torch::randn({2, 9, 1, 4}), v = torch::randn({2, 9, 1, 3});
  const Tensor planes = torch::randn({1, 4, 2});
  const auto refuses = [&](const Tensor& q, const Tensor& v, const Tensor& lengths,
                           const Tensor& planes, const LshOptions& options,
                           const std::string& what) {
    try {
      LshAttention(q, v, lengths, planes, options);
      FAIL() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  const LshOptions options{.buckets = 4, .chunk = 4};
  refuses(q, v.narrow(1, 0, 8), {}, planes, options, "[N, L, H, M]");
  refuses(q, v, {}, planes.narrow(1, 0, 3), options, "planes");
  refuses(q, v, {}, planes, {.buckets = 8, .chunk = 4}, "planes");
  refuses(q, v, {}, planes, {.buckets = 3, .chunk = 4}, "even");
  refuses(q, v, {}, planes, {.buckets = 4, .chunk = 0}, "chunks");
  refuses(q, v, torch::zeros({3}, torch::kInt64), planes, options, "lengths");
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kDouble}) {
    refuses(q, v.to(type), {}, planes, options, "one type and device");
    refuses(q, v, {}, planes.to(type), options, "one type and device");
  }
  refuses(q, v.to(torch::kMeta), {}, planes, options, "one type and device");
  refuses(q, v, {}, planes.to(torch::kMeta), options, "one type and device");
}

}  // namespace
}  // namespace linnet::ops
