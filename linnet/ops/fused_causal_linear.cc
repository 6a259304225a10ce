#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/ops/causal_linear_parts.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::CausalLinearShape;
using kernels::FeatureMap;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

CausalLinearShape ShapeOf(const Tensor& q, const Tensor& v, const Tensor& offsets) {
  return {static_cast<size_t>(offsets.defined() ? offsets.size(0) - 1 : q.size(0)),
          static_cast<size_t>(q.size(1)), static_cast<size_t>(q.size(2)),
          static_cast<size_t>(q.size(3)), static_cast<size_t>(v.size(3))};
}

class CausalLinearFunction : public torch::autograd::Function<CausalLinearFunction> {
 public:
  // Returns out and, if with_state, the final state: s and, if normalize, z.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const c10::optional<Tensor>& lengths,
                               const c10::optional<Tensor>& offsets, const c10::optional<Tensor>& s,
                               const c10::optional<Tensor>& z, bool with_state, int64_t feature_map,
                               bool normalize, double eps) {
    // Makes the rows dense before they are saved, so that the backward does not copy them again.
    const FusedCausalLinearInputs x = {DenseRows(q),
                                       DenseRows(k),
                                       DenseRows(v),
                                       lengths.value_or(Tensor()),
                                       offsets.value_or(Tensor()),
                                       {s.value_or(Tensor()), z.value_or(Tensor())}};
    const FusedCausalLinearResults y =
        FusedCausalLinearForward(x, with_state, Options(feature_map, normalize, eps));
    context->save_for_backward(
        {x.q, x.k, x.v, y.out, y.kept, x.lengths, x.offsets, x.state.s, x.state.z});
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    variable_list results = {y.out};
    if (y.state.s.defined()) results.push_back(y.state.s);
    if (y.state.z.defined()) results.push_back(y.state.z);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("causal linear attention");
    const variable_list saved = context->get_saved_variables();
    const FusedCausalLinearGradients grad = FusedCausalLinearBackward(
        {saved[0], saved[1], saved[2], saved[5], saved[6], {saved[7], saved[8]}}, saved[3],
        saved[4], grads[0],
        {grads.size() > 1 ? grads[1] : Tensor(), grads.size() > 2 ? grads[2] : Tensor()},
        Options(context->saved_data["feature_map"].toInt(),
                context->saved_data["normalize"].toBool(), context->saved_data["eps"].toDouble()));
    const Variable none;
    return {grad.q, grad.k, grad.v, none, none, grad.state.s, grad.state.z, none, none, none, none};
  }

 private:
  static CausalLinearOptions Options(int64_t feature_map, bool normalize, double eps) {
    return {static_cast<FeatureMap>(feature_map), normalize, static_cast<float>(eps)};
  }
};

}  // namespace

FusedCausalLinearResults FusedCausalLinearForward(const FusedCausalLinearInputs& inputs,
                                                  bool with_state,
                                                  const CausalLinearOptions& options) {
  const Tensor q = DenseRows(inputs.q), k = DenseRows(inputs.k), v = DenseRows(inputs.v);
  const CausalLinearShape shape = ShapeOf(q, v, inputs.offsets);
  const auto batch = static_cast<int64_t>(shape.batch);
  FusedCausalLinearResults results;
  results.out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const int64_t packed = inputs.offsets.defined() ? inputs.offsets.size(0) - 1 : 0;
  results.kept =
      torch::empty({CausalLinearKeptSize(q, v, packed)}, q.options().dtype(torch::kFloat32));
  // Copies the initial state, because the kernel overwrites it with the final state.
  const auto begin = [&](const Tensor& given, at::IntArrayRef sizes) {
    return given.defined() ? given.clone(torch::MemoryFormat::Contiguous)
                           : torch::zeros(sizes, q.options());
  };
  auto& [s, z] = results.state;
  if (with_state) s = begin(inputs.state.s, {batch, q.size(2), q.size(3), v.size(3)});
  if (with_state && options.normalize) {
    z = begin(inputs.state.z, {batch, q.size(2), q.size(3)});
  }
  const ThreadScratch scratch(kernels::CausalLinearScratch(shape));
  // The kernel reads the initial state here and overwrites it with the final state; null: no state.
  float* const s_data = Data<float>(results.state.s);
  float* const z_data = Data<float>(results.state.z);
  ForElement(q, [&](auto element) {
    using T = decltype(element);
    kernels::CausalLinearForward(
        shape, options,
        kernels::CausalLinearForwardArgsOf<T>{.q = View<const T>(q),
                                              .k = View<const T>(k),
                                              .v = View<const T>(v),
                                              .out = View<T>(results.out),
                                              .lengths = Data<int64_t>(inputs.lengths),
                                              .offsets = Data<int64_t>(inputs.offsets),
                                              .kept = results.kept.template data_ptr<float>(),
                                              .s = s_data,
                                              .z = z_data},
        scratch, AtParallelFor);
  });
  return results;
}

