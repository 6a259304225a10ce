// The functions of gates (private to linnet/runtime). Their results are finite for all finite x.
#ifndef LINNET_RUNTIME_GATE_FUNCTIONS_H_
#define LINNET_RUNTIME_GATE_FUNCTIONS_H_

#include <algorithm>
#include <cmath>

namespace linnet {

inline float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
inline float Softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }
inline float LogSigmoid(float x) { return -Softplus(-x); }

}  // namespace linnet

#endif  // LINNET_RUNTIME_GATE_FUNCTIONS_H_
