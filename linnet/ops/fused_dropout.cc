#include "linnet/kernels/dropout.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Tensor Apply(const Tensor& x_in, int64_t seed, double p) {
  constexpr int64_t kGrain = 1 << 14;  // minimum elements per thread
  const Tensor x = x_in.contiguous(), out = torch::empty_like(x);
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernels::Dropout(static_cast<uint64_t>(seed), static_cast<float>(p), static_cast<size_t>(begin),
                     static_cast<size_t>(end - begin), x.data_ptr<float>() + begin,
                     out.data_ptr<float>() + begin);
  });
  return out;
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t seed, double p) {
    context->saved_data["seed"] = seed;
    context->saved_data["p"] = p;
    return Apply(x, seed, p);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("dropout");
    return {
        Apply(grads[0], context->saved_data["seed"].toInt(), context->saved_data["p"].toDouble()),
        Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedDropout(const Tensor& x, double p) {
  return DropoutFunction::apply(x, torch::empty({1}, torch::kInt64).random_().item<int64_t>(), p);
}

}  // namespace linnet::ops
