#include "linnet/train/state_relay.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <array>
#include <utility>

#include "linnet/error.h"

namespace linnet::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Sizes = std::vector<std::vector<int64_t>>;

constexpr size_t kMostTensors = 10, kMostAxes = 5;
// What precedes a state: its length, its capacity, the number of its mixer's tensors, and for each
// tensor (those of the mixer, then the three of the layer) the number of axes, -1 if it is
// undefined, and their sizes.
using Header = std::array<int64_t, 3 + kMostTensors*(1 + kMostAxes)>;

std::vector<Tensor*> TensorsOf(nn::MixerState& state) {
  std::vector<Tensor*> all;
  for (Tensor& x : state.tensors) all.push_back(&x);
  all.insert(all.end(), {&state.convolved, &state.mixed_last, &state.fed_last});
  return all;
}

Sizes SizesOf(const variable_list& tensors) {
  Sizes sizes;
  for (const Tensor& x : tensors) sizes.push_back(x.sizes().vec());
  return sizes;
}

Header HeaderOf(nn::MixerState& state) {
  const std::vector<Tensor*> tensors = TensorsOf(state);
  if (state.lengths.defined() || tensors.size() > kMostTensors) {
    throw InputError("--sequence-parallel does not support the states of this attention");
  }
  Header header = {};
  header[0] = state.length, header[1] = state.capacity;
  header[2] = static_cast<int64_t>(state.tensors.size());
  int64_t* to = header.data() + 3;
  for (const Tensor* x : tensors) {
    if (x->defined() && (x->scalar_type() != torch::kFloat32 || x->dim() > int64_t{kMostAxes})) {
      throw InputError("--sequence-parallel does not support the states of this attention");
    }
    to[0] = x->defined() ? x->dim() : -1;
    for (int64_t axis = 0; axis < to[0]; ++axis) to[1 + axis] = x->size(axis);
    to += 1 + kMostAxes;
  }
  return header;
}

Tensor ViewOf(Header& header) {
  return torch::from_blob(header.data(), {static_cast<int64_t>(header.size())}, torch::kInt64);
}

}  // namespace

// Receives tensors of the given sizes; the backward pass sends their gradients back.
class ReceiveFunction : public torch::autograd::Function<ReceiveFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor&, const StateRelay* relay,
                               const Sizes* sizes) {
    context->saved_data["relay"] = reinterpret_cast<int64_t>(relay);
    return relay->Receive(*sizes, relay->processes_.rank() - 1);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto* relay = reinterpret_cast<StateRelay*>(context->saved_data["relay"].toInt());
    relay->Send(grads, relay->processes_.rank() - 1);
    return {torch::zeros({}), Variable(), Variable()};
  }
};

// Sends tensors and returns 0; the backward pass receives their gradients.
class SendFunction : public torch::autograd::Function<SendFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList tensors, const StateRelay* relay) {
    const variable_list own(tensors.begin(), tensors.end());
    std::vector<Tensor> sizes;
    for (const std::vector<int64_t>& one : SizesOf(own)) {
      sizes.push_back(torch::tensor(one, torch::kInt64));
    }
    context->saved_data["relay"] = reinterpret_cast<int64_t>(relay);
    context->saved_data["sizes"] = sizes;
    relay->Send(own, relay->processes_.rank() + 1);
    return torch::zeros({});
  }
  static variable_list backward(AutogradContext* context, variable_list) {
    const auto* relay = reinterpret_cast<StateRelay*>(context->saved_data["relay"].toInt());
    Sizes sizes;
    for (const Tensor& one : context->saved_data["sizes"].toTensorVector()) {
      sizes.emplace_back(one.data_ptr<int64_t>(), one.data_ptr<int64_t>() + one.numel());
    }
    variable_list grads = relay->Receive(sizes, relay->processes_.rank() + 1);
    grads.emplace_back();
    return grads;
  }
};

StateRelay::StateRelay(const Processes& processes, int pieces)
    : processes_(processes), pieces_(pieces), anchor_(torch::zeros({}).requires_grad_()) {}

void StateRelay::Before(size_t, nn::MixerState& state) {
  if (first()) return;
  Header header = {};
  const Tensor view = ViewOf(header);
  processes_.Receive(view, processes_.rank() - 1);
  state.length = header[0], state.capacity = header[1];
  state.tensors.resize(static_cast<size_t>(header[2]));
  std::vector<Tensor*> defined;
  Sizes sizes;
  const int64_t* from = header.data() + 3;
  for (Tensor* x : TensorsOf(state)) {
    if (from[0] >= 0) {
      defined.push_back(x);
      sizes.emplace_back(from + 1, from + 1 + from[0]);
    }
    from += 1 + kMostAxes;
  }
  const variable_list received = ReceiveFunction::apply(anchor_, this, &sizes);
  for (size_t i = 0; i < defined.size(); ++i) *defined[i] = received[i];
}

void StateRelay::After(size_t, nn::MixerState& state) {
  if (last()) return;
  Header header = HeaderOf(state);
  processes_.Send(ViewOf(header), processes_.rank() + 1);
  variable_list defined;
  for (const Tensor* x : TensorsOf(state)) {
    if (x->defined()) defined.push_back(*x);
  }
  ties_.push_back(SendFunction::apply(at::TensorList(defined), this));
}

Tensor StateRelay::Tie(const Tensor& loss) {
  Tensor sum = loss;
  for (const Tensor& tie : std::exchange(ties_, {})) sum = sum + tie;
  return sum;
}

void StateRelay::Send(const std::vector<Tensor>& tensors, int to) const {
  std::vector<Tensor> flat;
  for (const Tensor& x : tensors) flat.push_back(x.detach().reshape({-1}));
  processes_.Send(torch::cat(flat), to);
}

std::vector<Tensor> StateRelay::Receive(const Sizes& sizes, int from) const {
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const std::vector<int64_t>& one : sizes) {
    counts.push_back(c10::multiply_integers(one));
    total += counts.back();
  }
  const Tensor flat = torch::empty({total});
  processes_.Receive(flat, from);
  std::vector<Tensor> tensors = flat.split_with_sizes(counts);
  for (size_t i = 0; i < sizes.size(); ++i) tensors[i] = tensors[i].reshape(sizes[i]).clone();
  return tensors;
}

}  // namespace linnet::train
