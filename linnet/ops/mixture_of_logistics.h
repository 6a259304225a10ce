// The mixture-of-logistics loss as one differentiable libtorch operation over
// kernels/mixture_of_logistics.h and pixel_logistics.h, which compute value and gradient in one
// pass.
//
//   torch::Tensor nats = ops::MixtureOfLogisticsNats(logits, bytes);    // [N, L]
#ifndef LINNET_OPS_MIXTURE_OF_LOGISTICS_H_
#define LINNET_OPS_MIXTURE_OF_LOGISTICS_H_

#include <torch/types.h>

namespace linnet::ops {

// -log p(byte) in nats: logits [..., 3K] (K mixture logits, K means, K log scales), int64 bytes
// [...] in 0 .. 255 -> [...]. Runs the kernel in fp32 on the CPU, libtorch's operations elsewhere.
// Throws InputError on other shapes and types.
torch::Tensor MixtureOfLogisticsNats(const torch::Tensor& logits, const torch::Tensor& bytes);

// -log p(pixel) in nats: logits [..., 10 K] as in kernels/pixel_logistics.h, int64 bytes [..., 3]
// (red, green, blue) -> [...]. Forms and errors as above.
torch::Tensor PixelLogisticsNats(const torch::Tensor& logits, const torch::Tensor& bytes);

}  // namespace linnet::ops

#endif  // LINNET_OPS_MIXTURE_OF_LOGISTICS_H_
