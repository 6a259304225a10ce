// Connectionist temporal classification of one sequence: -log of the sum over all paths that stand for it,
// and its derivative, in one call.
//
//   std::vector<float> scratch(CtcScratch(frames, symbols, true));
//   const double nats = Ctc({.frames = frames, .classes = c, .symbols = symbols, .log_probs = p,
//                            .targets = y, .grad = g}, scratch.data());
//
// A path names a class at each frame; without repetitions and then without blanks it is the sequence y.
// With b and e the states "blank before symbol i" and "symbol i", and p a frame's log probabilities:
//
//   b[i] <- p[blank] + log(exp b[i] + exp e[i - 1])
//   e[i] <- p[y_i] + log(exp e[i] + exp b[i] + exp e[i - 1], the last where y_i differs from y_(i-1))
//
// and backwards likewise. Costs frames x symbols, in vectors over the symbols.
#ifndef LINNET_KERNELS_CTC_H_
#define LINNET_KERNELS_CTC_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

struct CtcArgs {
  size_t frames = 0, classes = 0, symbols = 0;
  size_t stride = 0;                 // floats from one frame to the next, in log_probs and in grad
  size_t blank = 0;                  // < classes
  const float* log_probs = nullptr;  // [frames, classes]
  const int64_t* targets = nullptr;  // [symbols], each < classes
  // [frames, classes]: d nats / d logits, where the log probabilities are log_softmax(logits): probability
  // less the share of the paths that pass there. 0 where no path is possible. May be null.
  float* grad = nullptr;
};

inline constexpr size_t kCtcPad = 16;  // floats at both ends of a row of scratch
// Floats of scratch: with a gradient two for each frame and symbol.
size_t CtcScratch(size_t frames, size_t symbols, bool with_grad);

// Nats; infinity where no path is possible, for lack of frames or because of probabilities of 0. NaN
// where one of the probabilities that count is one.
double Ctc(const CtcArgs& args, float* scratch);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CTC_H_
