// Double-precision reference for ctc.h. It uses one chain of 2 * labels + 1 states: blank, target,
// blank, ..., blank.
#ifndef LINNET_KERNELS_CTC_REF_H_
#define LINNET_KERNELS_CTC_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "linnet/kernels/ctc.h"

namespace linnet::kernels {

// grad is dense [frames, classes] or null. args.grad is not used.
inline double CtcRef(const CtcArgs& args, double* grad) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const size_t states = 2 * args.labels + 1, frames = args.frames;
  const auto label = [&](size_t s) {
    return s % 2 == 0 ? args.blank : static_cast<size_t>(args.targets[s / 2]);
  };
  const auto p = [&](size_t t, size_t s) {
    return static_cast<double>(args.log_probs[t * args.stride + label(s)]);
  };
  const auto skips = [&](size_t s) { return s % 2 == 1 && s >= 2 && label(s) != label(s - 2); };
  const auto add = [](double a, double b) {
    const double most = std::max(a, b);
    return most == kNever ? kNever : most + std::log(std::exp(a - most) + std::exp(b - most));
  };
  if (grad != nullptr) std::fill_n(grad, frames * args.classes, 0.0);
  if (frames == 0) return args.labels == 0 ? 0 : -kNever;
  std::vector<double> alpha(frames * states, kNever), beta(frames * states, kNever);
  for (size_t t = 0; t < frames; ++t) {
    for (size_t s = 0; s < states; ++s) {
      double sum = t == 0 && s < 2 ? 0 : kNever;
      if (t > 0) {
        const double* before = &alpha[(t - 1) * states];
        sum = before[s];
        if (s >= 1) sum = add(sum, before[s - 1]);
        if (skips(s)) sum = add(sum, before[s - 2]);
      }
      alpha[t * states + s] = sum + p(t, s);
    }
  }
  for (size_t t = frames; t-- > 0;) {  // beta[t] excludes the log probabilities of frame t
    for (size_t s = 0; s < states; ++s) {
      double sum = t + 1 == frames && s + 2 >= states ? 0 : kNever;
      if (t + 1 < frames) {
        const double* after = &beta[(t + 1) * states];
        sum = after[s] + p(t + 1, s);
        if (s + 1 < states) sum = add(sum, after[s + 1] + p(t + 1, s + 1));
        if (s + 2 < states && skips(s + 2)) sum = add(sum, after[s + 2] + p(t + 1, s + 2));
      }
      beta[t * states + s] = sum;
    }
  }
  double all = kNever;
  for (size_t s = 0; s < states; ++s) all = add(all, alpha[s] + beta[s]);
  if (all == kNever) return -kNever;
  for (size_t t = 0; grad != nullptr && t < frames; ++t) {
    for (size_t c = 0; c < args.classes; ++c) {
      grad[t * args.classes + c] =
          std::exp(static_cast<double>(args.log_probs[t * args.stride + c]));
    }
    for (size_t s = 0; s < states; ++s) {
      grad[t * args.classes + label(s)] -=
          std::exp(alpha[t * states + s] + beta[t * states + s] - all);
    }
  }
  return -all;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CTC_REF_H_
