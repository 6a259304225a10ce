#include "linnet/ops/bf16_linears.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>
#include <torch/version.h>

namespace linnet::ops {
namespace {

using torch::kBFloat16;
using torch::kFloat32;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// a b in fp32, for bf16 matrices.
Tensor Product(const Tensor& a, const Tensor& b) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  if (a.is_cuda()) return at::mm(a, b, kFloat32);
#endif
  return at::mm(a.to(kFloat32), b.to(kFloat32));
}

// Parts [rows, n_i] as bf16, side by side.
Tensor Columns(const variable_list& parts, int64_t columns) {
  if (parts.size() == 1) return parts[0].to(kBFloat16);
  Tensor joined = torch::empty({parts[0].size(0), columns}, parts[0].options().dtype(kBFloat16));
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    joined.narrow(1, begin, part.size(1)).copy_(part);
    begin += part.size(1);
  }
  return joined;
}

// Weights [out_i, in] as bf16, one below the other.
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

class LinearsFunction : public torch::autograd::Function<LinearsFunction> {
 public:
  // tensors: x [rows, in], then the weights, then the biases. Returns y_i [rows, out_i].
  static variable_list forward(AutogradContext* context, at::TensorList tensors) {
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
    const Tensor y = Product(x, weight.t()).add_(bias);
    context->save_for_backward({x, weight});
    context->saved_data["sizes"] = sizes;
    if (products == 1) return {y};
    return y.split_with_sizes(sizes, 1);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const Tensor grad = Columns(grads, weight.size(0));
    variable_list results = {Product(grad, weight)};
    for (const Tensor& part : Product(grad.t(), x).split_with_sizes(sizes, 0)) {
      results.push_back(part);
    }
    for (const Tensor& one : grads) results.push_back(one.sum(0));
    return results;
  }
};

// x [rows, in] to [rows, out].
class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight1,
                        const Tensor& bias1, const Tensor& weight2, const Tensor& bias2,
                        bool gelu) {
    const Tensor x = x_in.to(kBFloat16), bias = bias1.to(kBFloat16);
    const Tensor w1 = weight1.to(kBFloat16), w2 = weight2.to(kBFloat16);
    // kept: the hidden layer, of gelu before the activation.
    const Tensor kept = gelu ? at::addmm(bias, x, w1.t())
                             : at::_addmm_activation(bias, x, w1.t(), 1, 1, /*use_gelu=*/false);
    context->save_for_backward({x, w1, w2, kept});
    context->saved_data["gelu"] = gelu;
    return Product(gelu ? at::gelu(kept) : kept, w2.t()).add_(bias2);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w1 = saved[1], &w2 = saved[2], &kept = saved[3];
    const bool gelu = context->saved_data["gelu"].toBool();
    const Tensor grad = grads[0].to(kBFloat16);
    const Tensor grad_active = at::mm(grad, w2);
    const Tensor grad_hidden =
        gelu ? at::gelu_backward(grad_active, kept) : at::threshold_backward(grad_active, kept, 0);
    return {Product(grad_hidden, w1),
            Product(grad_hidden.t(), x),
            grad_hidden.sum(at::IntArrayRef{0}, /*keepdim=*/false, kFloat32),
            Product(grad.t(), gelu ? at::gelu(kept) : kept),
            grads[0].sum(0),
            {}};
  }
};

}  // namespace

std::vector<Tensor> Bf16Linears(const Tensor& x, const std::vector<Tensor>& weights,
                                const std::vector<Tensor>& biases) {
  variable_list tensors = {x.reshape({-1, x.size(-1)})};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  tensors.insert(tensors.end(), biases.begin(), biases.end());
  variable_list y = LinearsFunction::apply(at::TensorList(tensors));
  for (Tensor& part : y) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = part.size(1);
    part = part.view(shape);
  }
  return y;
}

Tensor Bf16FeedForward(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                       const Tensor& weight2, const Tensor& bias2, kernels::Activation activation) {
  return FeedForwardFunction::apply(x.reshape({-1, x.size(-1)}), weight1, bias1, weight2, bias2,
                                    activation == kernels::Activation::kGelu)
      .view(x.sizes());
}

}  // namespace linnet::ops
