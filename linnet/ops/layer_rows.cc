#include "linnet/ops/layer_rows.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/base/error.h"
#include "linnet/kernels/layer_rows.h"
#include "linnet/kernels/matmul.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using kernels::BFloat16;
using kernels::RowNorm;
using kernels::RowsPlan;
using torch::kBFloat16;
using torch::kFloat32;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

size_t Size(int64_t n) { return static_cast<size_t>(n); }
int64_t Int(size_t n) { return static_cast<int64_t>(n); }

Tensor Floats(size_t n) { return torch::empty({Int(n)}, kFloat32); }

// Rows are what the last axis is not.
size_t RowsOf(const Tensor& x) { return Size(x.numel() / x.size(-1)); }

std::vector<int64_t> WithLast(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// A weight in the products' type; what it returns must outlive the kernel.
template <typename T>
Tensor Read(const Tensor& weight) {
  return sizeof(T) == sizeof(float) ? weight.contiguous() : weight.to(kBFloat16).contiguous();
}

template <typename T>
T* Data(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

RowNorm View(const Tensor& weight, const Tensor& bias, double eps) {
  return {weight.data_ptr<float>(), bias.data_ptr<float>(), static_cast<float>(eps)};
}

// What any of the functions below keeps of its call, beside tensors.
struct Call {
  Precision precision = Precision::kFp32;
  kernels::Activation activation = kernels::Activation::kRelu;
  bool norm_before = false, norm_after = false, residual = false, with_gradient = false;
  double eps_before = 0, eps_after = 0;

  void Save(AutogradContext* context) const {
    context->saved_data["flags"] = int64_t{precision == Precision::kBf16} |
                                   int64_t{norm_before} << 1 | int64_t{norm_after} << 2 |
                                   int64_t{residual} << 3 |
                                   int64_t{activation == kernels::Activation::kGelu} << 4;
    context->saved_data["eps_before"] = eps_before;
    context->saved_data["eps_after"] = eps_after;
  }
  static Call Restore(AutogradContext* context) {
    const int64_t flags = context->saved_data["flags"].toInt();
    return {.precision = flags & 1 ? Precision::kBf16 : Precision::kFp32,
            .activation = flags & 16 ? kernels::Activation::kGelu : kernels::Activation::kRelu,
            .norm_before = (flags & 2) != 0,
            .norm_after = (flags & 4) != 0,
            .residual = (flags & 8) != 0,
            .with_gradient = true,
            .eps_before = context->saved_data["eps_before"].toDouble(),
            .eps_after = context->saved_data["eps_after"].toDouble()};
  }
};

// Calls run(T()) with the type that the products read.
template <typename Run>
auto WithType(Precision precision, Run run) {
  return precision == Precision::kBf16 ? run(BFloat16()) : run(float());
}

// The parameters' gradients lie one behind the other in `gradients`, as their shapes say.
variable_list Split(const Tensor& gradients, const variable_list& parameters) {
  variable_list views;
  int64_t at = 0;
  for (const Tensor& parameter : parameters) {
    views.push_back(gradients.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
  return views;
}

// Tensors: x, then a weight and a bias for each product, then the norm's, if there is one.
class LinearsFunction : public torch::autograd::Function<LinearsFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const Call& call) {
    call.Save(context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    context->save_for_backward(kept);
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      const auto args = Args<T>(kept, call, alive);
      variable_list y;
      float* to[kernels::kMaxProducts];
      for (size_t i = 0; i < args.products; ++i) {
        y.push_back(torch::empty(WithLast(kept[0], Int(args.out[i])), kFloat32));
        to[i] = y.back().template data_ptr<float>();
      }
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * LinearsScratch(plan, args));
      LinearsForward(plan, args, to, scratch.data_ptr<float>(), AtParallelFor);
      return y;
    });
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Call call = Call::Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      const auto args = Args<T>(kept, call, alive);
      const float* grad_y[kernels::kMaxProducts];
      for (size_t i = 0; i < args.products; ++i) {
        alive.push_back(grads[i].contiguous());
        grad_y[i] = alive.back().template data_ptr<float>();
      }
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor grad_x = torch::empty(kept[0].sizes(), kFloat32);
      const Tensor scratch = Floats(plan.slots * LinearsScratch(plan, args));
      const Tensor gradients = Floats(plan.slots * LinearsGradients(args));
      LinearsBackward(plan, args, grad_y, grad_x.data_ptr<float>(), gradients.data_ptr<float>(),
                      scratch.data_ptr<float>(), AtParallelFor);
      variable_list result = Split(gradients, {kept.begin() + 1, kept.end()});
      result.insert(result.begin(), grad_x);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  template <typename T>
  static kernels::LinearsArgs<T> Args(const variable_list& kept, const Call& call,
                                      variable_list& alive) {
    kernels::LinearsArgs<T> args;
    args.in = Size(kept[0].size(-1));
    args.x = kept[0].data_ptr<float>();
    args.products = (kept.size() - 1) / 2 - (call.norm_before ? 1 : 0);
    for (size_t i = 0; i < args.products; ++i) {
      const Tensor &weight = kept[1 + 2 * i], &bias = kept[2 + 2 * i];
      alive.push_back(Read<T>(weight));
      args.weight[i] = Data<T>(alive.back());
      args.bias[i] = bias.data_ptr<float>();
      args.out[i] = Size(weight.size(0));
    }
    if (call.norm_before) {
      args.norm = View(kept[kept.size() - 2], kept.back(), call.eps_before);
    }
    return args;
  }

  template <typename T>
  static RowsPlan Plan(const kernels::LinearsArgs<T>& args, const Tensor& x) {
    size_t widest = args.in;
    for (size_t i = 0; i < args.products; ++i) widest = std::max(widest, args.out[i]);
    return kernels::PlanRows(RowsOf(x), widest * sizeof(float), AtSlots());
  }
};

// Tensors: a, weight, bias, then the residual and the norm's, where they are.
class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList tensors, const Call& call) {
    call.Save(context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    if (call.residual) kept[3] = kept[3].contiguous();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      auto args = Args<T>(kept, call, alive);
      const auto shape = WithLast(kept[0], Int(args.out));
      const Tensor y = torch::empty(shape, kFloat32);
      const Tensor sum = call.norm_after ? torch::empty(shape, kFloat32) : Tensor();
      if (call.norm_after) args.sum = sum.template data_ptr<float>();
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * ProjectScratch(plan, args));
      ProjectForward(plan, args, y.template data_ptr<float>(), scratch.data_ptr<float>(),
                     AtParallelFor);
      if (call.residual) kept[3] = Tensor();  // the backward reads the sum instead
      kept.push_back(sum);
      context->save_for_backward(kept);
      return y;
    });
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Call call = Call::Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      auto args = Args<T>(kept, call, alive);
      if (call.norm_after) args.sum = kept.back().template data_ptr<float>();
      const Tensor grad_y = grads[0].contiguous();
      const Tensor grad_a = torch::empty(kept[0].sizes(), kFloat32);
      const Tensor grad_x = call.residual ? torch::empty(grad_y.sizes(), kFloat32) : Tensor();
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * ProjectScratch(plan, args));
      const Tensor gradients = Floats(plan.slots * ProjectGradients(args));
      ProjectBackward(plan, args, grad_y.template data_ptr<float>(),
                      grad_a.template data_ptr<float>(),
                      call.residual ? grad_x.template data_ptr<float>() : nullptr,
                      gradients.data_ptr<float>(), scratch.data_ptr<float>(), AtParallelFor);
      variable_list parameters = {kept[1], kept[2]};
      if (call.norm_after) parameters.insert(parameters.end(), {kept[4], kept[5]});
      variable_list result = Split(gradients, parameters);
      result.insert(result.begin(), grad_a);
      result.insert(result.begin() + 3, grad_x);
      if (!call.residual) result.erase(result.begin() + 3);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  template <typename T>
  static kernels::ProjectArgs<T> Args(const variable_list& kept, const Call& call,
                                      variable_list& alive) {
    alive.push_back(Read<T>(kept[1]));
    kernels::ProjectArgs<T> args;
    args.in = Size(kept[1].size(1)), args.out = Size(kept[1].size(0));
    args.weight = Data<T>(alive.back());
    args.bias = kept[2].data_ptr<float>();
    args.a = kept[0].data_ptr<float>();
    if (call.residual && kept[3].defined()) args.x = kept[3].data_ptr<float>();
    if (call.norm_after) args.norm = View(kept[4], kept[5], call.eps_after);
    return args;
  }

  template <typename T>
  static RowsPlan Plan(const kernels::ProjectArgs<T>& args, const Tensor& a) {
    return kernels::PlanRows(RowsOf(a), std::max(args.in, args.out) * sizeof(float), AtSlots());
  }
};

