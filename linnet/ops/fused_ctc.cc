#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <memory>

#include "linnet/kernels/ctc.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class CtcFunction : public torch::autograd::Function<CtcFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& log_probs, const Tensor& targets,
                        const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                        bool with_gradient) {
    const Tensor p = log_probs.contiguous(), y = targets.contiguous();
    // The number of frames (input) and of labels (target) of each batch element.
    const Tensor frames = input_lengths.contiguous(), labels = target_lengths.contiguous();
    const auto length = static_cast<size_t>(p.size(1)), classes = static_cast<size_t>(p.size(2));
    const auto longest = static_cast<size_t>(y.size(1));
    const Tensor nats = torch::empty({p.size(0)}, p.options());
    const Tensor gradient = with_gradient ? torch::zeros_like(p) : Tensor();
    AtParallelFor(static_cast<size_t>(p.size(0)), [&](size_t begin, size_t end) {
      for (size_t n = begin; n < end; ++n) {
        const kernels::CtcArgs args{
            .frames = static_cast<size_t>(frames.data_ptr<int64_t>()[n]),
            .classes = classes,
            .labels = static_cast<size_t>(labels.data_ptr<int64_t>()[n]),
            .stride = classes,
            .blank = static_cast<size_t>(blank),
            .log_probs = p.data_ptr<float>() + n * length * classes,
            .targets = y.data_ptr<int64_t>() + n * longest,
            .grad = with_gradient ? gradient.data_ptr<float>() + n * length * classes : nullptr};
        // Not a std::vector, which would zero the memory.
        const std::unique_ptr<float[]> scratch(
            new float[kernels::CtcScratch(args.frames, args.labels, with_gradient)]);
        nats.data_ptr<float>()[n] = static_cast<float>(kernels::Ctc(args, scratch.get()));
      }
    });
    if (with_gradient) context->save_for_backward({gradient});
    return nats;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("CTC");
    return {context->get_saved_variables()[0] * grads[0].view({-1, 1, 1}),
            Variable(),
            Variable(),
            Variable(),
            Variable(),
            Variable()};
  }
};

}  // namespace

Tensor FusedCtc(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, int64_t blank) {
  const bool with_gradient = torch::GradMode::is_enabled() && log_probs.requires_grad();
  return CtcFunction::apply(log_probs, targets.cpu(), input_lengths.cpu(), target_lengths.cpu(),
                            blank, with_gradient);
}

}  // namespace linnet::ops
