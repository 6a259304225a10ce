#include "python/causal_linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <tuple>

#include "linnet/error.h"
#include "linnet/ops/causal_linear_parts.h"
#include "linnet/ops/plain.h"

namespace linnet::python {
namespace {

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
using ops::CausalLinearState;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using Optional = c10::optional<Tensor>;
// The arguments of an operation. `offsets` is cu_seqlens; with it, q, k, v are [1, T, H, D or M].
using Inputs = ops::FusedCausalLinearInputs;
using Gradients = ops::FusedCausalLinearGradients;

CausalLinearOptions Options(c10::string_view feature_map, bool normalize, double eps) {
  FeatureMap map = FeatureMap::kElu;
  if (feature_map == "identity") {
    map = FeatureMap::kIdentity;
  } else if (feature_map != "elu") {
    throw InputError("causal linear attention: feature_map is \"elu\" or \"identity\"; got \"",
                     feature_map, "\"");
  }
  return {map, normalize, static_cast<float>(eps)};
}

Inputs InputsOf(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& lengths,
                const Optional& cu_seqlens, const Optional& s, const Optional& z) {
  const auto tensor = [](const Optional& x) { return x.value_or(Tensor()); };
  return {q, k, v, tensor(lengths), tensor(cu_seqlens), {tensor(s), tensor(z)}};
}

Optional OptionalOf(const Tensor& x) { return x.defined() ? Optional(x) : c10::nullopt; }

// An operation must not return undefined tensors: an absent result becomes an empty tensor.
Tensor OrEmpty(const Tensor& x, const Tensor& like) {
  return x.defined() ? x : torch::empty({0}, like.options());
}

// ---- The opaque operations: kernels ----

// (out, kept, s, z): `kept` is for the backward; s and z are the state after the last position.
using Forwarded = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using ForwardKernel = Forwarded(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Optional& lengths, const Optional& cu_seqlens,
                                const Optional& s, const Optional& z, bool with_state,
                                c10::string_view feature_map, bool normalize, double eps);
constexpr const char* kForward =
    "_causal_linear_forward(Tensor q, Tensor k, Tensor v, Tensor? lengths, Tensor? cu_seqlens, "
    "Tensor? s, Tensor? z, bool with_state, str feature_map, bool normalize, float eps) -> "
    "(Tensor out, Tensor kept, Tensor s, Tensor z)";

// The gradients of q, k, v, s and z.
using Backwarded = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using BackwardKernel = Backwarded(const Optional& grad_out, const Optional& grad_s,
                                  const Optional& grad_z, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& out, const Tensor& kept,
                                  const Optional& lengths, const Optional& cu_seqlens,
                                  const Optional& s, const Optional& z,
                                  c10::string_view feature_map, bool normalize, double eps);
constexpr const char* kBackward =
    "_causal_linear_backward(Tensor? grad_out, Tensor? grad_s, Tensor? grad_z, Tensor q, Tensor k, "
    "Tensor v, Tensor out, Tensor kept, Tensor? lengths, Tensor? cu_seqlens, Tensor? s, "
    "Tensor? z, str feature_map, bool normalize, float eps) -> "
    "(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_s, Tensor grad_z)";

struct PlainResults {
  Tensor out;
  CausalLinearState state;
};

PlainResults Plain(const Inputs& x, bool with_state, const CausalLinearOptions& options) {
  const ops::PlainGuard plain;
  PlainResults results{{}, x.state};
  CausalLinearState& state = results.state;
  if (x.offsets.defined()) {
    const Tensor q = x.q.squeeze(0), k = x.k.squeeze(0), v = x.v.squeeze(0);
    results.out = (with_state ? ops::CausalLinearAttentionPacked(q, k, v, x.offsets, options, state)
                              : ops::CausalLinearAttentionPacked(q, k, v, x.offsets, options))
                      .unsqueeze(0);
  } else {
    results.out = with_state ? ops::CausalLinearAttention(x.q, x.k, x.v, x.lengths, options, state)
                             : ops::CausalLinearAttention(x.q, x.k, x.v, x.lengths, options);
  }
  return results;
}

// Computes gradients by running the plain form (ops/plain.h) again under autograd. With
// `create_graph` they can be differentiated again, with respect to the inputs and to the incoming
// gradients.
Gradients PlainGradients(const Inputs& given, const Optional& grad_out, const Optional& grad_s,
                         const Optional& grad_z, const CausalLinearOptions& options,
                         bool create_graph) {
  // If torch.autocast is active, it must not cast the forward that runs again here.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const torch::AutoGradMode grad_mode(true);
  const auto leaf = [&](const Tensor& x) {
    return create_graph || !x.defined() ? x : x.detach().requires_grad_();
  };
  const Inputs x = {leaf(given.q), leaf(given.k), leaf(given.v),
                    given.lengths, given.offsets, {leaf(given.state.s), leaf(given.state.z)}};
  const PlainResults y = Plain(x, x.state.s.defined() || grad_s || grad_z, options);

  variable_list outputs, grads, inputs;
  const auto output = [&](const Tensor& result, const Optional& grad) {
    if (!grad || !result.defined() || !result.requires_grad()) return;
    outputs.push_back(result), grads.push_back(*grad);
  };
  output(y.out, grad_out), output(y.state.s, grad_s), output(y.state.z, grad_z);
  const Tensor* all[] = {&x.q, &x.k, &x.v, &x.state.s, &x.state.z};
  for (const Tensor* input : all) {
    if (input->defined() && input->requires_grad()) inputs.push_back(*input);
  }
  variable_list found(inputs.size());
  if (!outputs.empty()) {
    found = torch::autograd::grad(outputs, inputs, grads, c10::nullopt, create_graph, true);
  }
  auto next = found.begin();
  const auto gradient = [&](const Tensor& input) {
    if (!input.defined()) return Tensor();
    const Tensor grad = input.requires_grad() ? *next++ : Tensor();
    return grad.defined() ? grad : torch::zeros_like(input);
  };
  Gradients gradients;
  gradients.q = gradient(x.q);
  gradients.k = gradient(x.k);
  gradients.v = gradient(x.v);
  gradients.state.s = gradient(x.state.s);
  gradients.state.z = gradient(x.state.z);
  return gradients;
}

int64_t Kept(const Tensor& q, const Tensor& v, const Optional& cu_seqlens) {
  return ops::CausalLinearKeptSize(q, v, cu_seqlens ? cu_seqlens->size(0) - 1 : 0);
}

// Repeats the checks of Attention() below, since a traced graph may call the opaque operations with
// other shapes.
void CheckInputs(const Inputs& x, const CausalLinearOptions& options) {
  CausalLinearState* state = nullptr;
  CausalLinearState given = x.state;
  if (given.s.defined()) state = &given;
  TORCH_CHECK(x.q.dim() == 4, "linnet: q needs 4 axes here, and has ", x.q.dim());
  if (x.offsets.defined()) {
    TORCH_CHECK(x.q.size(0) == 1, "linnet: packed rows are [1, T, H, D] here");
    const auto rows = [](const Tensor& tensor) { return tensor.squeeze(0); };
    ops::CheckCausalLinearPacked(rows(x.q), rows(x.k), rows(x.v), x.offsets, options, state);
  } else {
    ops::CheckCausalLinear(x.q, x.k, x.v, x.lengths, options, state);
  }
}

// Throws InputError unless all lengths are in [0, positions]. Like cu_seqlens, lengths on a GPU are
// copied to the CPU first, which waits for the GPU.
void CheckLengths(const Tensor& lengths, int64_t positions) {
  const Tensor given = lengths.to(torch::kCPU).contiguous();
  if (!given.has_storage() || !given.storage().data()) return;  // empty, fake or meta
  const auto* length = given.data_ptr<int64_t>();
  for (int64_t n = 0; n < given.numel(); ++n) {
    if (length[n] < 0 || length[n] > positions) {
      throw InputError("causal linear attention: lengths must lie between 0 and L = ", positions,
                       "; sequence ", n, " has length ", length[n]);
    }
  }
}

Forwarded Forward(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& lengths,
                  const Optional& cu_seqlens, const Optional& s, const Optional& z, bool with_state,
                  c10::string_view feature_map, bool normalize, double eps) {
  const CausalLinearOptions options = Options(feature_map, normalize, eps);
  Inputs x = InputsOf(q, k, v, lengths, cu_seqlens, s, z);
  CheckInputs(x, options);
  if (lengths) CheckLengths(*lengths, q.size(1));
  if (cu_seqlens) x.offsets = ops::CausalLinearOffsets(*cu_seqlens, q.size(1));
  if constexpr (ops::kHasFused) {
    if (ops::Fused(q)) {
      const ops::FusedCausalLinearResults y = ops::FusedCausalLinearForward(x, with_state, options);
      return {y.out, y.kept, OrEmpty(y.state.s, q), OrEmpty(y.state.z, q)};
    }
  }
  const PlainResults y = Plain(x, with_state, options);
  // The plain form needs no `kept`, but a tracer needs shapes that do not depend on the form.
  return {y.out, torch::zeros({Kept(q, v, cu_seqlens)}, q.options()), OrEmpty(y.state.s, q),
          OrEmpty(y.state.z, q)};
}

Backwarded Backward(const Optional& grad_out, const Optional& grad_s, const Optional& grad_z,
                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const Tensor& kept, const Optional& lengths, const Optional& cu_seqlens,
                    const Optional& s, const Optional& z, c10::string_view feature_map,
                    bool normalize, double eps) {
  const CausalLinearOptions options = Options(feature_map, normalize, eps);
  Inputs x = InputsOf(q, k, v, lengths, cu_seqlens, s, z);
  CheckInputs(x, options);
  TORCH_CHECK(out.sizes() == v.sizes() && kept.numel() == Kept(q, v, cu_seqlens),
              "linnet: out or kept are not those of the forward pass");
  if (cu_seqlens) x.offsets = ops::CausalLinearOffsets(*cu_seqlens, q.size(1));
  const auto results = [&](const Gradients& grad) {
    return Backwarded(grad.q, grad.k, grad.v, OrEmpty(grad.state.s, q), OrEmpty(grad.state.z, q));
  };
  if constexpr (ops::kHasFused) {
    if (ops::Fused(q)) {
      return results(ops::FusedCausalLinearBackward(
          x, out, kept, grad_out ? *grad_out : torch::zeros_like(out),
          {grad_s.value_or(Tensor()), grad_z.value_or(Tensor())}, options));
    }
  }
  // PyTorch runs kernels with the autograd keys excluded, but PlainGradients() needs autograd.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  const c10::impl::ForceDispatchKeyGuard with_autograd(keys);
  return results(PlainGradients(x, grad_out, grad_s, grad_z, options, false));
}

// ---- The opaque operations: shapes ----

Forwarded ForwardShapes(const Tensor& q, const Tensor&, const Tensor& v, const Optional&,
                        const Optional& cu_seqlens, const Optional&, const Optional&,
                        bool with_state, c10::string_view feature_map, bool normalize, double eps) {
  Options(feature_map, normalize, eps);
  const int64_t batch = cu_seqlens ? cu_seqlens->size(0) - 1 : q.size(0);
  Tensor s, z;
  if (with_state) s = torch::empty({batch, q.size(2), q.size(3), v.size(3)}, q.options());
  if (with_state && normalize) z = torch::empty({batch, q.size(2), q.size(3)}, q.options());
  return {torch::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
          torch::empty({Kept(q, v, cu_seqlens)}, q.options()), OrEmpty(s, q), OrEmpty(z, q)};
}

Backwarded BackwardShapes(const Optional&, const Optional&, const Optional&, const Tensor& q,
                          const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                          const Optional&, const Optional&, const Optional& s, const Optional& z,
                          c10::string_view, bool, double) {
  const auto like = [](const Tensor& x) { return torch::empty(x.sizes(), x.options()); };
  return {like(q), like(k), like(v), OrEmpty(s ? like(*s) : Tensor(), q),
          OrEmpty(z ? like(*z) : Tensor(), q)};
}

// ---- The opaque operations: derivatives ----

template <typename Kernel>
c10::TypedOperatorHandle<Kernel> Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Kernel>();
}

Forwarded CallForward(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& lengths,
                      const Optional& cu_seqlens, const Optional& s, const Optional& z,
                      bool with_state, c10::string_view feature_map, bool normalize, double eps) {
  static const auto op = Find<ForwardKernel>("linnet::_causal_linear_forward");
  return op.call(q, k, v, lengths, cu_seqlens, s, z, with_state, feature_map, normalize, eps);
}

class Function : public torch::autograd::Function<Function> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Optional& lengths, const Optional& cu_seqlens,
                               const Optional& s, const Optional& z, bool with_state,
                               const std::string& feature_map, bool normalize, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [out, kept, s_after, z_after] =
        CallForward(q, k, v, lengths, cu_seqlens, s, z, with_state, feature_map, normalize, eps);
    variable_list constant = {kept};
    if (!with_state) constant.push_back(s_after);
    if (!with_state || !normalize) constant.push_back(z_after);
    context->mark_non_differentiable(constant);
    const Inputs x = InputsOf(q, k, v, lengths, cu_seqlens, s, z);
    context->save_for_backward({q, k, v, out, kept, x.lengths, x.offsets, x.state.s, x.state.z});
    // Otherwise, autograd would fill missing gradients with zeros: real tensors, even if q is a
    // FakeTensor.
    context->set_materialize_grads(false);
    context->saved_data["feature_map"] = feature_map;
    context->saved_data["normalize"] = normalize;
    context->saved_data["eps"] = eps;
    return {out, kept, s_after, z_after};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Inputs x = {saved[0], saved[1], saved[2], saved[5], saved[6], {saved[7], saved[8]}};
    const Optional grad_out = OptionalOf(grads[0]), grad_s = OptionalOf(grads[2]),
                   grad_z = OptionalOf(grads[3]);
    const std::string& feature_map = context->saved_data["feature_map"].toStringRef();
    const bool normalize = context->saved_data["normalize"].toBool();
    const double eps = context->saved_data["eps"].toDouble();
    const Variable none;
    if (torch::GradMode::is_enabled()) {  // create_graph: the opaque backward has no derivative
      const Gradients grad =
          PlainGradients(x, grad_out, grad_s, grad_z, Options(feature_map, normalize, eps), true);
      return {grad.q,       grad.k, grad.v, none, none, grad.state.s,
              grad.state.z, none,   none,   none, none};
    }
    static const auto op = Find<BackwardKernel>("linnet::_causal_linear_backward");
    const auto [q, k, v, s, z] =
        op.call(grad_out, grad_s, grad_z, x.q, x.k, x.v, saved[3], saved[4], OptionalOf(x.lengths),
                OptionalOf(x.offsets), OptionalOf(x.state.s), OptionalOf(x.state.z), feature_map,
                normalize, eps);
    return {q,
            k,
            v,
            none,
            none,
            x.state.s.defined() ? s : none,
            x.state.z.defined() ? z : none,
            none,
            none,
            none,
            none};
  }
};

