// Activation functions of a feed-forward block: in place, out of place, and backward.
//
//   Activate(Activation::kGelu, hidden.size(), hidden.data());
#ifndef LINNET_KERNELS_ACTIVATION_H_
#define LINNET_KERNELS_ACTIVATION_H_

#include <cstddef>

#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

enum class Activation {
  kRelu,  // max(x, 0)
  kGelu,  // x Phi(x); Phi is the normal CDF, not the tanh approximation; error < 1e-7 (1 + |x|)
};

// Replaces x [n] by act(x). x may have any alignment. NaNs stay NaNs.
void Activate(Activation activation, size_t n, float* x);

// out = act(x), computed in fp32. out [n] may be the same array as x.
void Activate(Activation activation, size_t n, const float* x, float* out);
void Activate(Activation activation, size_t n, const BFloat16* x, BFloat16* out);

// out[r, i] = silu(x[r, i]) x[r, width + i], with silu as in gates.h. x is [rows, 2 width], and out
// [rows, width] may start at x itself. NaNs stay NaNs.
void GatedSilu(size_t rows, size_t width, const float* x, float* out);

// Replaces x [n] by max(x, 0)^2. NaNs stay NaNs.
void SquaredRelu(size_t n, float* x);

// Arguments of ActivateBackward(), the backward pass of act(x). All arrays except column_sums are
// [rows, columns]; x is dense.
template <typename T>  // float or BFloat16
struct ActivationBackwardArgs {
  const T* x = nullptr;             // input of the forward pass
  const float* grad_out = nullptr;  // gradient of act(x)
  T* out = nullptr;                 // act(x), recomputed: the next layer's weight gradient needs it
  T* grad = nullptr;                // grad_out * act'(x); may be grad_out itself if T is float
  float* column_sums = nullptr;     // optional, [columns]; the column sums of grad are added to it
  size_t stride = 0;                // between rows of grad_out, out and grad, in elements; 0: dense
};
void ActivateBackward(Activation activation, size_t rows, size_t columns,
                      const ActivationBackwardArgs<float>& args);
void ActivateBackward(Activation activation, size_t rows, size_t columns,
                      const ActivationBackwardArgs<BFloat16>& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ACTIVATION_H_
