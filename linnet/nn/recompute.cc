#include "linnet/nn/recompute.h"

#include <ATen/Context.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <vector>

namespace linnet::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Body = std::function<Tensor(const std::vector<Tensor>&)>;

// Wraps a body, so that AutogradContext::saved_data can hold it.
struct HeldBody : torch::CustomClassHolder {
  explicit HeldBody(Body body) : body(std::move(body)) {}
  Body body;
};

// The generators that a body may draw from: the device's generator, and the CPU's generator, which
// the reformer mixer uses on every device.
std::vector<at::Generator> Generators(torch::Device device) {
  std::vector<at::Generator> all = {at::globalContext().defaultGenerator(torch::kCPU)};
  if (!device.is_cpu()) all.push_back(at::globalContext().defaultGenerator(device));
  return all;
}

std::vector<Tensor> RandomStates(torch::Device device) {
  std::vector<Tensor> states;
  for (at::Generator& generator : Generators(device)) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void SetRandomStates(torch::Device device, const std::vector<Tensor>& states) {
  std::vector<at::Generator> all = Generators(device);
  for (size_t i = 0; i < all.size(); ++i) {
    std::lock_guard<std::mutex> lock(all[i].mutex());
    all[i].set_state(states[i]);
  }
}

class Function : public torch::autograd::Function<Function> {
 public:
  // The last of `inputs` is a dummy that requires a gradient; body does not get it.
  static Tensor forward(AutogradContext* context, at::TensorList inputs, const Body& body) {
    const variable_list own(inputs.begin(), inputs.end() - 1);
    context->save_for_backward(own);
    context->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<HeldBody>(body));
    context->saved_data["random"] = RandomStates(own[0].device());
    return body(own);  // autograd records nothing in a custom function's forward
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list inputs = context->get_saved_variables();
    for (Tensor& x : inputs) x = x.detach().requires_grad_(x.requires_grad());
    const torch::Device device = inputs[0].device();
    const auto held = context->saved_data["body"].toCapsule();
    const std::vector<Tensor> now = RandomStates(device);
    SetRandomStates(device, context->saved_data["random"].toTensorVector());
    {
      torch::AutoGradMode record(true);
      const Tensor y = static_cast<HeldBody&>(*held).body(inputs);
      if (y.requires_grad()) torch::autograd::backward({y}, {grads[0]});
    }
    SetRandomStates(device, now);
    variable_list gradients;
    for (const Tensor& x : inputs) gradients.push_back(x.grad());
    gradients.insert(gradients.end(), 2, Variable());  // for the dummy input and for body
    return gradients;
  }
};

}  // namespace

Tensor Recompute(Body body, const std::vector<Tensor>& inputs) {
  if (!torch::GradMode::is_enabled()) return body(inputs);
  // Autograd records this function only if an input requires a gradient. Parameters need gradients
  // even if no input does, so a dummy input requires one.
  variable_list all = inputs;
  all.push_back(torch::empty({0}, inputs[0].options().dtype(torch::kFloat32).requires_grad(true)));
  return Function::apply(at::TensorList(all), body);
}

}  // namespace linnet::nn
