#include "linnet/ops/mixture_of_logistics.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <cmath>

#include "linnet/base/error.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class Function : public torch::autograd::Function<Function> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& bytes,
                        bool with_gradient) {
    const Tensor dense = logits.contiguous();
    const Tensor narrow = bytes.to(torch::kUInt8).contiguous();
    const Tensor nats = torch::empty(bytes.sizes(), logits.options());
    const Tensor gradient =
        with_gradient ? torch::empty(logits.sizes(), logits.options()) : Tensor();
    kernels::MixtureOfLogistics(static_cast<size_t>(nats.numel()),
                                static_cast<size_t>(logits.size(-1) / 3), dense.data_ptr<float>(),
                                narrow.data_ptr<uint8_t>(),
                                {.nats = nats.data_ptr<float>(),
                                 .grad = with_gradient ? gradient.data_ptr<float>() : nullptr},
                                AtParallelFor);
    if (with_gradient) context->save_for_backward({gradient});
    return nats;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {context->get_saved_variables()[0] * grads[0].unsqueeze(-1), Variable(), Variable()};
  }
};

Tensor Plain(const Tensor& logits, const Tensor& bytes) {
  const std::vector<Tensor> parts = logits.chunk(3, -1);
  const Tensor log_scale = parts[2].clamp_min(-7);
  const Tensor byte = bytes.unsqueeze(-1);
  const Tensor centred = byte.to(logits.dtype()) / 127.5 - 1 - parts[1];
  const Tensor inverse_scale = torch::exp(-log_scale);
  const Tensor upper = inverse_scale * (centred + 1.0 / 255);
  const Tensor lower = inverse_scale * (centred - 1.0 / 255);
  const Tensor middle = inverse_scale * centred;
  const Tensor mass = torch::sigmoid(upper) - torch::sigmoid(lower);
  // Where a bin's mass is lost to rounding, the density at its middle times its width stands in.
  const Tensor tail = middle - log_scale - 2 * torch::softplus(middle) - std::log(127.5);
  Tensor log_mass = torch::where(mass > 1e-5, mass.clamp_min(1e-12).log(), tail);
  log_mass = torch::where(byte == 0, upper - torch::softplus(upper), log_mass);
  log_mass = torch::where(byte == 255, -torch::softplus(lower), log_mass);
  return -torch::logsumexp(log_mass + torch::log_softmax(parts[0], -1), -1);
}

}  // namespace

Tensor MixtureOfLogisticsNats(const Tensor& logits, const Tensor& bytes) {
  if (logits.dim() < 1 || logits.size(-1) % 3 != 0 || logits.size(-1) == 0 ||
      static_cast<size_t>(logits.size(-1)) > 3 * kernels::kMaxMixtures ||
      logits.sizes().slice(0, logits.dim() - 1) != bytes.sizes()) {
    throw InputError("mixture of logistics needs logits [..., 3 K] and bytes [...]; got ",
                     logits.sizes(), " and ", bytes.sizes());
  }
  if (bytes.scalar_type() != torch::kInt64) {
    throw InputError("mixture of logistics needs int64 bytes; got ", bytes.scalar_type());
  }
  if (!Fused(logits)) return Plain(logits, bytes);
  const bool with_gradient = torch::GradMode::is_enabled() && logits.requires_grad();
  return Function::apply(logits, bytes, with_gradient);
}

}  // namespace linnet::ops
