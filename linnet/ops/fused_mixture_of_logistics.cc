#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/kernels/pixel_logistics.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The loss of bytes, whose component has 3 outputs, or of whole pixels, whose component has 10.
class LogisticsFunction : public torch::autograd::Function<LogisticsFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& bytes,
                        bool pixels, bool with_gradient) {
    const Tensor dense = logits.contiguous();
    const Tensor narrow = bytes.to(torch::kUInt8).contiguous();
    const Tensor nats = torch::empty(logits.sizes().slice(0, logits.dim() - 1), logits.options());
    const Tensor gradient =
        with_gradient ? torch::empty(logits.sizes(), logits.options()) : Tensor();
    const auto kernel = pixels ? kernels::PixelLogistics : kernels::MixtureOfLogistics;
    kernel(static_cast<size_t>(nats.numel()),
           static_cast<size_t>(logits.size(-1) / (pixels ? 10 : 3)), dense.data_ptr<float>(),
           narrow.data_ptr<uint8_t>(),
           {.nats = nats.data_ptr<float>(),
            .grad = with_gradient ? gradient.data_ptr<float>() : nullptr},
           AtParallelFor);
    if (with_gradient) context->save_for_backward({gradient});
    return nats;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("the mixture of logistics");
    return {context->get_saved_variables()[0] * grads[0].unsqueeze(-1), Variable(), Variable(),
            Variable()};
  }
};

bool WithGradient(const Tensor& logits) {
  return torch::GradMode::is_enabled() && logits.requires_grad();
}

}  // namespace

Tensor FusedMixtureOfLogistics(const Tensor& logits, const Tensor& bytes) {
  return LogisticsFunction::apply(logits, bytes, /*pixels=*/false, WithGradient(logits));
}

Tensor FusedPixelLogistics(const Tensor& logits, const Tensor& bytes) {
  return LogisticsFunction::apply(logits, bytes, /*pixels=*/true, WithGradient(logits));
}

}  // namespace linnet::ops
