// The connectionist temporal classification (CTC) loss of one sequence and its gradient, in one
// call. The loss is -log of the summed probability of all paths that yield the target sequence.
//
//   std::vector<float> scratch(CtcScratch(frames, labels, true));
//   const double nats = Ctc({.frames = frames, .classes = c, .labels = labels, .stride = c,
//                            .log_probs = p, .targets = y, .grad = g}, scratch.data());
//
// A path names a class at each frame. It yields the target sequence y if merging repeated classes
// and then removing blanks gives y. b[i] and e[i] are the log probabilities that a path has reached
// the states "blank before target i" and "target i". p holds a frame's log probabilities. For each
// frame:
//
//   b[i] <- p[blank] + log(exp b[i] + exp e[i - 1])
//   e[i] <- p[y_i] + log(exp e[i] + exp b[i] + exp e[i - 1])
//
// The second line omits exp e[i - 1] if y_i = y_(i-1). The backward recursion mirrors this one. The
// cost is proportional to frames x labels. The kernel is vectorized over the targets.
#ifndef LINNET_KERNELS_CTC_H_
#define LINNET_KERNELS_CTC_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

struct CtcArgs {
  // labels: length of the target sequence.
  size_t frames = 0, classes = 0, labels = 0;
  size_t stride = 0;                 // floats from one frame to the next, in log_probs and grad
  size_t blank = 0;                  // < classes
  const float* log_probs = nullptr;  // [frames, classes]
  const int64_t* targets = nullptr;  // [labels], each < classes
  // [frames, classes], may be null: gradient of the loss with respect to the logits, where
  // log_probs = log_softmax(logits). It is the probability of a class minus its posterior. The
  // posterior is the probability that a path takes this class at this frame, given that it yields
  // the targets. grad is 0 if the loss is infinite or NaN.
  float* grad = nullptr;
};

inline constexpr size_t kCtcPad = 16;  // padding at both ends of a row of scratch, in floats
// Number of floats of scratch. With a gradient, this is about two floats for each frame and target,
// plus padding.
size_t CtcScratch(size_t frames, size_t labels, bool with_grad);

// Returns the loss in nats. It is infinite if no path is possible, because there are too few frames
// or probabilities are 0. It is NaN if a log probability of the blank or of a target is NaN.
double Ctc(const CtcArgs& args, float* scratch);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CTC_H_
