#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/head_norm.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::GatedRmsNormArgs;
using kernels::GatedRmsNormShape;
using kernels::GateFunction;
using kernels::SiluL2NormShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

SiluL2NormShape ShapeOf(const Tensor& x, int64_t normed, int64_t width, double eps) {
  const auto columns = static_cast<size_t>(x.size(-1));
  return {static_cast<size_t>(x.numel()) / columns, columns, static_cast<size_t>(normed),
          static_cast<size_t>(width), static_cast<float>(eps)};
}

class SiluL2NormFunction : public torch::autograd::Function<SiluL2NormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& given, int64_t normed,
                        int64_t width, double eps) {
    const Tensor x = given.contiguous(), y = torch::empty_like(x);
    kernels::SiluL2Norm(ShapeOf(x, normed, width, eps), Data<float>(x), Data<float>(y),
                        AtParallelFor);
    context->save_for_backward({x});
    context->saved_data["normed"] = normed;
    context->saved_data["width"] = width;
    context->saved_data["eps"] = eps;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("silu with L2 norms");
    const Tensor x = context->get_saved_variables()[0], grad_y = grads[0].contiguous();
    const Tensor grad_x = torch::empty_like(x);
    const auto& saved = context->saved_data;
    kernels::SiluL2NormBackward(ShapeOf(x, saved.at("normed").toInt(), saved.at("width").toInt(),
                                        saved.at("eps").toDouble()),
                                Data<float>(x), Data<float>(grad_y), Data<float>(grad_x),
                                AtParallelFor);
    return {grad_x, Variable(), Variable(), Variable()};
  }
};

// The gate [N, L, H, M] with its heads side by side and its rows a constant distance apart. (The
// strides of axes of size 1 mean nothing, even in a contiguous tensor.)
Tensor WithEvenRows(const Tensor& gate) {
  const auto even = [&](int64_t axis, int64_t stride) {
    return gate.size(axis) == 1 || gate.stride(axis) == stride;
  };
  const bool rows = gate.size(1) == 1 || even(0, gate.size(1) * gate.stride(1));
  return even(3, 1) && even(2, gate.size(3)) && rows ? gate : gate.contiguous();
}

size_t RowStride(const Tensor& gate) {
  return static_cast<size_t>(gate.stride(gate.size(1) > 1 ? 1 : 0));
}

GatedRmsNormShape ShapeOf(const Tensor& x, GateFunction function, double eps) {
  return {static_cast<size_t>(x.size(0) * x.size(1)), static_cast<size_t>(x.size(2)),
          static_cast<size_t>(x.size(3)), static_cast<float>(eps), function};
}

GatedRmsNormArgs ArgsOf(const Tensor& x, const Tensor& weight, const Tensor& gate) {
  return {.x = Data<float>(x),
          .weight = Data<float>(weight),
          .gate = Data<float>(gate),
          .gate_stride = gate.defined() ? RowStride(gate) : 0};
}

class GatedRmsNormFunction : public torch::autograd::Function<GatedRmsNormFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight_in,
                        const c10::optional<Tensor>& optional_gate, int64_t function, double eps) {
    const Tensor x = x_in.contiguous(), weight = weight_in.contiguous();
    Tensor gate = optional_gate.value_or(Tensor());
    if (gate.defined()) gate = WithEvenRows(gate);
    const Tensor y = torch::empty_like(x);
    kernels::GatedRmsNorm(ShapeOf(x, static_cast<GateFunction>(function), eps),
                          ArgsOf(x, weight, gate), Data<float>(y), AtParallelFor);
    context->save_for_backward({x, weight, gate});
    context->saved_data["function"] = function;
    context->saved_data["eps"] = eps;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("the gated RMS norm");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &gate = saved[2];
    const Tensor grad_y = grads[0].contiguous();
    const Tensor grad_x = torch::empty_like(x), grad_weight = torch::empty_like(weight);
    const Tensor grad_gate = gate.defined() ? torch::empty_like(x) : Tensor();
    const GatedRmsNormShape shape =
        ShapeOf(x, static_cast<GateFunction>(context->saved_data["function"].toInt()),
                context->saved_data["eps"].toDouble());
    const Tensor scratch = Floats(kernels::GatedRmsNormScratch(shape));
    kernels::GatedRmsNormBackward(shape, ArgsOf(x, weight, gate), Data<float>(grad_y),
                                  {.x = Data<float>(grad_x),
                                   .gate = Data<float>(grad_gate),
                                   .weight = Data<float>(grad_weight)},
                                  Data<float>(scratch), AtParallelFor);
    return {grad_x, grad_weight, grad_gate, Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedSiluL2Norm(const Tensor& x, int64_t normed, int64_t width, double eps) {
  return SiluL2NormFunction::apply(x, normed, width, eps);
}

Tensor FusedGatedRmsNorm(const Tensor& x, const Tensor& weight, const Tensor& gate,
                         GateFunction function, double eps) {
  return GatedRmsNormFunction::apply(x, weight, OptionalOf(gate), static_cast<int64_t>(function),
                                     eps);
}

}  // namespace linnet::ops
