#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/lsh_attention.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::LshAttentionOptions;
using kernels::LshAttentionShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

LshAttentionShape ShapeOf(const Tensor& q, const Tensor& v, int64_t rounds) {
  return {static_cast<size_t>(q.size(0)), static_cast<size_t>(q.size(1)),
          static_cast<size_t>(q.size(2)), static_cast<size_t>(q.size(3)),
          static_cast<size_t>(v.size(3)), static_cast<size_t>(rounds)};
}

class LshAttentionFunction : public torch::autograd::Function<LshAttentionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& q_in, const Tensor& v_in,
                        const c10::optional<Tensor>& optional_lengths, const Tensor& planes_in,
                        int64_t buckets, int64_t chunk, bool causal) {
    const Tensor q = DenseRows(q_in), v = DenseRows(v_in), planes = planes_in.contiguous();
    const Tensor lengths = optional_lengths ? optional_lengths->contiguous() : Tensor();
    const LshAttentionShape shape = ShapeOf(q, v, planes.size(0));
    const LshAttentionOptions options = Options(buckets, chunk, causal);
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    // places and sums: the forward writes them for the backward (kernels/lsh_attention.h).
    const Tensor places =
        torch::empty({static_cast<int64_t>(LshAttentionPlaces(shape))}, torch::kInt32);
    const Tensor sums = torch::empty({static_cast<int64_t>(LshAttentionSums(shape))}, q.options());
    kernels::LshAttentionForward(shape, options,
                                 {.q = View<const float>(q),
                                  .v = View<const float>(v),
                                  .out = View<float>(out),
                                  .planes = planes.data_ptr<float>(),
                                  .lengths = Lengths(lengths),
                                  .places = places.data_ptr<int32_t>(),
                                  .sums = sums.data_ptr<float>()},
                                 ThreadScratch(kernels::LshAttentionScratch(shape, options)),
                                 AtParallelFor);
    context->save_for_backward({q, v, out, places, sums, lengths});
    context->saved_data["rounds"] = planes.size(0);
    context->saved_data["buckets"] = buckets;
    context->saved_data["chunk"] = chunk;
    context->saved_data["causal"] = causal;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("LSH attention");
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &v = saved[1], &out = saved[2], &places = saved[3];
    const Tensor &sums = saved[4], &lengths = saved[5], grad_out = DenseRows(grads[0]);
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    const LshAttentionShape shape = ShapeOf(q, v, number("rounds"));
    const LshAttentionOptions options =
        Options(number("buckets"), number("chunk"), context->saved_data["causal"].toBool());
    const Tensor grad_q = torch::empty(q.sizes(), q.options());
    const Tensor grad_v = torch::empty(v.sizes(), v.options());
    const Tensor delta = torch::empty({q.size(0), q.size(2), q.size(1)}, q.options());
    kernels::LshAttentionBackward(shape, options,
                                  {.q = View<const float>(q),
                                   .v = View<const float>(v),
                                   .out = View<const float>(out),
                                   .grad_out = View<const float>(grad_out),
                                   .lengths = Lengths(lengths),
                                   .places = places.data_ptr<int32_t>(),
                                   .sums = sums.data_ptr<float>(),
                                   .delta = delta.data_ptr<float>(),
                                   .grad_q = View<float>(grad_q),
                                   .grad_v = View<float>(grad_v)},
                                  ThreadScratch(kernels::LshAttentionScratch(shape, options)),
                                  AtParallelFor);
    const Variable none;
    return {grad_q, grad_v, none, none, none, none, none};
  }

 private:
  static LshAttentionOptions Options(int64_t buckets, int64_t chunk, bool causal) {
    return {static_cast<size_t>(buckets), static_cast<size_t>(chunk), causal};
  }
};

}  // namespace

Tensor FusedLshAttention(const Tensor& q, const Tensor& v, const Tensor& lengths,
                         const Tensor& planes, const LshOptions& options) {
  // Absent lengths must be nullopt: autograd queries the device of each tensor, and an undefined
  // tensor has none.
  const auto present = lengths.defined() ? c10::optional<Tensor>(lengths) : c10::nullopt;
  return LshAttentionFunction::apply(q, v, present, planes.detach(), options.buckets, options.chunk,
                                     options.causal);
}

}  // namespace linnet::ops
