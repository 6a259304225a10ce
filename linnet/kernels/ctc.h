// Connectionist temporal classification (CTC) of one sequence: -log of the summed probability of
// all paths that yield the target sequence, and its gradient, in one call.
//
//   std::vector<float> scratch(CtcScratch(frames, labels, true));
//   const double nats = Ctc({.frames = frames, .classes = c, .labels = labels, .log_probs = p,
//                            .targets = y, .grad = g}, scratch.data());
//
// A path names a class at each frame. Removing repetitions and then blanks yields the target
// sequence y. Let b[i] and e[i] be the log probabilities that a path has reached the states "blank
// before target i" and "target i", and p a frame's log probabilities. For each frame:
//
//   b[i] <- p[blank] + log(exp b[i] + exp e[i - 1])
//   e[i] <- p[y_i] + log(exp e[i] + exp b[i] + exp e[i - 1], the last only if y_i != y_(i-1))
//
// The backward recursion mirrors this one. The cost is proportional to frames x labels; the kernel
// is vectorized over the targets.
#ifndef LINNET_KERNELS_CTC_H_
#define LINNET_KERNELS_CTC_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

struct CtcArgs {
  size_t frames = 0, classes = 0, labels = 0;
  size_t stride = 0;                 // floats from one frame to the next, in log_probs and grad
  size_t blank = 0;                  // < classes
  const float* log_probs = nullptr;  // [frames, classes]
  const int64_t* targets = nullptr;  // [labels], each < classes
  // [frames, classes], may be null: d nats / d logits where log_probs = log_softmax(logits). This
  // is a class's probability minus its posterior, the probability that a path which yields the
  // targets takes this class at this frame. grad is 0 if the returned value is infinite or NaN.
  float* grad = nullptr;
};

inline constexpr size_t kCtcPad = 16;  // padding at both ends of a row of scratch, in floats
// Number of floats of scratch. With a gradient, about two for each frame and target, plus padding.
size_t CtcScratch(size_t frames, size_t labels, bool with_grad);

// Returns -log of the summed probability, in nats: infinity if no path is possible (too few frames,
// or probabilities of 0), NaN if the probability of the blank or of a target is NaN.
double Ctc(const CtcArgs& args, float* scratch);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CTC_H_
