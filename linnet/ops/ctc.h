// The CTC loss as one differentiable libtorch operation over kernels/ctc.h: the gradient is made in the same
// pass as the value.
//
//   torch::Tensor nats = ops::CtcNats(log_probs, targets, frames, symbols);    // [N]
#ifndef LINNET_OPS_CTC_H_
#define LINNET_OPS_CTC_H_

#include <torch/types.h>

namespace linnet::ops {

// -log of the sum over all paths that stand for a sequence: log_probs [N, T, C] out of log_softmax, int64
// targets [N, S] of classes and lengths [N] of both -> nats [N]. A target that cannot fit, for lack of a
// frame for each of its symbols and a blank between two that are equal, has infinite nats and gradients of
// 0. As in PyTorch, the gradient of log_probs is that of the logits behind the log_softmax, which
// its way back leaves as it is. In fp32 on the CPU the kernel; elsewhere libtorch's operation. Throws InputError on shapes that
// disagree, and on a target or blank that is no class.
torch::Tensor CtcNats(const torch::Tensor& log_probs, const torch::Tensor& targets,
                      const torch::Tensor& input_lengths, const torch::Tensor& target_lengths,
                      int64_t blank = 0);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CTC_H_
