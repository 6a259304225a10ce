#include "linnet/ops/bf16_linears.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <tuple>

#include "linnet/ops/cuda.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::kBFloat16;
using torch::kFloat32;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The matrix product a b in fp32, for bf16 a and b.
Tensor Product(const Tensor& a, const Tensor& b) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  if (a.is_cuda()) return at::mm(a, b, kFloat32);
#endif
  return at::mm(a.to(kFloat32), b.to(kFloat32));
}

// The sums over the rows of x [rows, n], in fp32.
Tensor ColumnSums(const Tensor& x) {
  if constexpr (kHasCuda) {
    if (CudaColumnSumsTakes(x)) return CudaColumnSums(x);
  }
  return x.sum(at::IntArrayRef{0}, /*keepdim=*/false, kFloat32);
}

// Concatenates parts [rows, n_i] into one bf16 matrix [rows, columns].
Tensor Columns(const variable_list& parts, int64_t columns) {
  if (parts.size() == 1) return parts[0].to(kBFloat16);
  // The GPU backward of causal linear attention writes the gradients of q, k and v side by side
  // into one matrix, which then needs no copy.
  bool joined_already = true;
  int64_t begin = parts[0].storage_offset();
  for (const Tensor& part : parts) {
    joined_already = joined_already && part.scalar_type() == kBFloat16 &&
                     part.is_alias_of(parts[0]) && part.stride(0) == columns &&
                     part.stride(1) == 1 && part.storage_offset() == begin;
    begin += part.size(1);
  }
  if (joined_already) return parts[0].as_strided({parts[0].size(0), columns}, {columns, 1});
  Tensor joined = torch::empty({parts[0].size(0), columns}, parts[0].options().dtype(kBFloat16));
  begin = 0;
  for (const Tensor& part : parts) {
    joined.narrow(1, begin, part.size(1)).copy_(part);
    begin += part.size(1);
  }
  return joined;
}

// Concatenates weights [out_i, in] into one bf16 matrix [rows, in].
Tensor Rows(at::TensorList weights, int64_t rows) {
  if (weights.size() == 1) return weights[0].to(kBFloat16);
  Tensor joined = torch::empty({rows, weights[0].size(1)}, weights[0].options().dtype(kBFloat16));
  int64_t begin = 0;
  for (const Tensor& weight : weights) {
    joined.narrow(0, begin, weight.size(0)).copy_(weight);
    begin += weight.size(0);
  }
  return joined;
}

// n(x + bias + residual) and its backward, where n is the norm or the identity.
class AddNorm {
 public:
  // x: the result of a product; overwritten by x + bias + residual. With a norm, appends to `saved`
  // the tensors that Backward() reads.
  static Tensor Forward(AutogradContext* context, const Tensor& x, const Tensor& bias,
                        const Tensor& residual_in, const Norm& norm, variable_list& saved) {
    const Tensor residual = residual_in.contiguous();
    context->saved_data["normed"] = norm.defined();
    context->saved_data["eps"] = norm.eps;
    bool kernels = false;
    Tensor out, mean, scale;  // from the kernels, `mean` is [rows, 2]: each row's mean and scale
    if constexpr (kHasCuda) {
      kernels = CudaAddNormTakes(x, {bias, residual, norm.weight, norm.bias});
      if (kernels) std::tie(out, mean) = CudaAddNorm(x, bias, residual, norm);
    }
    context->saved_data["kernels"] = kernels;
    if (!kernels) {
      x.add_(bias).add_(residual);
      if (norm.defined()) {
        std::tie(out, mean, scale) =
            at::native_layer_norm(x, {x.size(1)}, norm.weight, norm.bias, norm.eps);
      }
    }
    if (!norm.defined()) return x;
    saved.insert(saved.end(), {x, mean, kernels ? mean : scale, norm.weight, norm.bias});
    return out;
  }

