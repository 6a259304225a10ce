// Compares the operations on a GPU with the plain forms in double on the CPU. Needs a GPU; built
// with -DLINNET_GPU_TESTS=ON.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/adam.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/mixture_of_logistics.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/scan.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
using kernels::ScanDecay;
using kernels::ScanOptions;
using kernels::ScanWrite;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// The largest error relative to the largest magnitude of `want`, or to kLeast if that is larger.
// kLeast is for gradients that are 0 up to rounding: those of q and k in causal linear attention
// with L = 1 and options.normalize.
double RelativeOff(const Tensor& got, const Tensor& want) {
  constexpr double kLeast = 0.1;
  return (got.detach().to(torch::kCPU, torch::kDouble) - want).abs().max().item<double>() /
         std::max(want.abs().max().item<double>(), kLeast);
}

// Calls run(inputs, index) on the GPU in `dtype` and on the CPU in double. `index` (lengths,
// offsets, bytes or undefined) is passed on the device of the inputs. Compares all outputs, and the
// gradients of their randomly weighted sum.
template <class Run>
void ExpectSame(const Tensors& x, const Tensor& index, torch::Dtype dtype, double tolerance,
                const std::string& what, const Run& run) {
  Tensors results[2];
  Tensors weights;
  for (const bool there : {false, true}) {  // the CPU, then the GPU
    const torch::Device device = there ? torch::kCUDA : torch::kCPU;
    Tensors leaves;
    for (const Tensor& t : x) {
      leaves.push_back(
          t.to(dtype).to(device, there ? dtype : torch::kDouble).detach().requires_grad_());
    }
    const Tensors out = run(leaves, index.defined() ? index.to(device) : index);
    Tensor sum;
    for (size_t i = 0; i < out.size(); ++i) {
      if (weights.size() == i) weights.push_back(torch::randn(out[i].sizes(), torch::kDouble));
      const Tensor weight = weights[i].to(dtype).to(device, out[i].scalar_type());
      const Tensor one = (out[i] * weight).sum(there ? torch::kFloat32 : torch::kDouble);
      sum = sum.defined() ? sum + one : one;
    }
    results[there] = torch::autograd::grad({sum}, leaves);
    for (const Tensor& one : out) results[there].push_back(one.detach());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_LT(RelativeOff(results[1][i], results[0][i]), tolerance) << what << ", result " << i;
  }
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
    torch::manual_seed(1);
  }
};

TEST_F(OnGpu, CausalLinear) {
  for (const auto& [d, m] :
       {std::pair<int64_t, int64_t>{16, 16}, {32, 32}, {64, 128}, {24, 40}, {128, 64}, {7, 9}}) {
    for (const int64_t length : {1, 63, 64, 200, 1500}) {
      for (const torch::Dtype dtype : {torch::kFloat32, torch::kBFloat16}) {
        // The GPU kernels take only sizes that are multiples of 8. 7 x 9 runs in the plain form,
        // which rounds its sums to bf16: too inaccurate for the tolerance below.
        if (d == 7 && dtype == torch::kBFloat16) continue;
        for (const bool padded : {false, true}) {
          for (const bool normalize : {true, false}) {
            const Tensors x = {torch::randn({3, length, 2, d}), torch::randn({3, length, 2, d}),
                               torch::randn({3, length, 2, m})};
            const Tensor lengths =
                padded ? torch::tensor({length, int64_t{0}, (length + 1) / 2}) : Tensor();
            const CausalLinearOptions options = {.feature_map = FeatureMap::kElu,
                                                 .normalize = normalize};
            ExpectSame(x, lengths, dtype, dtype == torch::kFloat32 ? 2e-4 : 0.03,
                       StrCat(d, " x ", m, ", ", length, padded ? " padded" : "",
                              normalize ? "" : " bare", dtype == torch::kFloat32 ? "" : " bf16"),
                       [&](const Tensors& t, const Tensor& index) {
                         return Tensors{CausalLinearAttention(t[0], t[1], t[2], index, options)};
                       });
          }
        }
      }
    }
  }
}

TEST_F(OnGpu, CausalLinearCarriesAState) {
  for (const int64_t length : {1, 100, 700}) {
    const Tensors x = {torch::randn({2, length, 3, 32}), torch::randn({2, length, 3, 32}),
                       torch::randn({2, length, 3, 64}), torch::rand({2, 3, 32, 64}),
                       torch::rand({2, 3, 32})};
    ExpectSame(x, {}, torch::kFloat32, 2e-4, StrCat(length), [](const Tensors& t, const Tensor&) {
      CausalLinearState state{t[3], t[4]};
      const Tensor out = CausalLinearAttention(t[0], t[1], t[2], {}, {}, state);
      return Tensors{out, state.s, state.z};
    });
  }
}

