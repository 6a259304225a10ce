// Activation checkpointing: a part of a network that keeps only its input for the backward pass and
// computes everything else again.
//
//   y = Recompute([&](const torch::Tensor& x) { return layer->forward(x, mask); }, x);
//
// Costs the part's forward pass once more; memory for its intermediates is taken by one part at a
// time.
#ifndef LINNET_NN_RECOMPUTE_H_
#define LINNET_NN_RECOMPUTE_H_

#include <torch/types.h>

#include <functional>

namespace linnet::nn {

// body(x), with the gradients that body itself would give to x and to the parameters it uses; x must
// need a gradient, or the parameters get none (an embedding's output, say, does). Random
// numbers (dropout) are the same in both passes. `body` is kept until the backward pass; what it
// refers to must live until then. Without gradients recorded it is body(x) alone.
torch::Tensor Recompute(std::function<torch::Tensor(const torch::Tensor&)> body,
                        const torch::Tensor& x);

}  // namespace linnet::nn

#endif  // LINNET_NN_RECOMPUTE_H_
