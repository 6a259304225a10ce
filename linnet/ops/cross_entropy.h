// Cross entropy as one differentiable libtorch operation over kernels/exp_sum.h. For the backward,
// the fused form keeps the [R, C] logits and no other buffer of that size.
//
//   torch::Tensor nats = ops::CrossEntropyNats(logits, targets);    // [R, C], [R] -> [R]
#ifndef LINNET_OPS_CROSS_ENTROPY_H_
#define LINNET_OPS_CROSS_ENTROPY_H_

#include <torch/types.h>

namespace linnet::ops {

// -log softmax(logits)[target] in nats: logits [R, C], int64 targets [R] in 0 .. C - 1 -> [R]. Runs
// the kernel in fp32 on the CPU, libtorch's operations elsewhere. Throws InputError on other shapes
// and types and, if the targets are on the CPU, on targets out of range.
torch::Tensor CrossEntropyNats(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CROSS_ENTROPY_H_
