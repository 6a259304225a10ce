#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::CausalLinearShape;
using kernels::FeatureMap;
using kernels::Strided;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Tensor DenseRows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

template <typename T>
Strided<T> View(const Tensor& x) {
  return {x.data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)};
}

// The data of a tensor that may be undefined.
template <typename T>
T* Data(const Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
}

CausalLinearShape ShapeOf(const Tensor& q, const Tensor& v, const Tensor& offsets) {
  return {static_cast<size_t>(offsets.defined() ? offsets.size(0) - 1 : q.size(0)),
          static_cast<size_t>(q.size(1)), static_cast<size_t>(q.size(2)),
          static_cast<size_t>(q.size(3)), static_cast<size_t>(v.size(3))};
}

// An absent tensor must be absent for autograd too: it asks an undefined one for its device.
c10::optional<Tensor> Optional(const Tensor& x) {
  return x.defined() ? c10::optional<Tensor>(x) : c10::nullopt;
}

class Function : public torch::autograd::Function<Function> {
 public:
  // out; and the state after it where one is wanted: s, and z where normalize is true.
  static variable_list forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                               const Tensor& v_in, const c10::optional<Tensor>& optional_lengths,
                               const c10::optional<Tensor>& optional_offsets,
                               const c10::optional<Tensor>& optional_s,
                               const c10::optional<Tensor>& optional_z, bool with_state,
                               int64_t feature_map, bool normalize, double eps) {
    const Tensor q = DenseRows(q_in), k = DenseRows(k_in), v = DenseRows(v_in);
    const Tensor lengths = optional_lengths.value_or(Tensor());
    const Tensor offsets = optional_offsets.value_or(Tensor());
    const CausalLinearShape shape = ShapeOf(q, v, offsets);
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const Tensor denominator = torch::empty({q.size(0), q.size(2), q.size(1)}, q.options());
    // The state before the first position is kept for the backward; the kernel writes to a copy.
    Tensor s0, z0, s, z;
    const auto batch = static_cast<int64_t>(shape.batch);
    if (with_state) {
      if (optional_s) s0 = optional_s->contiguous();
      s = s0.defined() ? s0.clone()
                       : torch::zeros({batch, q.size(2), q.size(3), v.size(3)}, q.options());
    }
    if (with_state && normalize) {
      if (optional_z) z0 = optional_z->contiguous();
      z = z0.defined() ? z0.clone() : torch::zeros({batch, q.size(2), q.size(3)}, q.options());
    }
    const size_t slots = AtSlots();
    const Tensor scratch = torch::empty(
        {static_cast<int64_t>(slots * kernels::CausalLinearScratch(shape))}, q.options());
    kernels::CausalLinearForward(shape, Options(feature_map, normalize, eps),
                                 {.q = View<const float>(q),
                                  .k = View<const float>(k),
                                  .v = View<const float>(v),
                                  .out = View<float>(out),
                                  .lengths = Data<int64_t>(lengths),
                                  .offsets = Data<int64_t>(offsets),
                                  .denominator = denominator.data_ptr<float>(),
                                  .s = Data<float>(s),
                                  .z = Data<float>(z)},
                                 {scratch.data_ptr<float>(), slots}, AtParallelFor);
    context->save_for_backward({q, k, v, out, denominator, lengths, offsets, s0, z0});
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    variable_list results = {out};
    if (s.defined()) results.push_back(s);
    if (z.defined()) results.push_back(z);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lengths = saved[5];
    const Tensor &offsets = saved[6], &s0 = saved[7], &z0 = saved[8];
    const Tensor grad_out = DenseRows(grads[0]);
    const Tensor grad_s = grads.size() > 1 ? grads[1].contiguous() : Tensor();
    const Tensor grad_z = grads.size() > 2 ? grads[2].contiguous() : Tensor();
    const CausalLinearShape shape = ShapeOf(q, v, offsets);
    const auto dense_like = [](const Tensor& x) {
      return x.defined() ? torch::empty(x.sizes(), x.options()) : Tensor();
    };
    const Tensor grad_q = dense_like(q), grad_k = dense_like(k), grad_v = dense_like(v);
    const Tensor grad_s0 = dense_like(s0), grad_z0 = dense_like(z0);
    const size_t slots = AtSlots();
    const Tensor scratch = torch::empty(
        {static_cast<int64_t>(slots * kernels::CausalLinearScratch(shape))}, q.options());
    kernels::CausalLinearBackward(
        shape,
        Options(context->saved_data["feature_map"].toInt(),
                context->saved_data["normalize"].toBool(), context->saved_data["eps"].toDouble()),
        {.q = View<const float>(q),
         .k = View<const float>(k),
         .v = View<const float>(v),
         .out = View<const float>(out),
         .grad_out = View<const float>(grad_out),
         .denominator = saved[4].data_ptr<float>(),
         .lengths = Data<int64_t>(lengths),
         .offsets = Data<int64_t>(offsets),
         .grad_q = View<float>(grad_q),
         .grad_k = View<float>(grad_k),
         .grad_v = View<float>(grad_v),
         .s = Data<float>(s0),
         .z = Data<float>(z0),
         .grad_s = Data<float>(grad_s),
         .grad_z = Data<float>(grad_z),
         .grad_s0 = Data<float>(grad_s0),
         .grad_z0 = Data<float>(grad_z0)},
        {scratch.data_ptr<float>(), slots}, AtParallelFor);
    const Variable none;
    return {grad_q, grad_k, grad_v, none, none, grad_s0, grad_z0, none, none, none, none};
  }

 private:
  static CausalLinearOptions Options(int64_t feature_map, bool normalize, double eps) {
    return {static_cast<FeatureMap>(feature_map), normalize, static_cast<float>(eps)};
  }
};

}  // namespace

Tensor FusedCausalLinear(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                         const Tensor& offsets, const CausalLinearOptions& options,
                         CausalLinearState* state) {
  const bool with_z = state && options.normalize;
  const variable_list results =
      Function::apply(q, k, v, Optional(lengths), Optional(offsets),
                      Optional(state ? state->s : Tensor()), Optional(with_z ? state->z : Tensor()),
                      state != nullptr, static_cast<int64_t>(options.feature_map),
                      options.normalize, static_cast<double>(options.eps));
  if (state) state->s = results[1];
  if (with_z) state->z = results[2];
  return results[0];
}

}  // namespace linnet::ops
