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

CausalLinearShape ShapeOf(const Tensor& q, const Tensor& v) {
  return {static_cast<size_t>(q.size(0)), static_cast<size_t>(q.size(1)),
          static_cast<size_t>(q.size(2)), static_cast<size_t>(q.size(3)),
          static_cast<size_t>(v.size(3))};
}

class Function : public torch::autograd::Function<Function> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in, const c10::optional<Tensor>& optional_lengths,
                        int64_t feature_map, bool normalize, double eps) {
    const Tensor q = DenseRows(q_in), k = DenseRows(k_in), v = DenseRows(v_in);
    const Tensor lengths = optional_lengths.value_or(Tensor());
    const CausalLinearShape shape = ShapeOf(q, v);
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const Tensor denominator = torch::empty({q.size(0), q.size(2), q.size(1)}, q.options());
    const size_t slots = AtSlots();
    const Tensor scratch = torch::empty(
        {static_cast<int64_t>(slots * kernels::CausalLinearScratch(shape))}, q.options());
    kernels::CausalLinearForward(
        shape, Options(feature_map, normalize, eps),
        {.q = View<const float>(q),
         .k = View<const float>(k),
         .v = View<const float>(v),
         .out = View<float>(out),
         .lengths = lengths.defined() ? lengths.data_ptr<int64_t>() : nullptr,
         .denominator = denominator.data_ptr<float>()},
        {scratch.data_ptr<float>(), slots}, AtParallelFor);
    context->save_for_backward({q, k, v, out, denominator, lengths});
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lengths = saved[5];
    const Tensor grad_out = DenseRows(grads[0]);
    const CausalLinearShape shape = ShapeOf(q, v);
    const auto dense_like = [](const Tensor& x) { return torch::empty(x.sizes(), x.options()); };
    const Tensor grad_q = dense_like(q), grad_k = dense_like(k), grad_v = dense_like(v);
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
         .lengths = lengths.defined() ? lengths.data_ptr<int64_t>() : nullptr,
         .grad_q = View<float>(grad_q),
         .grad_k = View<float>(grad_k),
         .grad_v = View<float>(grad_v)},
        {scratch.data_ptr<float>(), slots}, AtParallelFor);
    return {grad_q, grad_k, grad_v, Variable(), Variable(), Variable(), Variable()};
  }

 private:
  static CausalLinearOptions Options(int64_t feature_map, bool normalize, double eps) {
    return {static_cast<FeatureMap>(feature_map), normalize, static_cast<float>(eps)};
  }
};

}  // namespace

Tensor FusedCausalLinear(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                         const CausalLinearOptions& options) {
  // An absent tensor must be absent for autograd too: it asks an undefined one for its device.
  const c10::optional<Tensor> optional_lengths =
      lengths.defined() ? c10::optional<Tensor>(lengths) : c10::nullopt;
  return Function::apply(q, k, v, optional_lengths, static_cast<int64_t>(options.feature_map),
                         options.normalize, static_cast<double>(options.eps));
}

}  // namespace linnet::ops
