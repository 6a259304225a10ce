// Causal linear attention by the kernels of kernels/cuda.
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <tuple>

#include "linnet/kernels/cuda/causal_linear.h"
#include "linnet/ops/cuda.h"
#include "linnet/ops/cuda_view.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::CausalLinearShape;
using kernels::FeatureMap;
using kernels::cuda::CausalLinearPlan;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

CausalLinearPlan Plan(const Tensor& q, const Tensor& v, const Tensor& offsets,
                      const CausalLinearOptions& options) {
  // The number of the GPU's multiprocessors.
  static const int processors = kernels::cuda::Device::Open().processors;
  const bool packed = offsets.defined();
  const CausalLinearShape shape = {static_cast<size_t>(packed ? offsets.size(0) - 1 : q.size(0)),
                                   static_cast<size_t>(q.size(1)), static_cast<size_t>(q.size(2)),
                                   static_cast<size_t>(q.size(3)), static_cast<size_t>(v.size(3))};
  return kernels::cuda::PlanCausalLinear(shape, options, processors, packed);
}

Tensor Floats(size_t count, const Tensor& like) {
  return torch::empty({static_cast<int64_t>(count)}, like.options().dtype(torch::kFloat32));
}

// Allocates the gradients of q, k and v, uninitialized. In bf16 they lie side by side in one
// matrix, so that the backward of Bf16Linears(), which computes q, k and v in one product, need not
// copy them.
std::tuple<Tensor, Tensor, Tensor> EmptyGradients(const Tensor& q, const Tensor& v) {
  if (q.scalar_type() != torch::kBFloat16) {
    return {torch::empty(q.sizes(), q.options()), torch::empty(q.sizes(), q.options()),
            torch::empty(v.sizes(), v.options())};
  }
  const int64_t queries = q.size(2) * q.size(3), values = v.size(2) * v.size(3);
  const Tensor joined = torch::empty({q.size(0), q.size(1), 2 * queries + values}, q.options());
  const auto part = [&](int64_t begin, const Tensor& like) {
    return joined.narrow(2, begin, like.size(2) * like.size(3))
        .view({q.size(0), q.size(1), like.size(2), like.size(3)});
  };
  return {part(0, q), part(queries, q), part(2 * queries, v)};
}

