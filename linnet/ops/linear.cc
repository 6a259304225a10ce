#include "linnet/ops/linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/base/error.h"

namespace linnet::ops {
namespace {

using torch::kBFloat16;
using torch::kFloat32;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class Bf16Function : public torch::autograd::Function<Bf16Function> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, torch::Dtype result) {
    const Tensor narrow_x = x.to(kBFloat16), narrow_weight = weight.to(kBFloat16);
    context->save_for_backward({narrow_x, narrow_weight});
    context->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return at::linear(narrow_x, narrow_weight, bias.to(kBFloat16)).to(result);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor x = saved[0].reshape({-1, saved[0].size(-1)}), weight = saved[1];
    const Tensor grad = grads[0].reshape({-1, weight.size(0)});
    const Tensor narrow = grad.to(kBFloat16);
    variable_list result(4);
    if (context->needs_input_grad(0)) {
      const auto dtype = static_cast<torch::Dtype>(context->saved_data["dtype"].toInt());
      result[0] = at::mm(narrow, weight).to(dtype).view(saved[0].sizes());
    }
    if (context->needs_input_grad(1)) result[1] = at::mm(narrow.t(), x).to(kFloat32);
    if (context->needs_input_grad(2)) result[2] = grad.sum(0, false, kFloat32);
    return result;
  }
};

}  // namespace

Precision PrecisionNamed(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "bf16") return Precision::kBf16;
  throw InputError("unknown precision '", name, "'; choose fp32 or bf16");
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision,
              torch::Dtype result) {
  if (precision == Precision::kBf16) return Bf16Function::apply(x, weight, bias, result);
  return at::linear(x, weight, bias);
}

}  // namespace linnet::ops