// Tensors: x, weight1, bias1, weight2, bias2, then n1's and n2's parameters, where they are.
class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList tensors, const Call& call) {
    call.Save(context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      auto args = Args<T>(kept, call, alive);
      const Tensor& x = kept[0];
      const Tensor y = torch::empty(x.sizes(), kFloat32);
      Tensor sum, hidden;
      if (call.norm_after) {
        sum = torch::empty(x.sizes(), kFloat32);
        args.sum = sum.template data_ptr<float>();
      }
      if (call.with_gradient) {
        hidden = torch::empty(WithLast(x, Int(args.hidden_dim)),
                              sizeof(T) == sizeof(float) ? kFloat32 : kBFloat16);
        args.hidden = Data<T>(hidden);
      }
      const RowsPlan plan = Plan(args, x);
      const Tensor scratch = Floats(plan.slots * FeedForwardScratch(plan, args));
      FeedForwardForward(plan, args, y.template data_ptr<float>(), scratch.data_ptr<float>(),
                         AtParallelFor);
      kept.insert(kept.end(), {hidden, sum});
      if (call.with_gradient) context->save_for_backward(kept);
      return y;
    });
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Call call = Call::Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      variable_list alive;
      auto args = Args<T>(kept, call, alive);
      args.hidden = Data<T>(kept[kept.size() - 2]);
      if (call.norm_after) args.sum = kept.back().template data_ptr<float>();
      const Tensor grad_y = grads[0].contiguous();
      const Tensor grad_x = torch::empty(grad_y.sizes(), kFloat32);
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * FeedForwardScratch(plan, args));
      const Tensor gradients = Floats(plan.slots * FeedForwardGradients(args));
      FeedForwardBackward(plan, args, grad_y.template data_ptr<float>(),
                          grad_x.template data_ptr<float>(), gradients.data_ptr<float>(),
                          scratch.data_ptr<float>(), AtParallelFor);
      variable_list result = Split(gradients, {kept.begin() + 1, kept.end() - 2});
      result.insert(result.begin(), grad_x);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  template <typename T>
  static kernels::FeedForwardArgs<T> Args(const variable_list& kept, const Call& call,
                                          variable_list& alive) {
    alive.push_back(Read<T>(kept[1]));
    alive.push_back(Read<T>(kept[3]));
    kernels::FeedForwardArgs<T> args;
    args.dim = Size(kept[1].size(1)), args.hidden_dim = Size(kept[1].size(0));
    args.activation = call.activation;
    args.weight1 = Data<T>(alive[0]), args.weight2 = Data<T>(alive[1]);
    args.bias1 = kept[2].data_ptr<float>(), args.bias2 = kept[4].data_ptr<float>();
    args.x = kept[0].data_ptr<float>();
    size_t at = 5;
    if (call.norm_before) {
      args.norm_before = View(kept[at], kept[at + 1], call.eps_before);
      at += 2;
    }
    if (call.norm_after) args.norm_after = View(kept[at], kept[at + 1], call.eps_after);
    return args;
  }

  template <typename T>
  static RowsPlan Plan(const kernels::FeedForwardArgs<T>& args, const Tensor& x) {
    return kernels::PlanRows(RowsOf(x), args.hidden_dim * sizeof(T), AtSlots());
  }
};

