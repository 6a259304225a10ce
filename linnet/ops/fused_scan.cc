#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::ScanDecay;
using kernels::ScanOptions;
using kernels::ScanShape;
using kernels::ScanTensors;
using kernels::ScanWrite;
using kernels::Strided;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using OptionalTensor = c10::optional<Tensor>;

template <typename T>
T* DataOrNull(const Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
}
template <typename T>
Strided<T> ViewOrNull(const Tensor& x) {
  return x.defined() ? View<T>(x) : Strided<T>();
}
template <typename T>
ScanTensors<T> Views(const ScanInputs& x) {
  return {ViewOrNull<T>(x.q),     ViewOrNull<T>(x.k),     ViewOrNull<T>(x.v),
          ViewOrNull<T>(x.decay), ViewOrNull<T>(x.erase), ViewOrNull<T>(x.write)};
}

ScanShape ShapeOf(const ScanInputs& in) {
  const auto size = [](const Tensor& x, int64_t axis) { return static_cast<size_t>(x.size(axis)); };
  return {.batch = size(in.q, 0),
          .length = size(in.q, 1),
          .heads = size(in.v, 2),
          .dim = size(in.q, 3),
          .value_dim = size(in.v, 3),
          .group = size(in.v, 2) / size(in.q, 2)};
}

class ScanFunction : public torch::autograd::Function<ScanFunction> {
 public:
  // Returns out and the final state.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const OptionalTensor& decay,
                               const OptionalTensor& erase, const OptionalTensor& write,
                               const OptionalTensor& lengths, const OptionalTensor& s0,
                               int64_t decay_kind, int64_t write_kind, double scale) {
    const auto dense = [](const OptionalTensor& x) { return x ? DenseRows(*x) : Tensor(); };
    const ScanInputs in = {DenseRows(q), DenseRows(k), DenseRows(v),
                           dense(decay), dense(erase), dense(write)};
    const ScanOptions options = Options(decay_kind, write_kind, scale);
    const ScanShape shape = ShapeOf(in);
    const Tensor out = torch::empty(v.sizes(), v.options());
    const Tensor kept = Floats(kernels::ScanKept(shape, options));
    const Tensor s = s0 ? s0->clone(torch::MemoryFormat::Contiguous)
                        : torch::zeros({v.size(0), v.size(2), q.size(3), v.size(3)}, v.options());
    const ThreadScratch scratch(kernels::ScanForwardScratch(shape, options));
    kernels::ScanForward(shape, options,
                         {.in = Views<const float>(in),
                          .out = View<float>(out),
                          .lengths = DataOrNull<int64_t>(lengths.value_or(Tensor())),
                          .kept = kept.data_ptr<float>(),
                          .s = s.data_ptr<float>()},
                         scratch, AtParallelFor);
    context->save_for_backward(
        {in.q, in.k, in.v, in.decay, in.erase, in.write, lengths.value_or(Tensor()), kept, out});
    context->saved_data["decay"] = decay_kind;
    context->saved_data["write"] = write_kind;
    context->saved_data["scale"] = scale;
    context->saved_data["begun"] = s0.has_value();
    return {out, s};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("scan");
    const variable_list saved = context->get_saved_variables();
    const ScanInputs in = {saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]};
    const ScanOptions options =
        Options(context->saved_data["decay"].toInt(), context->saved_data["write"].toInt(),
                context->saved_data["scale"].toDouble());
    const ScanShape shape = ShapeOf(in);
    const Tensor &q = in.q, &v = in.v;
    const auto like = [](const Tensor& x) {
      return x.defined() ? torch::empty(x.sizes(), x.options()) : Tensor();
    };
    // The kernel writes the gradients of q and k for each head of v. shared() adds them over the
    // heads of a group.
    const Tensor by_head =
        torch::empty({2, q.size(0), q.size(1), v.size(2), q.size(3)}, q.options());
    const ScanInputs grad = {by_head[0],     by_head[1],     like(in.v),
                             like(in.decay), like(in.erase), like(in.write)};
    const Tensor grad_out =
        grads[0].defined() ? DenseRows(grads[0]) : torch::zeros(v.sizes(), v.options());
    const Tensor grad_s = grads[1].defined() ? grads[1].contiguous() : Tensor();
    const Tensor grad_s0 =
        context->saved_data["begun"].toBool()
            ? torch::empty({v.size(0), v.size(2), q.size(3), v.size(3)}, v.options())
            : Tensor();
    const ThreadScratch scratch(kernels::ScanBackwardScratch(shape, options));
    kernels::ScanBackward(shape, options,
                          {.in = Views<const float>(in),
                           .out = View<const float>(saved[8]),
                           .grad_out = View<const float>(grad_out),
                           .kept = saved[7].data_ptr<float>(),
                           .lengths = DataOrNull<int64_t>(saved[6]),
                           .grad = Views<float>(grad),
                           .grad_s = DataOrNull<float>(grad_s),
                           .grad_s0 = DataOrNull<float>(grad_s0)},
                          scratch, AtParallelFor);
    const auto shared = [&](const Tensor& x) {
      if (shape.group == 1) return x;
      return x.unflatten(2, {q.size(2), static_cast<int64_t>(shape.group)}).sum(3);
    };
    const Variable none;
    return {shared(grad.q), shared(grad.k), grad.v, grad.decay, grad.erase, grad.write,
            none,           grad_s0,        none,   none,       none};
  }

 private:
  static ScanOptions Options(int64_t decay, int64_t write, double scale) {
    return {.decay = static_cast<ScanDecay>(decay),
            .write = static_cast<ScanWrite>(write),
            .scale = static_cast<float>(scale)};
  }
};

