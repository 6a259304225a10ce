// The scans of ops/scan.h as autograd functions (private to linnet/ops), over the kernels of a
// Backend: those of the CPU (fused_scan.cc) or of a GPU (cuda_scan.cc). A Backend is constructed
// from a tensor, on whose device it computes, and has these members:
//
//   static Tensor Rows(const Tensor& x)   x [N, L, H, width], or a copy whose rows the kernels take
//   static size_t Kept(shape, options)    floats that the forward keeps for the backward
//   Forward(shape, options, args)         ScanForward of the Backend's kernels
//   Backward(shape, options, args)        ScanBackward
//   Forward(shape, args)                  ChannelScanForward
//   Backward(shape, args)                 ChannelScanBackward
#ifndef LINNET_OPS_SCAN_FUNCTION_H_
#define LINNET_OPS_SCAN_FUNCTION_H_

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/ops/rows_view.h"
#include "linnet/ops/scan.h"

namespace linnet::ops {

template <typename T>
T* DataOrNull(const torch::Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
}
template <typename T>
kernels::Strided<T> ViewOrNull(const torch::Tensor& x) {
  return x.defined() ? View<T>(x) : kernels::Strided<T>();
}
template <typename T>
kernels::ScanTensors<T> Views(const ScanInputs& x) {
  return {ViewOrNull<T>(x.q),     ViewOrNull<T>(x.k),     ViewOrNull<T>(x.v),
          ViewOrNull<T>(x.decay), ViewOrNull<T>(x.erase), ViewOrNull<T>(x.write)};
}

inline kernels::ScanShape ShapeOf(const ScanInputs& in) {
  const auto size = [](const torch::Tensor& x, int64_t axis) {
    return static_cast<size_t>(x.size(axis));
  };
  return {.batch = size(in.q, 0),
          .length = size(in.q, 1),
          .heads = size(in.v, 2),
          .dim = size(in.q, 3),
          .value_dim = size(in.v, 3),
          .group = size(in.v, 2) / size(in.q, 2)};
}

// The scan of a batch. Backend: see the top of this file.
template <class Backend>
class ScanFunction : public torch::autograd::Function<ScanFunction<Backend>> {
 public:
  // Returns out and the final state.
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context, const torch::Tensor& q, const torch::Tensor& k,
      const torch::Tensor& v, const c10::optional<torch::Tensor>& decay,
      const c10::optional<torch::Tensor>& erase, const c10::optional<torch::Tensor>& write,
      const c10::optional<torch::Tensor>& lengths, const c10::optional<torch::Tensor>& s0,
      int64_t decay_kind, int64_t write_kind, double scale) {
    const Backend backend(q);
    const auto rows = [](const c10::optional<torch::Tensor>& x) {
      return x ? Backend::Rows(*x) : torch::Tensor();
    };
    const ScanInputs in = {Backend::Rows(q), Backend::Rows(k), Backend::Rows(v),
                           rows(decay),      rows(erase),      rows(write)};
    const kernels::ScanOptions options = Options(decay_kind, write_kind, scale);
    const kernels::ScanShape shape = ShapeOf(in);
    const torch::Tensor out = torch::empty(v.sizes(), v.options());
    const torch::Tensor kept =
        torch::empty({static_cast<int64_t>(Backend::Kept(shape, options))}, v.options());
    const torch::Tensor s =
        s0 ? s0->clone(torch::MemoryFormat::Contiguous)
           : torch::zeros({v.size(0), v.size(2), q.size(3), v.size(3)}, v.options());
    backend.Forward(shape, options,
                    {.in = Views<const float>(in),
                     .out = View<float>(out),
                     .lengths = DataOrNull<int64_t>(lengths.value_or(torch::Tensor())),
                     .kept = kept.data_ptr<float>(),
                     .s = s.data_ptr<float>()});
    context->save_for_backward({in.q, in.k, in.v, in.decay, in.erase, in.write,
                                lengths.value_or(torch::Tensor()), kept, out});
    context->saved_data["decay"] = decay_kind;
    context->saved_data["write"] = write_kind;
    context->saved_data["scale"] = scale;
    context->saved_data["begun"] = s0.has_value();
    return {out, s};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    RefuseSecondDerivative("scan");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const ScanInputs in = {saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]};
    const kernels::ScanOptions options =
        Options(context->saved_data["decay"].toInt(), context->saved_data["write"].toInt(),
                context->saved_data["scale"].toDouble());
    const kernels::ScanShape shape = ShapeOf(in);
    const torch::Tensor &q = in.q, &v = in.v;
    const Backend backend(q);
    const auto like = [](const torch::Tensor& x) {
      return x.defined() ? torch::empty(x.sizes(), x.options()) : torch::Tensor();
    };
    // The kernel writes the gradients of q and k for each head of v. shared() adds them over the
    // heads of a group.
    const torch::Tensor by_head =
        torch::empty({2, q.size(0), q.size(1), v.size(2), q.size(3)}, q.options());
    const ScanInputs grad = {by_head[0],     by_head[1],     like(in.v),
                             like(in.decay), like(in.erase), like(in.write)};
    const torch::Tensor grad_out =
        grads[0].defined() ? Backend::Rows(grads[0]) : torch::zeros(v.sizes(), v.options());
    const torch::Tensor grad_s = grads[1].defined() ? grads[1].contiguous() : torch::Tensor();
    const torch::Tensor grad_s0 =
        context->saved_data["begun"].toBool()
            ? torch::empty({v.size(0), v.size(2), q.size(3), v.size(3)}, v.options())
            : torch::Tensor();
    backend.Backward(shape, options,
                     {.in = Views<const float>(in),
                      .out = View<const float>(saved[8]),
                      .grad_out = View<const float>(grad_out),
                      .kept = saved[7].data_ptr<float>(),
                      .lengths = DataOrNull<int64_t>(saved[6]),
                      .grad = Views<float>(grad),
                      .grad_s = DataOrNull<float>(grad_s),
                      .grad_s0 = DataOrNull<float>(grad_s0)});
    const auto shared = [&](const torch::Tensor& x) {
      if (shape.group == 1) return x;
      return x.unflatten(2, {q.size(2), static_cast<int64_t>(shape.group)}).sum(3);
    };
    const torch::autograd::Variable none;
    return {shared(grad.q), shared(grad.k), grad.v, grad.decay, grad.erase, grad.write,
            none,           grad_s0,        none,   none,       none};
  }

 private:
  static kernels::ScanOptions Options(int64_t decay, int64_t write, double scale) {
    return {.decay = static_cast<kernels::ScanDecay>(decay),
            .write = static_cast<kernels::ScanWrite>(write),
            .scale = static_cast<float>(scale)};
  }
};