// --- The plain forms ---

// To bf16's precision and back: products of such numbers, summed in fp32, are what the fused form
// computes.
Tensor Rounded(const Tensor& x, Precision precision) {
  return precision == Precision::kBf16 ? x.to(kBFloat16).to(x.scalar_type()) : x;
}

Tensor PlainLinear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision) {
  return at::linear(Rounded(x, precision), Rounded(weight, precision), bias);
}

Tensor PlainNorm(const Tensor& x, const Norm& norm) {
  if (!norm.defined()) return x;
  return at::layer_norm(x, {x.size(-1)}, norm.weight, norm.bias, norm.eps);
}

bool WantsGradient(const variable_list& tensors) {
  if (!torch::GradMode::is_enabled()) return false;
  for (const Tensor& tensor : tensors) {
    if (tensor.requires_grad()) return true;
  }
  return false;
}

void Append(variable_list& tensors, const Norm& norm) {
  if (norm.defined()) tensors.insert(tensors.end(), {norm.weight, norm.bias});
}

void CheckProduct(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1) ||
      bias.sizes() != weight.sizes().slice(0, 1)) {
    throw InputError("a product needs x [..., in], weight [out, in] and bias [out]; got ",
                     x.sizes(), ", ", weight.sizes(), " and ", bias.sizes());
  }
}

}  // namespace