// A view of x [N, L, C] as [N, L, 1, C].
template <typename T>
Strided<T> ChannelView(const Tensor& x) {
  return View<T>(x.unsqueeze(2));
}

kernels::ChannelScanShape ChannelShapeOf(const Tensor& x) {
  return {static_cast<size_t>(x.size(0)), static_cast<size_t>(x.size(1)),
          static_cast<size_t>(x.size(2))};
}

class ChannelFunction : public torch::autograd::Function<ChannelFunction> {
 public:
  // Returns out and the final state.
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& g,
                               const OptionalTensor& lengths, const OptionalTensor& h0) {
    const Tensor dense_x = DenseRows(x), dense_g = DenseRows(g);
    const Tensor out = torch::empty(x.sizes(), x.options());
    const Tensor h = h0 ? h0->clone(torch::MemoryFormat::Contiguous)
                        : torch::zeros({x.size(0), x.size(2)}, x.options());
    kernels::ChannelScanForward(ChannelShapeOf(x),
                                {.x = ChannelView<const float>(dense_x),
                                 .g = ChannelView<const float>(dense_g),
                                 .out = ChannelView<float>(out),
                                 .lengths = DataOrNull<int64_t>(lengths.value_or(Tensor())),
                                 .h = h.data_ptr<float>()},
                                AtParallelFor);
    context->save_for_backward({dense_g, lengths.value_or(Tensor()), out, h0.value_or(Tensor())});
    return {out, h};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("scan");
    const variable_list saved = context->get_saved_variables();
    const Tensor &g = saved[0], &out = saved[2];
    const Tensor h0 = saved[3].defined() ? saved[3].contiguous() : Tensor();
    const Tensor grad_out =
        grads[0].defined() ? DenseRows(grads[0]) : torch::zeros(out.sizes(), out.options());
    const Tensor grad_h = grads[1].defined() ? grads[1].contiguous() : Tensor();
    const Tensor grad_x = torch::empty(out.sizes(), out.options());
    const Tensor grad_g = torch::empty(out.sizes(), out.options());
    const Tensor grad_h0 = h0.defined() ? torch::empty(h0.sizes(), h0.options()) : Tensor();
    kernels::ChannelScanBackward(ChannelShapeOf(out),
                                 {.g = ChannelView<const float>(g),
                                  .out = ChannelView<const float>(out),
                                  .grad_out = ChannelView<const float>(grad_out),
                                  .lengths = DataOrNull<int64_t>(saved[1]),
                                  .h0 = DataOrNull<float>(h0),
                                  .grad_h = DataOrNull<float>(grad_h),
                                  .grad_x = ChannelView<float>(grad_x),
                                  .grad_g = ChannelView<float>(grad_g),
                                  .grad_h0 = DataOrNull<float>(grad_h0)},
                                 AtParallelFor);
    return {grad_x, grad_g, Variable(), grad_h0};
  }
};

}  // namespace

Tensor FusedChannelScan(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor* state) {
  const variable_list results =
      ChannelFunction::apply(x, g, OptionalOf(lengths), OptionalOf(state ? *state : Tensor()));
  if (state) *state = results[1];
  return results[0];
}

Tensor FusedScan(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
                 Tensor* state) {
  const bool decays = options.decay != ScanDecay::kNone, erases = options.write != ScanWrite::kAdd;
  const bool writes = erases && options.write != ScanWrite::kDelta;
  const variable_list results = ScanFunction::apply(
      in.q, in.k, in.v, OptionalOf(decays ? in.decay : Tensor()),
      OptionalOf(erases ? in.erase : Tensor()), OptionalOf(writes ? in.write : Tensor()),
      OptionalOf(lengths), OptionalOf(state ? *state : Tensor()),
      static_cast<int64_t>(options.decay), static_cast<int64_t>(options.write),
      static_cast<double>(options.scale));
  if (state) *state = results[1];
  return results[0];
}

}  // namespace linnet::ops