FusedCausalLinearGradients FusedCausalLinearBackward(const FusedCausalLinearInputs& inputs,
                                                     const Tensor& out, const Tensor& kept,
                                                     const Tensor& grad_out_in,
                                                     const CausalLinearState& state_grad,
                                                     const CausalLinearOptions& options) {
  const Tensor q = DenseRows(inputs.q), k = DenseRows(inputs.k), v = DenseRows(inputs.v);
  const auto dense = [](const Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const Tensor s0 = dense(inputs.state.s);
  const Tensor z0 = options.normalize ? dense(inputs.state.z) : Tensor();
  const Tensor grad_out = DenseRows(grad_out_in);
  const Tensor grad_s = dense(state_grad.s);
  const Tensor grad_z = options.normalize ? dense(state_grad.z) : Tensor();
  const CausalLinearShape shape = ShapeOf(q, v, inputs.offsets);
  const auto dense_like = [](const Tensor& x) {
    return x.defined() ? torch::empty(x.sizes(), x.options()) : Tensor();
  };
  const FusedCausalLinearGradients grad = {
      dense_like(q), dense_like(k), dense_like(v), {dense_like(s0), dense_like(z0)}};
  const ThreadScratch scratch(kernels::CausalLinearScratch(shape));
  ForElement(q, [&](auto element) {
    using T = decltype(element);
    kernels::CausalLinearBackward(
        shape, options,
        kernels::CausalLinearBackwardArgsOf<T>{.q = View<const T>(q),
                                               .k = View<const T>(k),
                                               .v = View<const T>(v),
                                               .out = View<const T>(out),
                                               .grad_out = View<const T>(grad_out),
                                               .kept = kept.template data_ptr<float>(),
                                               .lengths = Data<int64_t>(inputs.lengths),
                                               .offsets = Data<int64_t>(inputs.offsets),
                                               .grad_q = View<T>(grad.q),
                                               .grad_k = View<T>(grad.k),
                                               .grad_v = View<T>(grad.v),
                                               .s = Data<float>(s0),
                                               .z = Data<float>(z0),
                                               .grad_s = Data<float>(grad_s),
                                               .grad_z = Data<float>(grad_z),
                                               .grad_s0 = Data<float>(grad.state.s),
                                               .grad_z0 = Data<float>(grad.state.z)},
        scratch, AtParallelFor);
  });
  return grad;
}

Tensor FusedCausalLinear(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                         const Tensor& offsets, const CausalLinearOptions& options,
                         CausalLinearState* state) {
  const bool with_z = state && options.normalize;
  const variable_list results = CausalLinearFunction::apply(
      q, k, v, OptionalOf(lengths), OptionalOf(offsets), OptionalOf(state ? state->s : Tensor()),
      OptionalOf(with_z ? state->z : Tensor()), state != nullptr,
      static_cast<int64_t>(options.feature_map), options.normalize,
      static_cast<double>(options.eps));
  if (state) state->s = results[1];
  if (with_z) state->z = results[2];
  return results[0];
}

}  // namespace linnet::ops
