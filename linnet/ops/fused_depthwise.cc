#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/depthwise.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::DepthwiseShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

DepthwiseShape ShapeOf(const Tensor& x, const Tensor& weight, bool causal) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t width = size(weight.size(0));
  return {size(x.size(0)), size(x.size(1)), size(x.size(2)), width, causal ? width - 1 : width / 2};
}

class DepthwiseFunction : public torch::autograd::Function<DepthwiseFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight_in,
                        const Tensor& bias_in, const c10::optional<Tensor>& optional_lengths,
                        bool causal) {
    const Tensor x = x_in.contiguous(), weight = weight_in.contiguous(),
                 bias = bias_in.contiguous();
    Tensor lengths = optional_lengths.value_or(Tensor());
    // A length beyond L means the whole sequence.
    if (lengths.defined()) lengths = lengths.clamp(0, x.size(1)).contiguous();
    const Tensor out = torch::empty_like(x);
    kernels::DepthwiseForward(ShapeOf(x, weight, causal),
                              {.x = x.data_ptr<float>(),
                               .weight = weight.data_ptr<float>(),
                               .bias = bias.data_ptr<float>(),
                               .out = out.data_ptr<float>(),
                               .lengths = Lengths(lengths)},
                              AtParallelFor);
    context->save_for_backward({x, weight, lengths});
    context->saved_data["causal"] = causal;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("depthwise convolution");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor grad_out = grads[0].contiguous();
    const Tensor grad_x = torch::empty_like(x), grad_weight = torch::empty_like(weight);
    const Tensor grad_bias = torch::empty({weight.size(1)}, weight.options());
    kernels::DepthwiseBackward(ShapeOf(x, weight, context->saved_data["causal"].toBool()),
                               {.x = x.data_ptr<float>(),
                                .weight = weight.data_ptr<float>(),
                                .grad_out = grad_out.data_ptr<float>(),
                                .grad_x = grad_x.data_ptr<float>(),
                                .grad_weight = grad_weight.data_ptr<float>(),
                                .grad_bias = grad_bias.data_ptr<float>(),
                                .lengths = Lengths(saved[2])},
                               AtParallelFor);
    return {grad_x, grad_weight, grad_bias, Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedDepthwise(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& lengths, bool causal) {
  return DepthwiseFunction::apply(x, weight, bias, OptionalOf(lengths), causal);
}

}  // namespace linnet::ops