TEST_F(OnGpu, CausalLinearPacked) {
  const Tensor offsets =
      torch::tensor({int64_t{0}, int64_t{70}, int64_t{70}, int64_t{71}, int64_t{300}});
  const Tensors x = {torch::randn({300, 4, 32}), torch::randn({300, 4, 32}),
                     torch::randn({300, 4, 32})};
  ExpectSame(x, offsets, torch::kFloat32, 2e-4, "packed",
             [](const Tensors& t, const Tensor& index) {
               return Tensors{CausalLinearAttentionPacked(t[0], t[1], t[2], index, {})};
             });
}

// Turns random tensors into inputs of a scan whose states stay bounded.
ScanInputs BoundedScan(const Tensors& t, const ScanOptions& options) {
  const auto unit = [](const Tensor& x) { return x / (x.square().sum(3, true) + 1e-3).sqrt(); };
  ScanInputs in{t[0], unit(t[1]), t[2], -t[3].abs(), t[4].sigmoid(), t[5].sigmoid()};
  if (options.write == ScanWrite::kRwkv7) in.erase = -unit(t[4]), in.write = unit(t[4]) * in.write;
  return in;
}

TEST_F(OnGpu, Scan) {
  for (const ScanDecay decay : {ScanDecay::kNone, ScanDecay::kHead, ScanDecay::kKey}) {
    for (const ScanWrite write :
         {ScanWrite::kAdd, ScanWrite::kDelta, ScanWrite::kTwoSided, ScanWrite::kRwkv7}) {
      const ScanOptions options = {.decay = decay, .write = write, .scale = 0.5f};
      for (const auto& [d, m] :
           {std::pair<int64_t, int64_t>{32, 32}, {64, 128}, {20, 12}, {7, 9}}) {
        for (const bool padded : {false, true}) {
          const int64_t length = 70, heads = 4, shared = padded ? 2 : 4;
          const auto rows = [&](int64_t heads_of, int64_t width) {
            return torch::randn({3, length, heads_of, width});
          };
          const Tensors x = {rows(shared, d),
                             rows(shared, d),
                             rows(heads, m),
                             rows(heads, decay == ScanDecay::kHead ? 1 : d),
                             rows(heads, write == ScanWrite::kDelta ? 1 : d),
                             rows(heads, write == ScanWrite::kTwoSided ? m : d),
                             torch::randn({3, heads, d, m})};
          const Tensor lengths =
              padded ? torch::tensor({length, int64_t{0}, (length + 1) / 2}) : Tensor();
          ExpectSame(x, lengths, torch::kFloat32, 1e-4,
                     StrCat(d, " x ", m, ", decay ", static_cast<int>(decay), ", write ",
                            static_cast<int>(write), padded ? ", padded" : ""),
                     [&](const Tensors& t, const Tensor& index) {
                       Tensor state = t[6];
                       const Tensor out = Scan(BoundedScan(t, options), options, index, state);
                       // Gives also the tensors that the options do not use a gradient.
                       return Tensors{out, state, t[3] + 0, t[4] + 0, t[5] + 0};
                     });
        }
      }
    }
  }
}

TEST_F(OnGpu, ChannelScan) {
  for (const bool padded : {false, true}) {
    const Tensors x = {torch::randn({3, 70, 50}), torch::randn({3, 70, 50}), torch::randn({3, 50})};
    const Tensor lengths =
        padded ? torch::tensor({int64_t{70}, int64_t{0}, int64_t{31}}) : Tensor();
    ExpectSame(x, lengths, torch::kFloat32, 1e-4, padded ? "padded" : "whole",
               [](const Tensors& t, const Tensor& index) {
                 Tensor state = t[2];
                 const Tensor out = ChannelScan(t[0], -t[1].abs(), index, state);
                 return Tensors{out, state};
               });
  }
}

TEST_F(OnGpu, Softmax) {
  for (const bool causal : {false, true}) {
    const Tensors x = {torch::randn({2, 90, 4, 32}), torch::randn({2, 90, 4, 32}),
                       torch::randn({2, 90, 4, 32})};
    ExpectSame(x, {}, torch::kFloat32, 1e-3, StrCat(causal), [&](const Tensors& t, const Tensor&) {
      return Tensors{SoftmaxAttention(t[0], t[1], t[2], {.causal = causal})};
    });
  }
}

