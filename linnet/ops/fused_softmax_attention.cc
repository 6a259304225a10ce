#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/softmax_attention.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::SoftmaxAttentionShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

SoftmaxAttentionShape SoftmaxShapeOf(const Tensor& q, const Tensor& v) {
  return {static_cast<size_t>(q.size(0)),
          static_cast<size_t>(q.size(1)),
          static_cast<size_t>(v.size(1)),
          static_cast<size_t>(q.size(2)),
          static_cast<size_t>(q.size(3)),
          static_cast<size_t>(v.size(3)),
          static_cast<size_t>(q.size(2) / v.size(2))};
}

class SoftmaxAttentionFunction : public torch::autograd::Function<SoftmaxAttentionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in, const c10::optional<Tensor>& optional_lengths,
                        double scale, bool causal, int64_t offset, int64_t window) {
    const Tensor q = DenseRows(q_in), k = DenseRows(k_in), v = DenseRows(v_in);
    const Tensor lengths = optional_lengths ? optional_lengths->contiguous() : Tensor();
    const SoftmaxAttentionShape shape = SoftmaxShapeOf(q, v);
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const Tensor log2_sum = torch::empty({q.size(0), q.size(2), q.size(1)}, q.options());
    kernels::SoftmaxAttentionForward(shape, Options(scale, causal, offset, window),
                                     {.q = View<const float>(q),
                                      .k = View<const float>(k),
                                      .v = View<const float>(v),
                                      .out = View<float>(out),
                                      .lengths = Lengths(lengths),
                                      .log2_sum = log2_sum.data_ptr<float>()},
                                     ThreadScratch(kernels::SoftmaxAttentionScratch(shape)),
                                     AtParallelFor);
    context->save_for_backward({q, k, v, out, log2_sum, lengths});
    context->saved_data["scale"] = scale;
    context->saved_data["causal"] = causal;
    context->saved_data["offset"] = offset;
    context->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("softmax attention");
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const Tensor &log2_sum = saved[4], &lengths = saved[5];
    const Tensor grad_out = DenseRows(grads[0]);
    const SoftmaxAttentionShape shape = SoftmaxShapeOf(q, v);
    const auto dense_like = [](const Tensor& x) { return torch::empty(x.sizes(), x.options()); };
    // The kernel writes gradients of k and v for each query head. sum() adds those of the `readers`
    // query heads that share a key head.
    const int64_t readers = q.size(2) / k.size(2);
    const auto of_each_reader = [&](const Tensor& x) {
      return torch::empty({x.size(0), x.size(1), q.size(2), x.size(3)}, x.options());
    };
    const auto sum = [&](const Tensor& x) {
      return readers == 1 ? x : x.unflatten(2, {x.size(2) / readers, readers}).sum(3);
    };
    const Tensor grad_q = dense_like(q), grad_k = of_each_reader(k), grad_v = of_each_reader(v);
    const Tensor delta = dense_like(log2_sum);
    kernels::SoftmaxAttentionBackward(
        shape,
        Options(context->saved_data["scale"].toDouble(), context->saved_data["causal"].toBool(),
                context->saved_data["offset"].toInt(), context->saved_data["window"].toInt()),
        {.q = View<const float>(q),
         .k = View<const float>(k),
         .v = View<const float>(v),
         .out = View<const float>(out),
         .grad_out = View<const float>(grad_out),
         .lengths = Lengths(lengths),
         .log2_sum = log2_sum.data_ptr<float>(),
         .delta = delta.data_ptr<float>(),
         .grad_q = View<float>(grad_q),
         .grad_k = View<float>(grad_k),
         .grad_v = View<float>(grad_v)},
        ThreadScratch(kernels::SoftmaxAttentionScratch(shape)), AtParallelFor);
    const Variable none;
    return {grad_q, sum(grad_k), sum(grad_v), none, none, none, none, none};
  }

 private:
  static kernels::SoftmaxAttentionOptions Options(double scale, bool causal, int64_t offset,
                                                  int64_t window) {
    return {static_cast<float>(scale), causal, static_cast<size_t>(offset),
            static_cast<size_t>(window)};
  }
};

}  // namespace

Tensor FusedSoftmaxAttention(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                             const SoftmaxAttentionOptions& options) {
  // Absent lengths must be nullopt: autograd queries the device of each tensor, and an undefined
  // tensor has none.
  const auto lengths =
      options.lengths.defined() ? c10::optional<Tensor>(options.lengths) : c10::nullopt;
  return SoftmaxAttentionFunction::apply(q, k, v, lengths, scale, options.causal, options.offset,
                                         options.window);
}

}  // namespace linnet::ops