Forwarded ForwardWithGradient(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Optional& lengths, const Optional& cu_seqlens,
                              const Optional& s, const Optional& z, bool with_state,
                              c10::string_view feature_map, bool normalize, double eps) {
  const variable_list y = Function::apply(q, k, v, lengths, cu_seqlens, s, z, with_state,
                                          std::string(feature_map), normalize, eps);
  return {y[0], y[1], y[2], y[3]};
}

// ---- Public operations ----

// out, s, z.
using WithState = std::tuple<Tensor, Tensor, Tensor>;

// Whether x is fp16 or bf16. Such inputs are cast to fp32, the type of the sums.
bool IsHalf(const Tensor& x) {
  return x.scalar_type() == torch::kHalf || x.scalar_type() == torch::kBFloat16;
}

void CheckTypes(const Inputs& x) {
  const auto unlike = [&](const Tensor& other) {
    return other.scalar_type() != x.q.scalar_type() || other.device() != x.q.device();
  };
  if (!x.q.is_floating_point() || unlike(x.k) || unlike(x.v)) {
    throw InputError(
        "causal linear attention needs q, k and v of one floating-point type on one device; got q ",
        x.q.scalar_type(), " on ", x.q.device(), ", k ", x.k.scalar_type(), " on ", x.k.device(),
        ", v ", x.v.scalar_type(), " on ", x.v.device());
  }
  if (x.lengths.defined() && x.lengths.device() != x.q.device()) {
    throw InputError("causal linear attention: lengths must be on q's device, ", x.q.device(),
                     "; got lengths on ", x.lengths.device());
  }
}