  struct Gradients {
    Tensor sum, narrow;           // for x + bias + residual, in fp32 and in bf16
    Tensor weight, offset, bias;  // for the norm's weight, the norm's bias, and `bias`
  };
  // saved: the tensors that Forward() appended, if there is a norm.
  static Gradients Backward(AutogradContext* context, const Tensor& grad, const Tensor* saved) {
    if (!context->saved_data["normed"].toBool()) {
      return {grad, grad.to(kBFloat16), {}, {}, ColumnSums(grad)};
    }
    if constexpr (kHasCuda) {
      if (context->saved_data["kernels"].toBool()) {
        const CudaAddNormGradients all = CudaAddNormBackward(grad, saved[0], saved[1], saved[3]);
        return {all.x, all.narrow, all.sums[0], all.sums[1], all.sums[2]};
      }
    }
    const auto [sum, weight, offset] = at::native_layer_norm_backward(
        grad, saved[0], {grad.size(1)}, saved[1], saved[2], saved[3], saved[4], {true, true, true});
    return {sum, sum.to(kBFloat16), weight, offset, ColumnSums(sum)};
  }
};

class LinearsFunction : public torch::autograd::Function<LinearsFunction> {
 public:
  // tensors: x [rows, in], then the weights, then the biases. Returns y_i [rows, out_i], in bf16 if
  // `narrow`.
  static variable_list forward(AutogradContext* context, at::TensorList tensors, bool narrow) {
    const size_t products = tensors.size() / 2;
    const at::TensorList weights = tensors.slice(1, products), biases = tensors.slice(1 + products);
    std::vector<int64_t> sizes;
    int64_t out = 0;
    for (const Tensor& bias : biases) {
      sizes.push_back(bias.size(0));
      out += bias.size(0);
    }
    const Tensor x = tensors[0].to(kBFloat16), weight = Rows(weights, out);
    const Tensor bias = products == 1 ? biases[0] : torch::cat(biases);
    const Tensor y =
        narrow ? at::addmm(bias.to(kBFloat16), x, weight.t()) : Product(x, weight.t()).add_(bias);
    context->save_for_backward({x, weight});
    context->saved_data["narrow_x"] = tensors[0].scalar_type() == kBFloat16;
    context->saved_data["sizes"] = sizes;
    if (products == 1) return {y};
    return y.split_with_sizes(sizes, 1);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const Tensor grad = Columns(grads, weight.size(0));
    const bool narrow_x = context->saved_data["narrow_x"].toBool();
    variable_list results = {narrow_x ? at::mm(grad, weight) : Product(grad, weight)};
    for (const Tensor& part : Product(grad.t(), x).split_with_sizes(sizes, 0)) {
      results.push_back(part);
    }
    if (grad.is_cuda()) {
      for (const Tensor& part : ColumnSums(grad).split_with_sizes(sizes)) results.push_back(part);
    } else {
      for (const Tensor& one : grads) {
        results.push_back(one.sum(at::IntArrayRef{0}, /*keepdim=*/false, kFloat32));
      }
    }
    results.push_back({});
    return results;
  }
};

// Maps a [rows, in] to n(residual + a W^T + b) [rows, out].
class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& a_in, const Tensor& weight_in,
                        const Tensor& bias, const Tensor& residual,
                        const c10::optional<Tensor>& norm_weight,
                        const c10::optional<Tensor>& norm_bias, double eps) {
    const Tensor a = a_in.to(kBFloat16), weight = weight_in.to(kBFloat16);
    variable_list saved = {a, weight};
    const Norm norm{norm_weight.value_or(Tensor()), norm_bias.value_or(Tensor()), eps};
    const Tensor out =
        AddNorm::Forward(context, Product(a, weight.t()), bias, residual, norm, saved);
    context->save_for_backward(saved);
    context->saved_data["narrow_a"] = a_in.scalar_type() == kBFloat16;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &a = saved[0], &weight = saved[1];
    const AddNorm::Gradients grad = AddNorm::Backward(context, grads[0], saved.data() + 2);
    const bool narrow_a = context->saved_data["narrow_a"].toBool();
    return {narrow_a ? at::mm(grad.narrow, weight) : Product(grad.narrow, weight),
            Product(grad.narrow.t(), a),
            grad.bias,
            grad.sum,
            grad.weight,
            grad.offset,
            {}};
  }
};

