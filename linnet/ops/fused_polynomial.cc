#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/polynomial.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Polynomial2Function : public torch::autograd::Function<Polynomial2Function> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& given) {
    const Tensor x = given.contiguous();
    const auto dim = static_cast<size_t>(x.size(-1));
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = static_cast<int64_t>(kernels::Polynomial2Size(dim));
    const Tensor phi = torch::empty(sizes, x.options());
    kernels::Polynomial2Features(static_cast<size_t>(x.numel()) / dim, dim, Data<float>(x),
                                 Data<float>(phi), AtParallelFor);
    context->save_for_backward({x});
    return phi;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("polynomial features");
    const Tensor x = context->get_saved_variables()[0], grad_phi = grads[0].contiguous();
    const Tensor grad_x = torch::empty_like(x);
    const auto dim = static_cast<size_t>(x.size(-1));
    kernels::Polynomial2Backward(static_cast<size_t>(x.numel()) / dim, dim, Data<float>(x),
                                 Data<float>(grad_phi), Data<float>(grad_x), AtParallelFor);
    return {grad_x};
  }
};

}  // namespace

Tensor FusedPolynomial2(const Tensor& x) { return Polynomial2Function::apply(x); }

}  // namespace linnet::ops