TEST_F(OnGpu, Rows) {
  for (const int64_t length : {1, 50, 700}) {
    const Tensors x = {torch::randn({3, length, 64}),
                       torch::randn({128, 64}) / 8,
                       torch::randn({128}),
                       torch::randn({64, 128}) / 11,
                       torch::randn({64}),
                       torch::randn({64}),
                       torch::randn({64}),
                       torch::randn({96, 64}) / 8,
                       torch::randn({96})};
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      for (const auto activation : {kernels::Activation::kRelu, kernels::Activation::kGelu}) {
        for (const bool normed : {true, false}) {
          const auto name = StrCat(precision == Precision::kFp32 ? "fp32" : "bf16",
                                   activation == kernels::Activation::kRelu ? " relu" : " gelu",
                                   normed ? " normed, " : ", ", length);
          // In bf16, some hidden elements near 0 (a few in 10,000) change sign, which changes
          // relu's derivative. Each such element adds or removes one term of a row of the first
          // weight's gradient, a sum over the rows of input. With 150 rows (length 50), one term is
          // 4% of the gradient's largest element. Rounding alone causes an error of 0.2%.
          const bool relu = activation == kernels::Activation::kRelu;
          if (relu && length == 1 && precision == Precision::kBf16) continue;
          const double tolerance = precision == Precision::kFp32 ? 1e-4 : relu ? 0.1 : 0.03;
          ExpectSame(x, {}, torch::kFloat32, tolerance, name, [&](const Tensors& t, const Tensor&) {
            const Norm after = normed ? Norm{t[5], t[6]} : Norm{};
            Tensors y = Linears(t[0], {t[1], t[7]}, {t[2], t[8]}, precision);
            y.push_back(FeedForward(
                t[0], t[1], t[2], t[3], t[4],
                {.activation = activation, .norm_after = after, .precision = precision}));
            y.push_back(Project(y[0], t[3], t[4], t[0], after, precision));
            // Gives the norm's parameters a gradient also without a norm.
            y.push_back(t[5] + t[6]);
            return y;
          });
        }
      }
    }
  }
}

// Compares an attention layer in bf16, which computes queries, keys and values in one product, with
// the same layer in double without rounding to bf16.
TEST_F(OnGpu, NarrowAttention) {
  for (const bool softmax : {false, true}) {
    const int64_t heads = 4, length = 150;
    Tensors x = {torch::randn({2, length, 128})};
    for (int i = 0; i < 4; ++i) {
      x.push_back(torch::randn({128, 128}) / 11);
      x.push_back(torch::randn({128}) / 4);
    }
    ExpectSame(x, {}, torch::kFloat32, 0.05, softmax ? "softmax" : "linear",
               [&](const Tensors& t, const Tensor&) {
                 // A bias of the keys does not change softmax attention, so its gradient is only
                 // rounding error. The factor 0 makes that gradient 0.
                 const Tensor key_bias = softmax ? t[4].detach() + 0 * t[4] : t[4];
                 const Tensors weights = {t[1], t[3], t[5]}, biases = {t[2], key_bias, t[6]};
                 const bool there = t[0].is_cuda();
                 Tensors qkv = there ? NarrowLinears(t[0], weights, biases)
                                     : Linears(t[0], weights, biases, Precision::kFp32);
                 for (Tensor& one : qkv) one = one.unflatten(-1, {heads, 128 / heads});
                 const Tensor out = softmax
                                        ? SoftmaxAttention(qkv[0], qkv[1], qkv[2], {.causal = true})
                                        : CausalLinearAttention(qkv[0], qkv[1], qkv[2]);
                 if (there) {
                   EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
                 }
                 return Tensors{Project(out.flatten(2), t[7], t[8], t[0], {},
                                        there ? Precision::kBf16 : Precision::kFp32)};
               });
  }
}

TEST_F(OnGpu, MixtureOfLogistics) {
  const Tensor bytes = torch::randint(256, {3, 70}, torch::kInt64);
  ExpectSame({torch::randn({3, 70, 30})}, bytes, torch::kFloat32, 1e-4, "",
             [](const Tensors& t, const Tensor& index) {
               return Tensors{MixtureOfLogisticsNats(t[0], index)};
             });
}

TEST_F(OnGpu, Adam) {
  Tensors parameters[2];
  for (const int64_t size : {3, 1000, 70}) {
    const Tensor p = torch::randn({size});
    parameters[0].push_back(p.clone().requires_grad_());
    parameters[1].push_back(p.to(torch::kCUDA).requires_grad_());
  }
  FlatAdam here(parameters[0]), there(parameters[1]);
  torch::NoGradGuard no_grad;
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < parameters[0].size(); ++i) {
      const Tensor gradient = torch::randn(parameters[0][i].sizes());
      parameters[0][i].mutable_grad() = gradient;
      parameters[1][i].mutable_grad() = gradient.to(torch::kCUDA);
    }
    here.Update({.decay = 0.99f, .step = 0.1f}, 1);
    there.Update({.decay = 0.99f, .step = 0.1f}, 1);
  }
  EXPECT_TRUE(there.Finite());
  for (size_t i = 0; i < parameters[0].size(); ++i) {
    EXPECT_LT(RelativeOff(parameters[1][i], parameters[0][i].to(torch::kDouble)), 1e-5);
  }
}

}  // namespace
}  // namespace linnet::ops
