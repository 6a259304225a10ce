// Cross entropy as one differentiable libtorch operation over kernels/exp_sum.h: of [R, C] logits nothing
// as large is kept but the logits themselves.
//
//   torch::Tensor nats = ops::CrossEntropyNats(logits, targets);    // [R, C], [R] -> [R]
#ifndef LINNET_OPS_CROSS_ENTROPY_H_
#define LINNET_OPS_CROSS_ENTROPY_H_

#include <torch/types.h>

namespace linnet::ops {

// -log softmax(logits)[target] in nats: logits [R, C], int64 targets [R] of 0 .. C - 1 -> [R]. In fp32 on
// the CPU the kernel; elsewhere libtorch's operations. Throws InputError on other shapes and targets.
torch::Tensor CrossEntropyNats(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CROSS_ENTROPY_H_