// A view of x [N, L, C] as [N, L, 1, C].
template <typename T>
kernels::Strided<T> ChannelView(const torch::Tensor& x) {
  return View<T>(x.unsqueeze(2));
}

inline kernels::ChannelScanShape ChannelShapeOf(const torch::Tensor& x) {
  return {static_cast<size_t>(x.size(0)), static_cast<size_t>(x.size(1)),
          static_cast<size_t>(x.size(2))};
}

// The scan by channel.
template <class Backend>
class ChannelScanFunction : public torch::autograd::Function<ChannelScanFunction<Backend>> {
 public:
  // Returns out and the final state.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const torch::Tensor& x, const torch::Tensor& g,
                                                const c10::optional<torch::Tensor>& lengths,
                                                const c10::optional<torch::Tensor>& h0) {
    const torch::Tensor dense_x = DenseRows(x), dense_g = DenseRows(g);
    const torch::Tensor out = torch::empty(x.sizes(), x.options());
    const torch::Tensor h = h0 ? h0->clone(torch::MemoryFormat::Contiguous)
                               : torch::zeros({x.size(0), x.size(2)}, x.options());
    Backend(x).Forward(ChannelShapeOf(x),
                       {.x = ChannelView<const float>(dense_x),
                        .g = ChannelView<const float>(dense_g),
                        .out = ChannelView<float>(out),
                        .lengths = DataOrNull<int64_t>(lengths.value_or(torch::Tensor())),
                        .h = h.data_ptr<float>()});
    context->save_for_backward(
        {dense_g, lengths.value_or(torch::Tensor()), out, h0.value_or(torch::Tensor())});
    return {out, h};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    RefuseSecondDerivative("scan");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const torch::Tensor &g = saved[0], &out = saved[2];
    const torch::Tensor h0 = saved[3].defined() ? saved[3].contiguous() : torch::Tensor();
    const torch::Tensor grad_out =
        grads[0].defined() ? DenseRows(grads[0]) : torch::zeros(out.sizes(), out.options());
    const torch::Tensor grad_h = grads[1].defined() ? grads[1].contiguous() : torch::Tensor();
    const torch::Tensor grad_x = torch::empty(out.sizes(), out.options());
    const torch::Tensor grad_g = torch::empty(out.sizes(), out.options());
    const torch::Tensor grad_h0 =
        h0.defined() ? torch::empty(h0.sizes(), h0.options()) : torch::Tensor();
    Backend(out).Backward(ChannelShapeOf(out), {.g = ChannelView<const float>(g),
                                                .out = ChannelView<const float>(out),
                                                .grad_out = ChannelView<const float>(grad_out),
                                                .lengths = DataOrNull<int64_t>(saved[1]),
                                                .h0 = DataOrNull<float>(h0),
                                                .grad_h = DataOrNull<float>(grad_h),
                                                .grad_x = ChannelView<float>(grad_x),
                                                .grad_g = ChannelView<float>(grad_g),
                                                .grad_h0 = DataOrNull<float>(grad_h0)});
    return {grad_x, grad_g, torch::autograd::Variable(), grad_h0};
  }
};

// Calls ScanFunction with the tensors that the options use. state: null if no state is carried.
template <class Backend>
torch::Tensor ApplyScan(const ScanInputs& in, const kernels::ScanOptions& options,
                        const torch::Tensor& lengths, torch::Tensor* state) {
  const bool decays = options.decay != kernels::ScanDecay::kNone,
             erases = options.write != kernels::ScanWrite::kAdd;
  const bool writes = erases && options.write != kernels::ScanWrite::kDelta;
  const torch::autograd::variable_list results = ScanFunction<Backend>::apply(
      in.q, in.k, in.v, OptionalOf(decays ? in.decay : torch::Tensor()),
      OptionalOf(erases ? in.erase : torch::Tensor()),
      OptionalOf(writes ? in.write : torch::Tensor()), OptionalOf(lengths),
      OptionalOf(state ? *state : torch::Tensor()), static_cast<int64_t>(options.decay),
      static_cast<int64_t>(options.write), static_cast<double>(options.scale));
  if (state) *state = results[1];
  return results[0];
}

// The same for the scan by channel.
template <class Backend>
torch::Tensor ApplyChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                               const torch::Tensor& lengths, torch::Tensor* state) {
  const torch::autograd::variable_list results = ChannelScanFunction<Backend>::apply(
      x, g, OptionalOf(lengths), OptionalOf(state ? *state : torch::Tensor()));
  if (state) *state = results[1];
  return results[0];
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_SCAN_FUNCTION_H_
