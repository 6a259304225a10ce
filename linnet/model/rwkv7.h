// RWKV-7's time mixing: its equations, and constants that training and inference share.
//
// The equations are for one position with input x, and one head. A projection reads
// x + (previous x - x) * shift, where `shift` is its token shift x_r, x_k, x_v, x_w, x_a or x_g.
// The lines apply in this order; the second lines for v and k replace the projected vectors:
//
//   r, k, v   receptance, key and value
//   decay     -e^(-1/2) sigmoid(w0 + tanh(w1) w2), a logarithm, per key channel
//   a         sigmoid(a0 + a1 a2), per key channel: the rate at which the state learns
//   g         sigmoid(g1) g2, per value channel: the output's gate
//   v         v + (v_first - v) * sigmoid(v0 + v1 v2), if value_rank > 0: v_first are the values of
//             the last earlier layer with value_rank 0
//   removal   k * k_k / |k * k_k|
//   k         k (1 + (a - 1) * k_a)
//   out       output of the scan kRwkv7 (kernels/scan.h): erase = -removal, write = removal * a
//   result    (norm(out) + (sum over key channels of r * k * r_k) v) * g, where norm is a layer
//             norm over the head's values, with the weight and bias of ln_x
//
// tanh(w1) w2, a1 a2, ... are low-rank products: w1, a1, g1 and v1 are projections that all heads
// share; w2, a2, g2 and v2 are matrices. Names and shapes are those of BlinkDL's files, except that
// w1, a1, g1 and v1 have weights [rank, d_model] here.
#ifndef LINNET_MODEL_RWKV7_H_
#define LINNET_MODEL_RWKV7_H_

namespace linnet {

inline constexpr double kRwkv7Decay = -0.60653065971263342;  // -e^(-1/2)
inline constexpr double kRwkv7NormEps = 64e-5;               // of the norm of a head's output
inline constexpr double kRwkv7LeastLength = 1e-12;           // lower limit of |k * k_k|

}  // namespace linnet

#endif  // LINNET_MODEL_RWKV7_H_
