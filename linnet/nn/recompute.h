// Activation checkpointing: a part of a network keeps only its inputs until the backward pass,
// which recomputes the part's intermediate results.
//
//   using Inputs = std::vector<torch::Tensor>;
//   y = Recompute([&](const Inputs& in) { return layer->forward(in[0], mask); }, {x});
//
// Costs a second forward pass of the part. Only one part's intermediate results are in memory at a
// time.
#ifndef LINNET_NN_RECOMPUTE_H_
#define LINNET_NN_RECOMPUTE_H_

#include <torch/types.h>

#include <functional>
#include <vector>

namespace linnet::nn {

// Returns body(inputs). Gradients flow to the inputs and, through backward(), to the parameters
// that body uses, as without checkpointing. Any other tensor that needs a gradient must be among
// the inputs. Random numbers (dropout) are the same in both passes. `body` is kept until the
// backward pass; everything it refers to must live until then. With gradients disabled, only calls
// body.
torch::Tensor Recompute(std::function<torch::Tensor(const std::vector<torch::Tensor>&)> body,
                        const std::vector<torch::Tensor>& inputs);

}  // namespace linnet::nn

#endif  // LINNET_NN_RECOMPUTE_H_
