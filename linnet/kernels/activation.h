// The activations of a feed-forward block, in place.
//
//   Activate(Activation::kGelu, hidden.size(), hidden.data());
#ifndef LINNET_KERNELS_ACTIVATION_H_
#define LINNET_KERNELS_ACTIVATION_H_

#include <cstddef>

namespace linnet::kernels {

enum class Activation {
  kRelu,  // max(x, 0)
  kGelu,  // x Phi(x) with the normal distribution's Phi, exact (no tanh): within 1e-7 (1 + |x|)
};

// Applies it to x [n], any address. NaNs stay NaNs.
void Activate(Activation activation, size_t n, float* x);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ACTIVATION_H_
