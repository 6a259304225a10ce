// A layer norm or an RMS norm over the last dimension, as a module. Its parameters have the names
// of libtorch's layer norm.
//
//   Norm norm(256, NormKind::kRms, 1e-6);
//   y = norm(x);
//   y = ops::Linear(x, weight, bias, precision, norm->of());   // fused with the product after it
#ifndef LINNET_NN_NORM_H_
#define LINNET_NN_NORM_H_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include "linnet/ops/layer_rows.h"
#include "linnet/spec.h"

namespace linnet::nn {

class NormImpl : public torch::nn::Module {
 public:
  NormImpl(int64_t dim, NormKind kind, double eps) : eps_(eps) {
    weight = register_parameter("weight", torch::ones({dim}));
    if (kind == NormKind::kLayer) bias = register_parameter("bias", torch::zeros({dim}));
  }
  torch::Tensor forward(const torch::Tensor& x) const { return ops::Normalize(x, of()); }
  // The weights in the form that operations fused with a norm take.
  ops::Norm of() const { return {weight, bias, eps_}; }

  torch::Tensor weight, bias;  // RMS: no bias

 private:
  double eps_;
};
TORCH_MODULE(Norm);

}  // namespace linnet::nn

#endif  // LINNET_NN_NORM_H_
