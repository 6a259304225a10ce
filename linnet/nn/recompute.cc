#include "linnet/nn/recompute.h"

#include <ATen/Context.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>

namespace linnet::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Body = std::function<Tensor(const Tensor&)>;

struct HeldBody : torch::CustomClassHolder {
  explicit HeldBody(Body body) : body(std::move(body)) {}
  Body body;
};

at::Generator Generator(const Tensor& x) {
  return at::globalContext().defaultGenerator(x.device());
}

Tensor RandomState(const Tensor& x) {
  at::Generator generator = Generator(x);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetRandomState(const Tensor& x, const Tensor& state) {
  at::Generator generator = Generator(x);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

class Function : public torch::autograd::Function<Function> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Body& body) {
    context->save_for_backward({x});
    context->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<HeldBody>(body));
    context->saved_data["random"] = RandomState(x);
    return body(x);  // autograd records nothing in here
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto held = context->saved_data["body"].toCapsule();
    const Tensor now = RandomState(x);
    SetRandomState(x, context->saved_data["random"].toTensor());
    {
      torch::AutoGradMode record(true);
      const Tensor y = static_cast<HeldBody&>(*held).body(x);
      torch::autograd::backward({y}, {grads[0]});
    }
    SetRandomState(x, now);
    return {x.grad(), Variable()};
  }
};

}  // namespace

Tensor Recompute(Body body, const Tensor& x) {
  if (!torch::GradMode::is_enabled()) return body(x);
  return Function::apply(x, body);
}

}  // namespace linnet::nn
