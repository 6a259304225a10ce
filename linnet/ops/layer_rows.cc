#include "linnet/ops/layer_rows.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/bf16_linears.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::kBFloat16;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr size_t kMaxProducts = 3;

// Returns x in its own type, but with values rounded to bf16 if that is the precision. Products in
// x's type then have the same operands as the fused form.
Tensor Rounded(const Tensor& x, Precision precision) {
  return precision == Precision::kBf16 ? x.to(kBFloat16).to(x.scalar_type()) : x;
}

// Whether the plain form computes the product of x and weight by the functions of bf16_linears.h.
bool TakesBf16(const Tensor& x, const Tensor& weight, Precision precision) {
  return precision == Precision::kBf16 && weight.scalar_type() == torch::kFloat32 &&
         (x.scalar_type() == torch::kFloat32 || x.scalar_type() == kBFloat16);
}

Tensors PlainLinears(const Tensor& x, const Tensors& weights, const Tensors& biases,
                     Precision precision) {
  if (TakesBf16(x, weights[0], precision)) return Bf16Linears(x, weights, biases);
  Tensors y;
  for (size_t i = 0; i < weights.size(); ++i) {
    y.push_back(at::linear(Rounded(x, precision), Rounded(weights[i], precision), biases[i]));
  }
  return y;
}

Tensor PlainLinear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision) {
  return PlainLinears(x, {weight}, {bias}, precision)[0];
}

std::vector<int64_t> WithLast(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

bool WantsGradient(const Tensors& tensors) {
  if (!torch::GradMode::is_enabled()) return false;
  for (const Tensor& tensor : tensors) {
    if (tensor.requires_grad()) return true;
  }
  return false;
}

void Append(Tensors& tensors, const Norm& norm) {
  if (norm.defined()) tensors.insert(tensors.end(), {norm.weight, norm.bias});
}

// Throws unless weight and bias are on the device of x and, in fp32, of its type: only in bf16 are
// weights converted for the kernels.
void CheckParameters(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     Precision precision) {
  for (const Tensor& parameter : {weight, bias}) {
    const bool fits = precision == Precision::kBf16 || parameter.scalar_type() == x.scalar_type();
    if (fits && parameter.device() == x.device()) continue;
    throw InputError("a product needs a weight and a bias on the device of x and, in fp32, of its ",
                     "type; got x ", x.toString(), ", weight ", weight.toString(), " and bias ",
                     bias.toString());
  }
}

void CheckProduct(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision) {
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1) ||
      bias.sizes() != weight.sizes().slice(0, 1)) {
    throw InputError("a product needs x [..., in], weight [out, in] and bias [out]; got ",
                     x.sizes(), ", ", weight.sizes(), " and ", bias.sizes());
  }
  CheckParameters(x, weight, bias, precision);
}

}  // namespace

Tensor Normalize(const Tensor& x, const Norm& norm) {
  if (!norm.defined()) return x;
  if (norm.rms()) return x * (x.square().mean(-1, true) + norm.eps).rsqrt() * norm.weight;
  return at::layer_norm(x, {x.size(-1)}, norm.weight, norm.bias, norm.eps);
}

Precision PrecisionNamed(const std::string& name, torch::Device device) {
  if (name == "fp32" || name == "f32") return Precision::kFp32;  // model files say "f32"
  if (name != "bf16") throw InputError("unknown precision '", name, "'; choose fp32 or bf16");
  if constexpr (kHasFused) {
    if (device.is_cpu() && !FusedBf16()) {
      throw InputError(
          "this processor cannot multiply in bf16, which needs AVX512-BF16 or AMX; use fp32");
    }
  }
  return Precision::kBf16;
}

Tensors Linears(const Tensor& x, const Tensors& weights, const Tensors& biases, Precision precision,
                const Norm& norm_before) {
  if (weights.empty() || weights.size() != biases.size() || weights.size() > kMaxProducts) {
    throw InputError("Linears needs 1 to ", kMaxProducts,
                     " weights and as many biases; number of weights: ", weights.size());
  }
  for (size_t i = 0; i < weights.size(); ++i) CheckProduct(x, weights[i], biases[i], precision);
  if (norm_before.rms()) return Linears(Normalize(x, norm_before), weights, biases, precision);
  if constexpr (kHasFused) {
    if (Fused(x)) {
      Tensors tensors = {x};
      for (size_t i = 0; i < weights.size(); ++i) {
        tensors.insert(tensors.end(), {weights[i], biases[i]});
      }
      Append(tensors, norm_before);
      return FusedLinears(tensors, {.precision = precision,
                                    .norm_before = norm_before.defined(),
                                    .eps_before = norm_before.eps});
    }
  }
  return PlainLinears(Normalize(x, norm_before), weights, biases, precision);
}