WithState Attention(Inputs x, bool with_state, c10::string_view feature_map, bool normalize,
                    double eps) {
  const CausalLinearOptions options = Options(feature_map, normalize, eps);
  CheckTypes(x);
  const torch::ScalarType type = x.q.scalar_type();
  if (IsHalf(x.q)) {
    for (Tensor* tensor : {&x.q, &x.k, &x.v, &x.state.s, &x.state.z}) {
      if (tensor->defined()) *tensor = tensor->to(torch::kFloat32);
    }
  }
  if (x.lengths.defined()) x.lengths = x.lengths.contiguous();
  const CausalLinearState* state = with_state ? &x.state : nullptr;
  const bool packed = x.offsets.defined();
  if (packed) {
    ops::CheckCausalLinearPacked(x.q, x.k, x.v, x.offsets, options, state);
  } else {
    ops::CheckCausalLinear(x.q, x.k, x.v, x.lengths, options, state);
  }
  const auto rows = [&](const Tensor& tensor) { return packed ? tensor.unsqueeze(0) : tensor; };
  const Optional z = normalize ? OptionalOf(x.state.z) : c10::nullopt;
  auto [out, kept, s_after, z_after] =
      CallForward(rows(x.q), rows(x.k), rows(x.v), OptionalOf(x.lengths), OptionalOf(x.offsets),
                  OptionalOf(x.state.s), z, with_state, feature_map, normalize, eps);
  if (packed) out = out.squeeze(0);
  // Without `normalize`, z (default: zeros) is returned unchanged, so that a loop can pass it on.
  if (with_state && !normalize) {
    z_after =
        x.state.z.defined()
            ? x.state.z.clone()
            : torch::zeros({s_after.size(0), s_after.size(1), s_after.size(2)}, s_after.options());
  }
  return {out.to(type), s_after, z_after};
}

