// Reference for activation.h: plain double precision.
#ifndef LINNET_KERNELS_ACTIVATION_REF_H_
#define LINNET_KERNELS_ACTIVATION_REF_H_

#include <cmath>

#include "linnet/kernels/activation.h"

namespace linnet::kernels {

inline double ActivationRef(Activation activation, double x) {
  if (activation == Activation::kRelu) return x > 0 ? x : 0;
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

inline double SquaredReluRef(double x) { return x > 0 ? x * x : 0; }

inline double SiluRef(double x) { return x / (1 + std::exp(-x)); }

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ACTIVATION_REF_H_