Tensors NarrowLinears(const Tensor& x, const Tensors& weights, const Tensors& biases,
                      const Norm& norm_before) {
  for (size_t i = 0; i < weights.size(); ++i) {
    CheckProduct(x, weights[i], biases[i], Precision::kBf16);
  }
  return Bf16Linears(Normalize(x, norm_before), weights, biases, /*narrow=*/true);
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision,
              const Norm& norm_before) {
  return Linears(x, {weight}, {bias}, precision, norm_before)[0];
}

Tensor Project(const Tensor& a, const Tensor& weight, const Tensor& bias, const Tensor& residual,
               const Norm& norm_after, Precision precision) {
  CheckProduct(a, weight, bias, precision);
  if (residual.sizes() != at::IntArrayRef(WithLast(a, weight.size(0)))) {
    throw InputError("a residual of shape ", residual.sizes(), " does not fit the product of a ",
                     a.sizes(), " and weight ", weight.sizes());
  }
  if (norm_after.rms()) {
    return Normalize(Project(a, weight, bias, residual, {}, precision), norm_after);
  }
  if constexpr (kHasFused) {
    if (Fused(a)) {
      Tensors tensors = {a, weight, bias, residual};
      Append(tensors, norm_after);
      return FusedProject(tensors, {.precision = precision,
                                    .norm_after = norm_after.defined(),
                                    .eps_after = norm_after.eps});
    }
  }
  if (TakesBf16(a, weight, precision) && residual.scalar_type() == torch::kFloat32) {
    return Bf16Project(a, weight, bias, residual, norm_after);
  }
  return Normalize(residual + PlainLinear(a, weight, bias, precision), norm_after);
}

Tensor Activate(kernels::Activation activation, const Tensor& x) {
  return activation == kernels::Activation::kGelu ? torch::gelu(x) : torch::relu(x);
}

Tensor FeedForward(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                   const Tensor& weight2, const Tensor& bias2, const FeedForwardOptions& options) {
  CheckProduct(x, weight1, bias1, options.precision);
  if (weight2.dim() != 2 || weight2.size(0) != x.size(-1) || weight2.size(1) != weight1.size(0) ||
      bias2.sizes() != x.sizes().slice(x.dim() - 1)) {
    throw InputError("feed-forward weights ", weight1.sizes(), " and ", weight2.sizes(),
                     ", or their biases, do not fit rows of ", x.size(-1), " elements");
  }
  CheckParameters(x, weight2, bias2, options.precision);
  if (options.norm_before.rms() || options.norm_after.rms()) {
    const Tensor hidden = Linear(x, weight1, bias1, options.precision, options.norm_before);
    return Project(Activate(options.activation, hidden), weight2, bias2, x, options.norm_after,
                   options.precision);
  }
  if constexpr (kHasFused) {
    if (Fused(x)) {
      Tensors tensors = {x, weight1, bias1, weight2, bias2};
      Append(tensors, options.norm_before);
      Append(tensors, options.norm_after);
      return FusedFeedForward(tensors, {.precision = options.precision,
                                        .activation = options.activation,
                                        .norm_before = options.norm_before.defined(),
                                        .norm_after = options.norm_after.defined(),
                                        .with_gradient = WantsGradient(tensors),
                                        .eps_before = options.norm_before.eps,
                                        .eps_after = options.norm_after.eps});
    }
  }
  const Precision precision = options.precision;
  const Tensor normed = Normalize(x, options.norm_before);
  if (precision == Precision::kBf16 && x.scalar_type() == torch::kFloat32) {
    return Bf16FeedForward(normed, weight1, bias1, weight2, bias2, x, options.norm_after,
                           options.activation);
  }
  const Tensor hidden = Rounded(PlainLinear(normed, weight1, bias1, precision), precision);
  const Tensor active = Activate(options.activation, hidden);
  return Normalize(x + PlainLinear(active, weight2, bias2, precision), options.norm_after);
}

}  // namespace linnet::ops