class CudaCausalLinearFunction : public torch::autograd::Function<CudaCausalLinearFunction> {
 public:
  // Returns out and, if with_state, the final state: s and, if normalize, z.
  static variable_list forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                               const Tensor& v_in, const c10::optional<Tensor>& lengths_in,
                               const c10::optional<Tensor>& offsets_in,
                               const c10::optional<Tensor>& s0_in,
                               const c10::optional<Tensor>& z0_in, bool with_state,
                               int64_t feature_map, bool normalize, double eps) {
    const c10::cuda::CUDAGuard guard(q_in.device());
    const Tensor q = AlignedRows(q_in), k = AlignedRows(k_in), v = AlignedRows(v_in);
    const Tensor lengths = lengths_in.value_or(Tensor()), offsets = offsets_in.value_or(Tensor());
    const Tensor s0 = s0_in.value_or(Tensor()), z0 = z0_in.value_or(Tensor());
    const CausalLinearPlan plan = Plan(q, v, offsets, Options(feature_map, normalize, eps));
    const Tensor out = torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const Tensor kept = Floats(plan.kept, q), scratch = Floats(plan.scratch, q);
    // Copies the initial state, because the kernel overwrites it with the final state.
    const auto begin = [&](const Tensor& given, at::IntArrayRef sizes) {
      return given.defined() ? given.clone(torch::MemoryFormat::Contiguous)
                             : torch::zeros(sizes, q.options());
    };
    const auto batch = static_cast<int64_t>(plan.shape.batch);
    Tensor s, z;
    if (with_state) s = begin(s0, {batch, q.size(2), q.size(3), v.size(3)});
    if (with_state && normalize) z = begin(z0, {batch, q.size(2), q.size(3)});
    ForElement(q, [&](auto element) {
      using T = decltype(element);
      kernels::cuda::CausalLinearForward(
          plan,
          kernels::CausalLinearForwardArgsOf<T>{.q = View<const T>(q),
                                                .k = View<const T>(k),
                                                .v = View<const T>(v),
                                                .out = View<T>(out),
                                                .lengths = Data<int64_t>(lengths),
                                                .offsets = Data<int64_t>(offsets),
                                                .kept = Data<float>(kept),
                                                .s = Data<float>(s),
                                                .z = Data<float>(z)},
          Data<float>(scratch), StreamOf(q));
    });
    context->save_for_backward({q, k, v, out, kept, lengths, offsets, s0, z0});
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    variable_list results = {out};
    if (s.defined()) results.push_back(s);
    if (z.defined()) results.push_back(z);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("causal linear attention");
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &kept = saved[4];
    const Tensor &lengths = saved[5], &offsets = saved[6];
    const bool normalize = context->saved_data["normalize"].toBool();
    const c10::cuda::CUDAGuard guard(q.device());
    const auto dense = [](const Tensor& x) { return x.defined() ? x.contiguous() : x; };
    const Tensor s0 = dense(saved[7]), z0 = normalize ? dense(saved[8]) : Tensor();
    const Tensor grad_out = AlignedRows(grads[0]);
    const Tensor grad_s = grads.size() > 1 ? dense(grads[1]) : Tensor();
    const Tensor grad_z = grads.size() > 2 ? dense(grads[2]) : Tensor();
    const CausalLinearPlan plan = Plan(q, v, offsets,
                                       Options(context->saved_data["feature_map"].toInt(),
                                               normalize, context->saved_data["eps"].toDouble()));
    const auto dense_like = [](const Tensor& x) {
      return x.defined() ? torch::empty(x.sizes(), x.options()) : Tensor();
    };
    const auto [grad_q, grad_k, grad_v] = EmptyGradients(q, v);
    const Tensor grad_s0 = dense_like(s0), grad_z0 = dense_like(z0);
    const Tensor scratch = Floats(plan.scratch, q);
    ForElement(q, [&](auto element) {
      using T = decltype(element);
      kernels::cuda::CausalLinearBackward(
          plan,
          kernels::CausalLinearBackwardArgsOf<T>{.q = View<const T>(q),
                                                 .k = View<const T>(k),
                                                 .v = View<const T>(v),
                                                 .out = View<const T>(out),
                                                 .grad_out = View<const T>(grad_out),
                                                 .kept = Data<float>(kept),
                                                 .lengths = Data<int64_t>(lengths),
                                                 .offsets = Data<int64_t>(offsets),
                                                 .grad_q = View<T>(grad_q),
                                                 .grad_k = View<T>(grad_k),
                                                 .grad_v = View<T>(grad_v),
                                                 .s = Data<float>(s0),
                                                 .z = Data<float>(z0),
                                                 .grad_s = Data<float>(grad_s),
                                                 .grad_z = Data<float>(grad_z),
                                                 .grad_s0 = Data<float>(grad_s0),
                                                 .grad_z0 = Data<float>(grad_z0)},
          Data<float>(scratch), StreamOf(q));
    });
    const Variable none;
    return {grad_q, grad_k, grad_v, none, none, grad_s0, grad_z0, none, none, none, none};
  }

 private:
  static CausalLinearOptions Options(int64_t feature_map, bool normalize, double eps) {
    return {static_cast<FeatureMap>(feature_map), normalize, static_cast<float>(eps)};
  }
};

}  // namespace

bool CudaCausalLinearTakes(int64_t dim, int64_t value_dim) {
  return kernels::cuda::SupportsCausalLinear(
      {.dim = static_cast<size_t>(dim), .value_dim = static_cast<size_t>(value_dim)});
}

Tensor CudaCausalLinear(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                        const Tensor& offsets, const CausalLinearOptions& options,
                        CausalLinearState* state) {
  const bool with_z = state && options.normalize;
  const variable_list results = CudaCausalLinearFunction::apply(
      q, k, v, OptionalOf(lengths), OptionalOf(offsets), OptionalOf(state ? state->s : Tensor()),
      OptionalOf(with_z ? state->z : Tensor()), state != nullptr,
      static_cast<int64_t>(options.feature_map), options.normalize,
      static_cast<double>(options.eps));
  if (state) state->s = results[1];
  if (with_z) state->z = results[2];
  return results[0];
}

}  // namespace linnet::ops
