#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/kernels/layer_rows.h"
#include "linnet/kernels/matmul.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

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

// Number of rows: the product of all axes but the last.
size_t RowsOf(const Tensor& x) { return Size(x.numel() / x.size(-1)); }

std::vector<int64_t> WithLast(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// Replaces a weight by a dense tensor of T, the products' operand type. Copies only a weight that
// is not such a tensor already. The forward saves the result, so the backward copies nothing.
template <typename T>
void Convert(Tensor& weight) {
  weight = weight.to(sizeof(T) == sizeof(float) ? kFloat32 : kBFloat16).contiguous();
}

RowNorm RowNormOf(const Tensor& weight, const Tensor& bias, double eps) {
  return {weight.data_ptr<float>(), bias.data_ptr<float>(), static_cast<float>(eps)};
}

void Save(const RowsCall& call, AutogradContext* context) {
  context->saved_data["flags"] = int64_t{call.precision == Precision::kBf16} |
                                 int64_t{call.norm_before} << 1 | int64_t{call.norm_after} << 2 |
                                 int64_t{call.activation == kernels::Activation::kGelu} << 3;
  context->saved_data["eps_before"] = call.eps_before;
  context->saved_data["eps_after"] = call.eps_after;
}

RowsCall Restore(AutogradContext* context) {
  const int64_t flags = context->saved_data["flags"].toInt();
  return {.precision = flags & 1 ? Precision::kBf16 : Precision::kFp32,
          .activation = flags & 8 ? kernels::Activation::kGelu : kernels::Activation::kRelu,
          .norm_before = (flags & 2) != 0,
          .norm_after = (flags & 4) != 0,
          .with_gradient = true,
          .eps_before = context->saved_data["eps_before"].toDouble(),
          .eps_after = context->saved_data["eps_after"].toDouble()};
}

// Calls run(T()), where T is the products' operand type: BFloat16 or float.
template <typename Run>
auto WithType(Precision precision, Run run) {
  return precision == Precision::kBf16 ? run(BFloat16()) : run(float());
}

// Gradients of a call's parameters. Each slot (a share of the rows) sums its own gradients: the
// first slot in `sum`, the other slots in `others`. In the end `sum` holds the total, which
// autograd keeps; `others` is freed with this object.
struct Gradients {
  Gradients(size_t slots, size_t count) : sum(Floats(count)), others(Floats((slots - 1) * count)) {}
  kernels::SlotGradients view() const { return {sum.data_ptr<float>(), others.data_ptr<float>()}; }

  Tensor sum, others;
};

// Splits `gradients`, the concatenation of all parameters' gradients, into views with the
// parameters' shapes.
variable_list Split(const Tensor& gradients, const variable_list& parameters) {
  variable_list views;
  int64_t at = 0;
  for (const Tensor& parameter : parameters) {
    views.push_back(gradients.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
  return views;
}

class LinearsFunction : public torch::autograd::Function<LinearsFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList tensors,
                               const RowsCall& call) {
    Save(call, context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      for (size_t i = 0; i < Products(kept, call); ++i) Convert<T>(kept[1 + 2 * i]);
      context->save_for_backward(kept);
      const auto args = Args<T>(kept, call);
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
    RefuseSecondDerivative("a linear layer");
    const RowsCall call = Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      const auto args = Args<T>(kept, call);
      variable_list alive;
      const float* grad_y[kernels::kMaxProducts];
      for (size_t i = 0; i < args.products; ++i) {
        alive.push_back(grads[i].contiguous());
        grad_y[i] = alive.back().template data_ptr<float>();
      }
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor grad_x = torch::empty(kept[0].sizes(), kFloat32);
      const Tensor scratch = Floats(plan.slots * LinearsScratch(plan, args));
      const Gradients gradients(plan.slots, LinearsGradients(args));
      LinearsBackward(plan, args, grad_y, grad_x.data_ptr<float>(), gradients.view(),
                      scratch.data_ptr<float>(), AtParallelFor);
      variable_list result = Split(gradients.sum, {kept.begin() + 1, kept.end()});
      result.insert(result.begin(), grad_x);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  static size_t Products(const variable_list& kept, const RowsCall& call) {
    return (kept.size() - 1) / 2 - (call.norm_before ? 1 : 0);
  }

  // The kernel's arguments. `kept` must outlive the kernel call.
  template <typename T>
  static kernels::LinearsArgs<T> Args(const variable_list& kept, const RowsCall& call) {
    kernels::LinearsArgs<T> args;
    args.in = Size(kept[0].size(-1));
    args.x = kept[0].data_ptr<float>();
    args.products = Products(kept, call);
    for (size_t i = 0; i < args.products; ++i) {
      const Tensor &weight = kept[1 + 2 * i], &bias = kept[2 + 2 * i];
      args.weight[i] = Data<T>(weight);
      args.bias[i] = bias.data_ptr<float>();
      args.out[i] = Size(weight.size(0));
    }
    if (call.norm_before) {
      args.norm = RowNormOf(kept[kept.size() - 2], kept.back(), call.eps_before);
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

class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList tensors, const RowsCall& call) {
    Save(call, context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    kept[3] = kept[3].contiguous();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      Convert<T>(kept[1]);
      auto args = Args<T>(kept, call);
      const auto shape = WithLast(kept[0], Int(args.out));
      const Tensor y = torch::empty(shape, kFloat32);
      const Tensor sum = call.norm_after ? torch::empty(shape, kFloat32) : Tensor();
      if (call.norm_after) args.sum = sum.template data_ptr<float>();
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * ProjectScratch(plan, args));
      ProjectForward(plan, args, y.template data_ptr<float>(), scratch.data_ptr<float>(),
                     AtParallelFor);
      kept[3] = Tensor();  // the backward needs `sum`, not the residual
      kept.push_back(sum);
      context->save_for_backward(kept);
      return y;
    });
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("an output projection with residual");
    const RowsCall call = Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      auto args = Args<T>(kept, call);
      if (call.norm_after) args.sum = kept.back().template data_ptr<float>();
      const Tensor grad_y = grads[0].contiguous();
      const Tensor grad_a = torch::empty(kept[0].sizes(), kFloat32);
      const Tensor grad_x = torch::empty(grad_y.sizes(), kFloat32);
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * ProjectScratch(plan, args));
      const Gradients gradients(plan.slots, ProjectGradients(args));
      ProjectBackward(plan, args, grad_y.template data_ptr<float>(),
                      grad_a.template data_ptr<float>(), grad_x.template data_ptr<float>(),
                      gradients.view(), scratch.data_ptr<float>(), AtParallelFor);
      variable_list parameters = {kept[1], kept[2]};
      if (call.norm_after) parameters.insert(parameters.end(), {kept[4], kept[5]});
      variable_list result = Split(gradients.sum, parameters);
      result.insert(result.begin(), grad_a);
      result.insert(result.begin() + 3, grad_x);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  // kept: as in LinearsFunction::Args().
  template <typename T>
  static kernels::ProjectArgs<T> Args(const variable_list& kept, const RowsCall& call) {
    kernels::ProjectArgs<T> args;
    args.in = Size(kept[1].size(1)), args.out = Size(kept[1].size(0));
    args.weight = Data<T>(kept[1]);
    args.bias = kept[2].data_ptr<float>();
    args.a = kept[0].data_ptr<float>();
    if (kept[3].defined()) args.x = kept[3].data_ptr<float>();
    if (call.norm_after) args.norm = RowNormOf(kept[4], kept[5], call.eps_after);
    return args;
  }

  template <typename T>
  static RowsPlan Plan(const kernels::ProjectArgs<T>& args, const Tensor& a) {
    return kernels::PlanRows(RowsOf(a), std::max(args.in, args.out) * sizeof(float), AtSlots());
  }
};

class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList tensors, const RowsCall& call) {
    Save(call, context);
    variable_list kept(tensors.begin(), tensors.end());
    kept[0] = kept[0].contiguous();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      Convert<T>(kept[1]);
      Convert<T>(kept[3]);
      auto args = Args<T>(kept, call);
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
    RefuseSecondDerivative("a feed-forward block");
    const RowsCall call = Restore(context);
    const variable_list kept = context->get_saved_variables();
    return WithType(call.precision, [&](auto t) {
      using T = decltype(t);
      auto args = Args<T>(kept, call);
      args.hidden = Data<T>(kept[kept.size() - 2]);
      if (call.norm_after) args.sum = kept.back().template data_ptr<float>();
      const Tensor grad_y = grads[0].contiguous();
      const Tensor grad_x = torch::empty(grad_y.sizes(), kFloat32);
      const RowsPlan plan = Plan(args, kept[0]);
      const Tensor scratch = Floats(plan.slots * FeedForwardScratch(plan, args));
      const Gradients gradients(plan.slots, FeedForwardGradients(args));
      FeedForwardBackward(plan, args, grad_y.template data_ptr<float>(),
                          grad_x.template data_ptr<float>(), gradients.view(),
                          scratch.data_ptr<float>(), AtParallelFor);
      variable_list result = Split(gradients.sum, {kept.begin() + 1, kept.end() - 2});
      result.insert(result.begin(), grad_x);
      result.push_back(Variable());
      return result;
    });
  }

 private:
  // kept: as in LinearsFunction::Args().
  template <typename T>
  static kernels::FeedForwardArgs<T> Args(const variable_list& kept, const RowsCall& call) {
    kernels::FeedForwardArgs<T> args;
    args.dim = Size(kept[1].size(1)), args.hidden_dim = Size(kept[1].size(0));
    args.activation = call.activation;
    args.weight1 = Data<T>(kept[1]), args.weight2 = Data<T>(kept[3]);
    args.bias1 = kept[2].data_ptr<float>(), args.bias2 = kept[4].data_ptr<float>();
    args.x = kept[0].data_ptr<float>();
    size_t at = 5;
    if (call.norm_before) {
      args.norm_before = RowNormOf(kept[at], kept[at + 1], call.eps_before);
      at += 2;
    }
    if (call.norm_after) args.norm_after = RowNormOf(kept[at], kept[at + 1], call.eps_after);
    return args;
  }

  template <typename T>
  static RowsPlan Plan(const kernels::FeedForwardArgs<T>& args, const Tensor& x) {
    return kernels::PlanRows(RowsOf(x), args.hidden_dim * sizeof(T), AtSlots());
  }
};

}  // namespace

bool FusedBf16() {
  return kernels::MatMulSupports(kernels::MatType::kBf16, kernels::MatType::kF32);
}

variable_list FusedLinears(const variable_list& tensors, const RowsCall& call) {
  return LinearsFunction::apply(at::TensorList(tensors), call);
}

Tensor FusedProject(const variable_list& tensors, const RowsCall& call) {
  return ProjectFunction::apply(at::TensorList(tensors), call);
}

Tensor FusedFeedForward(const variable_list& tensors, const RowsCall& call) {
  return FeedForwardFunction::apply(at::TensorList(tensors), call);
}

}  // namespace linnet::ops