Precision PrecisionNamed(const std::string& name, torch::Device device) {
  if (name == "fp32") return Precision::kFp32;
  if (name != "bf16") throw InputError("unknown precision '", name, "'; choose fp32 or bf16");
  if (device.is_cpu() &&
      !kernels::MatMulSupports(kernels::MatType::kBf16, kernels::MatType::kF32)) {
    throw InputError("this processor has no products in bf16 (they need AVX-512); use fp32");
  }
  return Precision::kBf16;
}

std::vector<Tensor> Linears(const Tensor& x, const std::vector<Tensor>& weights,
                            const std::vector<Tensor>& biases, Precision precision,
                            const Norm& norm_before) {
  if (weights.empty() || weights.size() != biases.size() ||
      weights.size() > kernels::kMaxProducts) {
    throw InputError("1 to ", kernels::kMaxProducts, " products of one x, not ", weights.size());
  }
  for (size_t i = 0; i < weights.size(); ++i) CheckProduct(x, weights[i], biases[i]);
  if (!Fused(x) || x.numel() == 0) {
    const Tensor u = PlainNorm(x, norm_before);
    std::vector<Tensor> y;
    for (size_t i = 0; i < weights.size(); ++i) {
      y.push_back(PlainLinear(u, weights[i], biases[i], precision));
    }
    return y;
  }
  variable_list tensors = {x};
  for (size_t i = 0; i < weights.size(); ++i) {
    tensors.insert(tensors.end(), {weights[i], biases[i]});
  }
  Append(tensors, norm_before);
  return LinearsFunction::apply(at::TensorList(tensors), Call{.precision = precision,
                                                              .norm_before = norm_before.defined(),
                                                              .eps_before = norm_before.eps});
}

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Precision precision,
              const Norm& norm_before) {
  return Linears(x, {weight}, {bias}, precision, norm_before)[0];
}

Tensor Project(const Tensor& a, const Tensor& weight, const Tensor& bias, const Tensor& residual,
               const Norm& norm_after, Precision precision) {
  CheckProduct(a, weight, bias);
  if (residual.sizes() != at::IntArrayRef(WithLast(a, weight.size(0)))) {
    throw InputError("a residual of ", residual.sizes(), " does not fit ", a.sizes(), " times ",
                     weight.sizes());
  }
  if (!Fused(a) || a.numel() == 0) {
    return PlainNorm(residual + PlainLinear(a, weight, bias, precision), norm_after);
  }
  variable_list tensors = {a, weight, bias, residual};
  Append(tensors, norm_after);
  return ProjectFunction::apply(at::TensorList(tensors), Call{.precision = precision,
                                                              .norm_after = norm_after.defined(),
                                                              .residual = true,
                                                              .eps_after = norm_after.eps});
}

Tensor Activate(kernels::Activation activation, const Tensor& x) {
  return activation == kernels::Activation::kGelu ? torch::gelu(x) : torch::relu(x);
}

Tensor FeedForward(const Tensor& x, const Tensor& weight1, const Tensor& bias1,
                   const Tensor& weight2, const Tensor& bias2, const FeedForwardOptions& options) {
  CheckProduct(x, weight1, bias1);
  if (weight2.dim() != 2 || weight2.size(0) != x.size(-1) || weight2.size(1) != weight1.size(0) ||
      bias2.sizes() != x.sizes().slice(x.dim() - 1)) {
    throw InputError("a feed-forward block of ", weight1.sizes(), " and ", weight2.sizes(),
                     " does not fit rows of ", x.size(-1));
  }
  if (!Fused(x) || x.numel() == 0) {
    const Precision precision = options.precision;
    const Tensor hidden = Rounded(
        PlainLinear(PlainNorm(x, options.norm_before), weight1, bias1, precision), precision);
    return PlainNorm(
        x + PlainLinear(Activate(options.activation, hidden), weight2, bias2, precision),
        options.norm_after);
  }
  variable_list tensors = {x, weight1, bias1, weight2, bias2};
  Append(tensors, options.norm_before);
  Append(tensors, options.norm_after);
  return FeedForwardFunction::apply(at::TensorList(tensors),
                                    Call{.precision = options.precision,
                                         .activation = options.activation,
                                         .norm_before = options.norm_before.defined(),
                                         .norm_after = options.norm_after.defined(),
                                         .with_gradient = WantsGradient(tensors),
                                         .eps_before = options.norm_before.eps,
                                         .eps_after = options.norm_after.eps});
}

}  // namespace linnet::ops
