// The CTC loss as one differentiable libtorch operation over kernels/ctc.h, which computes value
// and gradient in one pass.
//
//   torch::Tensor nats = ops::CtcNats(log_probs, targets, input_lengths, target_lengths);    // [N]
#ifndef LINNET_OPS_CTC_H_
#define LINNET_OPS_CTC_H_

#include <torch/types.h>

namespace linnet::ops {

// -log of the summed probability of all paths that yield the target: log_probs [N, T, C] from
// log_softmax, int64 targets [N, S] (class indices), and the int64 lengths [N] of both -> nats [N].
// If a target has too few frames (each token needs one, and two equal neighbors need a blank frame
// in between), its nats are infinite and its gradients 0. As in PyTorch, the gradient for log_probs
// is the gradient with respect to the logits; the backward of log_softmax leaves it unchanged,
// because each frame's gradient sums to 0. Runs the kernel in fp32 on the CPU, libtorch's operation
// elsewhere. Throws InputError if shapes or types disagree, a length is negative or exceeds its
// sequence, or a target or the blank is not a class.
torch::Tensor CtcNats(const torch::Tensor& log_probs, const torch::Tensor& targets,
                      const torch::Tensor& input_lengths, const torch::Tensor& target_lengths,
                      int64_t blank = 0);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CTC_H_