Tensor CausalLinearAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Optional& lengths, c10::string_view feature_map, bool normalize,
                             double eps) {
  return std::get<0>(
      Attention(InputsOf(q, k, v, lengths, {}, {}, {}), false, feature_map, normalize, eps));
}

WithState CausalLinearAttentionState(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Optional& s, const Optional& z, const Optional& lengths,
                                     c10::string_view feature_map, bool normalize, double eps) {
  return Attention(InputsOf(q, k, v, lengths, {}, s, z), true, feature_map, normalize, eps);
}

Tensor CausalLinearAttentionPacked(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& cu_seqlens, c10::string_view feature_map,
                                   bool normalize, double eps) {
  return std::get<0>(
      Attention(InputsOf(q, k, v, {}, cu_seqlens, {}, {}), false, feature_map, normalize, eps));
}

WithState CausalLinearAttentionPackedState(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& cu_seqlens, const Optional& s,
                                           const Optional& z, c10::string_view feature_map,
                                           bool normalize, double eps) {
  return Attention(InputsOf(q, k, v, {}, cu_seqlens, s, z), true, feature_map, normalize, eps);
}

WithState CausalLinearStep(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& s,
                           const Optional& z, c10::string_view feature_map, bool normalize,
                           double eps) {
  if (q.dim() != 3 || k.sizes() != q.sizes() || v.dim() != 3) {
    throw InputError("a causal linear step needs q, k and v of [N, H, D] and [N, H, M]; got q ",
                     q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  }
  auto [out, s_after, z_after] =
      Attention(InputsOf(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), {}, {}, s, z), true,
                feature_map, normalize, eps);
  return {out.squeeze(1), s_after, z_after};
}

}  // namespace

