#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <cmath>

#include "linnet/kernels/exp_sum.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The backward recomputes the exponentials from the logits and each row's maximum, which is cheaper
// than storing them.
class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& targets) {
    const Tensor dense = logits.contiguous(), wanted = targets.to(logits.device()).contiguous();
    const auto rows = static_cast<size_t>(dense.size(0)),
               classes = static_cast<size_t>(dense.size(1));
    const Tensor nats = torch::empty({dense.size(0)}, dense.options());
    // tops: the largest logit of each row. shares: 1 / (the row's sum of exp(logit - largest)).
    const Tensor tops = torch::empty_like(nats), shares = torch::empty_like(nats);
    const float* const x = dense.data_ptr<float>();
    const int64_t* const target = wanted.data_ptr<int64_t>();
    float* const out = nats.data_ptr<float>();
    float* const top = tops.data_ptr<float>();
    float* const share = shares.data_ptr<float>();
    AtParallelFor(rows, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        const float* const row = x + r * classes;
        const float largest = kernels::Largest(row, classes);
        const double sum = kernels::ExpSum(row, classes, largest, 1, nullptr);
        // Subtracts the two logits first, because log(sum) added to a large logit would be lost to
        // rounding.
        out[r] =
            static_cast<float>(std::log(sum) + (largest - static_cast<double>(row[target[r]])));
        top[r] = largest, share[r] = static_cast<float>(1 / sum);
      }
    });
    context->save_for_backward({dense, wanted, tops, shares});
    return nats;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("cross entropy");
    const variable_list saved = context->get_saved_variables();
    const Tensor gradient = torch::empty_like(saved[0]);
    const Tensor scales = grads[0].contiguous();
    const auto rows = static_cast<size_t>(gradient.size(0));
    const auto classes = static_cast<size_t>(gradient.size(1));
    const float* const x = saved[0].data_ptr<float>();
    const int64_t* const target = saved[1].data_ptr<int64_t>();
    const float* const top = saved[2].data_ptr<float>();
    const float* const share = saved[3].data_ptr<float>();
    const float* const scale = scales.data_ptr<float>();
    float* const out = gradient.data_ptr<float>();
    AtParallelFor(rows, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        float* const row = out + r * classes;
        kernels::ExpSum(x + r * classes, classes, top[r], 1, row);
        const float times = share[r] * scale[r];
        for (size_t c = 0; c < classes; ++c) row[c] *= times;
        row[target[r]] -= scale[r];
      }
    });
    return {gradient, Variable()};
  }
};

}  // namespace

Tensor FusedCrossEntropy(const Tensor& logits, const Tensor& targets) {
  return CrossEntropyFunction::apply(logits, targets);
}

}  // namespace linnet::ops
