// The mixture-of-logistics loss as one differentiable libtorch operation over
// kernels/mixture_of_logistics.h: the gradient is made in the same pass as the value.
//
//   torch::Tensor nats = ops::MixtureOfLogisticsNats(logits, bytes);    // [N, L]
#ifndef LINNET_OPS_MIXTURE_OF_LOGISTICS_H_
#define LINNET_OPS_MIXTURE_OF_LOGISTICS_H_

#include <torch/types.h>

namespace linnet::ops {

// -log p(byte): logits [..., 3K]; int64 bytes [...] of 0 .. 255 -> [...]. In fp32 on the CPU the
// kernel; elsewhere the formula in libtorch's operations. Throws InputError on other shapes.
torch::Tensor MixtureOfLogisticsNats(const torch::Tensor& logits, const torch::Tensor& bytes);

}  // namespace linnet::ops

#endif  // LINNET_OPS_MIXTURE_OF_LOGISTICS_H_
