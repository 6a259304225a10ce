// The CTC loss as one differentiable libtorch operation over kernels/ctc.h, which computes value
// and gradient in one pass.
//
//   torch::Tensor nats = ops::CtcNats(log_probs, targets, frames, labels);    // [N]
#ifndef LINNET_OPS_CTC_H_
#define LINNET_OPS_CTC_H_

#include <torch/types.h>

namespace linnet::ops {

// -log of the summed probability of all paths that yield the target: log_probs [N, T, C] from
// log_softmax, int64 targets [N, S] of classes, and the lengths [N] of both -> nats [N]. A target
// that cannot fit (it needs a frame for each token and for a blank between equal neighbors) has
// infinite nats and gradients of 0. As in PyTorch, the gradient of log_probs is that of the logits
// before log_softmax, whose backward leaves it unchanged. Runs the kernel in fp32 on the CPU,
// libtorch's operation elsewhere. Throws InputError if shapes disagree, or if a target or blank is
// not a class.
torch::Tensor CtcNats(const torch::Tensor& log_probs, const torch::Tensor& targets,
                      const torch::Tensor& input_lengths, const torch::Tensor& target_lengths,
                      int64_t blank = 0);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CTC_H_
