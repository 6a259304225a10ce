#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::BFloat16;
using kernels::LinearAttentionOptions;
using kernels::LinearAttentionShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

LinearAttentionShape LinearShapeOf(const Tensor& q, const Tensor& v) {
  return {static_cast<size_t>(q.size(0)), static_cast<size_t>(q.size(1)),
          static_cast<size_t>(v.size(1)), static_cast<size_t>(q.size(2)),
          static_cast<size_t>(q.size(3)), static_cast<size_t>(v.size(3))};
}

class LinearAttentionFunction : public torch::autograd::Function<LinearAttentionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in, const c10::optional<Tensor>& optional_lengths,
                        int64_t feature_map, bool normalize, double eps) {
    const Tensor q = DenseRows(q_in), k = DenseRows(k_in), v = DenseRows(v_in);
    const Tensor lengths = optional_lengths.value_or(Tensor());
    const LinearAttentionShape shape = LinearShapeOf(q, v);
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const Tensor kept = Floats(kernels::LinearAttentionKept(shape));
    const ThreadScratch scratch(kernels::LinearAttentionScratch(shape));
    ForElement(q, [&](auto element) {
      using T = decltype(element);
      kernels::LinearAttentionForward(
          shape, Options(feature_map, normalize, eps),
          kernels::LinearAttentionForwardArgsOf<T>{.q = View<const T>(q),
                                                   .k = View<const T>(k),
                                                   .v = View<const T>(v),
                                                   .out = View<T>(out),
                                                   .lengths = Lengths(lengths),
                                                   .kept = kept.data_ptr<float>()},
          scratch, AtParallelFor);
    });
    context->save_for_backward({q, k, v, out, kept, lengths});
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("linear attention");
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &kept = saved[4];
    const Tensor grad_out = DenseRows(grads[0]);
    const LinearAttentionShape shape = LinearShapeOf(q, v);
    const auto dense_like = [](const Tensor& x) { return torch::empty(x.sizes(), x.options()); };
    const Tensor grad_q = dense_like(q), grad_k = dense_like(k), grad_v = dense_like(v);
    const ThreadScratch scratch(kernels::LinearAttentionScratch(shape));
    ForElement(q, [&](auto element) {
      using T = decltype(element);
      kernels::LinearAttentionBackward(
          shape,
          Options(context->saved_data["feature_map"].toInt(),
                  context->saved_data["normalize"].toBool(), context->saved_data["eps"].toDouble()),
          kernels::LinearAttentionBackwardArgsOf<T>{.q = View<const T>(q),
                                                    .k = View<const T>(k),
                                                    .v = View<const T>(v),
                                                    .out = View<const T>(out),
                                                    .grad_out = View<const T>(grad_out),
                                                    .kept = kept.data_ptr<float>(),
                                                    .lengths = Lengths(saved[5]),
                                                    .grad_q = View<T>(grad_q),
                                                    .grad_k = View<T>(grad_k),
                                                    .grad_v = View<T>(grad_v)},
          scratch, AtParallelFor);
    });
    const Variable none;
    return {grad_q, grad_k, grad_v, none, none, none, none};
  }

 private:
  static LinearAttentionOptions Options(int64_t feature_map, bool normalize, double eps) {
    return {static_cast<kernels::FeatureMap>(feature_map), normalize, static_cast<float>(eps)};
  }
};

}  // namespace

Tensor FusedLinearAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& lengths, const LinearAttentionOptions& options) {
  return LinearAttentionFunction::apply(q, k, v, OptionalOf(lengths),
                                        static_cast<int64_t>(options.feature_map),
                                        options.normalize, static_cast<double>(options.eps));
}

}  // namespace linnet::ops
