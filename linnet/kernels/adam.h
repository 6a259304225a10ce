// One update of RAdam (Liu et al., 2019) or Adam (Kingma & Ba, 2014) in one pass over memory, and
// the passes of Muon (Jordan et al., 2024).
//
//   const double norm = std::sqrt(SquaredNorm(n, gradient));
//   AdamUpdate(n, {.step = lr, .adaptive = true}, gradient, parameter, first, second);
#ifndef LINNET_KERNELS_ADAM_H_
#define LINNET_KERNELS_ADAM_H_

#include <cstddef>

namespace linnet::kernels {

// With g = gradient_scale * gradient:
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = decay p - step m / (root_scale sqrt(v) + eps)   if adaptive
//   p = decay p - step m                                otherwise
struct AdamStep {
  float beta1 = 0.9f, beta2 = 0.999f;
  float gradient_scale = 1;
  float decay = 1;       // 1 - learning rate * weight decay
  float step = 0;        // learning rate times bias correction and, in RAdam, rectification
  float root_scale = 1;  // corrects the bias of v
  float eps = 1e-8f;
  bool adaptive = true;
};

// Updates p, m and v [n] in place. The arrays may have any alignment. Elements are independent of
// each other, so several calls on pieces of the arrays give the same bits as one call.
void AdamUpdate(size_t n, const AdamStep& step, const float* gradient, float* p, float* m,
                float* v);

// Sum of the squares of x [n]. Sums each run of 1,024 elements in float, and the sums of the runs
// in double. The result is infinite if the sum of a run overflows float.
double SquaredNorm(size_t n, const float* x);

// Muon, before the orthogonalization: average = momentum average + scale gradient, and then
// gradient = scale gradient + momentum average. Returns the largest magnitude in the new gradient.
// gradient and average are [n].
float MuonAverage(size_t n, float scale, float momentum, float* gradient, float* average);

// Muon, after it: p = decay p - step x, for p and x [n].
void MuonStep(size_t n, float decay, float step, const float* x, float* p);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ADAM_H_
