// The elementwise functions of gated recurrences: gates, decays, write strengths, time steps and
// token shifts.
//
//   Silu(n, q);                       // q = silu(q)
//   LogSigmoid(n, 1.0f / 16, decay);  // decay = log(sigmoid(decay)) / 16
//   GateBySilu(n, gate, out);         // out = out silu(gate)
//
// Arrays may have any alignment. NaNs stay NaNs. The relative error of the functions of one
// variable is below 1e-7 (10 + |x|) for |x| <= 87. Beyond, results are within 1e-34 |scale| of zero
// where the function tends to zero.
#ifndef LINNET_KERNELS_GATES_H_
#define LINNET_KERNELS_GATES_H_

#include <cstddef>

namespace linnet::kernels {

// Replace x [n]. sigmoid(x) = 1 / (1 + e^-x), silu(x) = x sigmoid(x), softplus(x) = log(1 + e^x).
void Silu(size_t n, float* x);
void Sigmoid(size_t n, float scale, float* x);     // scale sigmoid(x)
void LogSigmoid(size_t n, float scale, float* x);  // scale log(sigmoid(x)) = -scale softplus(-x)
void Softplus(size_t n, float scale, float* x);    // scale softplus(x)
void Tanh(size_t n, float* x);

// Multiplies x [n] by silu(gate) [n].
void GateBySilu(size_t n, const float* gate, float* x);

// to = x + share * (other - x), elementwise [n]. A null `other` counts as zeros; `to` may be x.
void Interpolate(size_t n, const float* x, const float* other, const float* share, float* to);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_GATES_H_
