// Activation checkpointing: a part of a network that keeps only its inputs for the backward pass and
// computes everything else again.
//
//   using Inputs = std::vector<torch::Tensor>;
//   y = Recompute([&](const Inputs& in) { return layer->forward(in[0], mask); }, {x});
//
// Costs the part's forward pass once more; memory for its intermediates is taken by one part at a
// time.
#ifndef LINNET_NN_RECOMPUTE_H_
#define LINNET_NN_RECOMPUTE_H_

#include <torch/types.h>

#include <functional>
#include <vector>

namespace linnet::nn {

// body(inputs), with the gradients that body itself would give to the inputs and, by way of
// backward(), to the parameters it uses. What else has a gradient must be among the inputs. Random
// numbers (dropout) are the same in both passes. `body` is kept until the backward pass; what it
// refers to must live until then. Without gradients recorded it is body(inputs) alone.
torch::Tensor Recompute(std::function<torch::Tensor(const std::vector<torch::Tensor>&)> body,
                        const std::vector<torch::Tensor>& inputs);

}  // namespace linnet::nn

#endif  // LINNET_NN_RECOMPUTE_H_
