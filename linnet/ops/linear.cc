#include "linnet/ops/linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/base/error.h"
#include "linnet/kernels/matmul.h"

namespace linnet::ops {
namespace {

using kernels::MatMul;
using kernels::MatMulShape;
using kernels::MatType;
using torch::kBFloat16;
using torch::kFloat32;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

size_t Size(int64_t n) { return static_cast<size_t>(n); }

MatType TypeOf(torch::Dtype dtype) { return dtype == kBFloat16 ? MatType::kBf16 : MatType::kF32; }

Tensor Narrow(const Tensor& x) { return x.to(kBFloat16).contiguous(); }

// x [..., in] W^T + b
Tensor Forward(const Tensor& x, const Tensor& weight, const Tensor& bias, torch::Dtype result) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const Tensor y = torch::empty(shape, x.options().dtype(result));
  MatMul({Size(x.numel() / x.size(-1)), Size(weight.size(0)), Size(weight.size(1))},
         {x.data_ptr(), MatType::kBf16}, {weight.data_ptr(), MatType::kBf16, /*transposed=*/true},
         bias.data_ptr<float>(), {y.data_ptr(), TypeOf(result)});
  return y;
}

// grad [rows, out] W: the gradient of x, in x's shape
Tensor GradX(const Tensor& grad, const Tensor& weight, torch::IntArrayRef shape,
             torch::Dtype dtype) {
  const Tensor grad_x = torch::empty(shape, grad.options().dtype(dtype));
  MatMul({Size(grad.size(0)), Size(weight.size(1)), Size(weight.size(0))},
         {grad.data_ptr(), MatType::kBf16}, {weight.data_ptr(), MatType::kBf16}, nullptr,
         {grad_x.data_ptr(), TypeOf(dtype)});
  return grad_x;
}

// grad^T [out, rows] x: the gradient of W
Tensor GradWeight(const Tensor& grad, const Tensor& x) {
  const Tensor grad_weight =
      torch::empty({grad.size(1), x.size(-1)}, grad.options().dtype(kFloat32));
  MatMul({Size(grad.size(1)), Size(x.size(-1)), Size(grad.size(0))},
         {grad.data_ptr(), MatType::kBf16, /*transposed=*/true}, {x.data_ptr(), MatType::kBf16},
         nullptr, {grad_weight.data_ptr(), MatType::kF32});
  return grad_weight;
}

class Bf16Linear : public torch::autograd::Function<Bf16Linear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, torch::Dtype result) {
    const Tensor narrow_x = Narrow(x), narrow_weight = Narrow(weight);
    context->save_for_backward({narrow_x, narrow_weight});
    context->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return Forward(narrow_x, narrow_weight, bias, result);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor wide = grads[0].reshape({-1, weight.size(0)}), grad = Narrow(wide);
    variable_list result(4);
    if (context->needs_input_grad(0)) {
      const auto dtype = static_cast<torch::Dtype>(context->saved_data["dtype"].toInt());
      result[0] = GradX(grad, weight, x.sizes(), dtype);
    }
    if (context->needs_input_grad(1)) result[1] = GradWeight(grad, x);
    if (context->needs_input_grad(2)) result[2] = wide.sum(0, false, kFloat32);
    return result;
  }
};

// Arguments: x, then the weights, then the biases.
class Bf16Linears : public torch::autograd::Function<Bf16Linears> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList arguments) {
    const size_t count = (arguments.size() - 1) / 2;
    const Tensor x = Narrow(arguments[0]);
    std::vector<Tensor> weights, outputs;
    for (size_t i = 0; i < count; ++i) weights.push_back(arguments[1 + i]);
    const Tensor weight = Narrow(torch::cat(weights));
    int64_t row = 0;
    for (size_t i = 0; i < count; ++i) {
      const int64_t rows = weights[i].size(0);
      outputs.push_back(
          Forward(x, weight.narrow(0, row, rows), arguments[1 + count + i], kFloat32));
      row += rows;
    }
    context->save_for_backward({x, weight});
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const int64_t rows = x.numel() / x.size(-1);
    const Tensor grad = torch::empty({rows, weight.size(0)}, x.options());
    variable_list result(1), biases;
    std::vector<int64_t> widths;
    for (const Tensor& one : grads) {
      const Tensor wide = one.reshape({rows, -1});
      int64_t at = 0;
      for (int64_t width : widths) at += width;
      grad.narrow(1, at, wide.size(1)).copy_(wide);
      widths.push_back(wide.size(1));
      biases.push_back(wide.sum(0));
    }
    result[0] = GradX(grad, weight, x.sizes(), kFloat32);
    for (const Tensor& one : GradWeight(grad, x).split_with_sizes(widths)) result.push_back(one);
    result.insert(result.end(), biases.begin(), biases.end());
    return result;
  }
};

}  // namespace

Precision PrecisionNamed(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name != "bf16") throw InputError("unknown precision '", name, "'; choose fp32 or bf16");
  if (!kernels::MatMulSupports(MatType::kBf16, MatType::kF32)) {
    throw InputError("this processor has no products in bf16 (they need AVX-512); use fp32");
  }
  return Precision::kBf16;
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision,
              torch::Dtype result) {
  if (precision == Precision::kBf16) return Bf16Linear::apply(x, weight, bias, result);
  return at::linear(x, weight, bias);
}

std::vector<Tensor> Linears(const Tensor& x, const std::vector<Tensor>& weights,
                            const std::vector<Tensor>& biases, Precision precision) {
  if (precision == Precision::kBf16) {
    std::vector<Tensor> arguments = {x};
    arguments.insert(arguments.end(), weights.begin(), weights.end());
    arguments.insert(arguments.end(), biases.begin(), biases.end());
    return Bf16Linears::apply(at::TensorList(arguments));
  }
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    outputs.push_back(at::linear(x, weights[i], biases[i]));
  }
  return outputs;
}

}  // namespace linnet::ops