void DefineCausalLinear(torch::Library& library) {
  const std::string rows = "Tensor q, Tensor k, Tensor v, ";
  const std::string options = "str feature_map=\"elu\", bool normalize=True, float eps=1e-6)";
  const std::string with_state = options + " -> (Tensor out, Tensor s, Tensor z)";
  library.def(
      ("causal_linear_attention(" + rows + "*, Tensor? lengths=None, " + options + " -> Tensor")
          .c_str(),
      CausalLinearAttention);
  library.def(("causal_linear_attention_state(" + rows +
               "Tensor? s=None, Tensor? z=None, *, Tensor? lengths=None, " + with_state)
                  .c_str(),
              CausalLinearAttentionState);
  library.def(
      ("causal_linear_attention_packed(" + rows + "Tensor cu_seqlens, *, " + options + " -> Tensor")
          .c_str(),
      CausalLinearAttentionPacked);
  library.def(("causal_linear_attention_packed_state(" + rows +
               "Tensor cu_seqlens, Tensor? s=None, Tensor? z=None, *, " + with_state)
                  .c_str(),
              CausalLinearAttentionPackedState);
  library.def(
      ("causal_linear_step(" + rows + "Tensor? s=None, Tensor? z=None, *, " + with_state).c_str(),
      CausalLinearStep);
  library.def(kForward);
  library.def(kBackward);
}

void CausalLinearKernels(torch::Library& library) {
  library.impl("_causal_linear_forward", Forward);
  library.impl("_causal_linear_backward", Backward);
}

void CausalLinearMeta(torch::Library& library) {
  library.impl("_causal_linear_forward", ForwardShapes);
  library.impl("_causal_linear_backward", BackwardShapes);
}

void CausalLinearAutograd(torch::Library& library) {
  library.impl("_causal_linear_forward", ForwardWithGradient);
  library.impl("_causal_linear_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace linnet::python