// Maps x [rows, in] to n(residual + act(x W1^T + b1) W2^T + b2) [rows, out].
class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight1,
                        const Tensor& bias1, const Tensor& weight2, const Tensor& bias2,
                        const Tensor& residual, const c10::optional<Tensor>& norm_weight,
                        const c10::optional<Tensor>& norm_bias, double eps, bool gelu) {
    const Tensor x = x_in.to(kBFloat16), bias = bias1.to(kBFloat16);
    const Tensor w1 = weight1.to(kBFloat16), w2 = weight2.to(kBFloat16);
    // kept: the hidden layer, before the activation for gelu, after it for relu.
    const Tensor kept = gelu ? at::addmm(bias, x, w1.t())
                             : at::_addmm_activation(bias, x, w1.t(), 1, 1, /*use_gelu=*/false);
    variable_list saved = {x, w1, w2, kept};
    context->saved_data["gelu"] = gelu;
    const Norm norm{norm_weight.value_or(Tensor()), norm_bias.value_or(Tensor()), eps};
    const Tensor out = AddNorm::Forward(context, Product(gelu ? at::gelu(kept) : kept, w2.t()),
                                        bias2, residual, norm, saved);
    context->save_for_backward(saved);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w1 = saved[1], &w2 = saved[2], &kept = saved[3];
    const bool gelu = context->saved_data["gelu"].toBool();
    const AddNorm::Gradients of_sum = AddNorm::Backward(context, grads[0], saved.data() + 4);
    const Tensor& grad = of_sum.narrow;
    const Tensor grad_active = at::mm(grad, w2);
    const Tensor grad_hidden =
        gelu ? at::gelu_backward(grad_active, kept) : at::threshold_backward(grad_active, kept, 0);
    return {Product(grad_hidden, w1),
            Product(grad_hidden.t(), x),
            ColumnSums(grad_hidden),
            Product(grad.t(), gelu ? at::gelu(kept) : kept),
            of_sum.bias,
            of_sum.sum,
            of_sum.weight,
            of_sum.offset,
            {},
            {}};
  }
};

Tensor InRows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace

std::vector<Tensor> Bf16Linears(const Tensor& x, const std::vector<Tensor>& weights,
                                const std::vector<Tensor>& biases, bool narrow) {
  variable_list tensors = {InRows(x)};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  tensors.insert(tensors.end(), biases.begin(), biases.end());
  variable_list y = LinearsFunction::apply(at::TensorList(tensors), narrow);
  for (Tensor& part : y) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = part.size(1);
    part = part.view(shape);
  }
  return y;
}

Tensor Bf16Project(const Tensor& a, const Tensor& weight, const Tensor& bias,
                   const Tensor& residual, const Norm& norm_after) {
  return ProjectFunction::apply(InRows(a), weight, bias, InRows(residual),
                                OptionalOf(norm_after.weight), OptionalOf(norm_after.bias),
                                norm_after.eps)
      .view(residual.sizes());
}

Tensor Bf16FeedForward(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                       const Tensor& weight2, const Tensor& bias2, const Tensor& residual,
                       const Norm& norm_after, kernels::Activation activation) {
  return FeedForwardFunction::apply(InRows(x), weight1, bias1, weight2, bias2, InRows(residual),
                                    OptionalOf(norm_after.weight), OptionalOf(norm_after.bias),
                                    norm_after.eps, activation == kernels::Activation::kGelu)
      .view(x.sizes());
}

}  // namespace linnet::ops
