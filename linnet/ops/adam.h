// Optimizer updates over lists of tensors. In fp32 on the CPU, one pass of kernels/adam.h over all
// tensors together; elsewhere libtorch's own operations.
//
//   const std::vector<double> norms = GradientNorms(parameters);
//   AdamUpdate(parameters, first, second, scales, {.step = 1e-3f});     // and clears the gradients
//
// On a GPU, FlatAdam makes the same update with a few kernels for all tensors together, and the
// host does not wait for the norms.
#ifndef LINNET_OPS_ADAM_H_
#define LINNET_OPS_ADAM_H_

#include <torch/types.h>

#include <vector>

#include "linnet/kernels/adam.h"

namespace linnet::ops {

// The 2-norm of each parameter's gradient; 0 for a parameter without a gradient.
std::vector<double> GradientNorms(const std::vector<torch::Tensor>& parameters);

// Applies kernels::AdamUpdate to each parameter that has a gradient. The gradient is first
// multiplied by its entry of `gradient_scales`, and cleared afterwards. Call under
// torch::NoGradGuard.
void AdamUpdate(std::vector<torch::Tensor>& parameters, std::vector<torch::Tensor>& first_moments,
                std::vector<torch::Tensor>& second_moments,
                const std::vector<double>& gradient_scales, const kernels::AdamStep& step);

class FlatAdam {
 public:
  // Moves the parameters, fp32 on one device, into one buffer; each becomes a view of its part. The
  // moments, zero at first, are views of two more buffers.
  explicit FlatAdam(const std::vector<torch::Tensor>& parameters);

  std::vector<torch::Tensor> first_moments() const { return Views(first_); }
  std::vector<torch::Tensor> second_moments() const { return Views(second_); }

  // Scales each tensor's gradient down to a norm of at most `clip` (0: never), updates, and clears
  // the gradients. Parameters without a gradient and their moments stay unchanged. If the norm of
  // any gradient is not finite, nothing is updated, and Finite() is false from then on.
  // step.gradient_scale is not read. Call under torch::NoGradGuard.
  void Update(const kernels::AdamStep& step, double clip) {
    Prepare(step);
    Apply(step, clip);
  }

  // The two halves of Update(). Prepare() copies the numbers that differ between steps (decay, step
  // and root_scale) to the device. Apply() does the rest; a CUDA graph can replay it.
  void Prepare(const kernels::AdamStep& step);
  void Apply(const kernels::AdamStep& step, double clip);

  // Whether the norms of all gradients so far were finite. Waits for the device.
  bool Finite() const { return finite_.item<bool>(); }

 private:
  // Number of elements that a tensor of `size` elements takes in a buffer, including its alignment
  // padding, which stays zero.
  static int64_t Padded(int64_t size);
  // Concatenates the flattened tensors, each zero-padded to Padded() elements.
  static torch::Tensor Joined(const std::vector<torch::Tensor>& tensors);
  std::vector<torch::Tensor> Views(const torch::Tensor& flat) const;

  std::vector<torch::Tensor> parameters_;
  torch::Tensor values_, first_, second_;  // [all elements]
  torch::Tensor owner_;                    // the tensor that each element belongs to, int32
  torch::Tensor numbers_;                  // 1 - decay, step, root_scale
  torch::Tensor finite_;                   // bool, scalar
};

}  // namespace linnet::ops

#endif  // LINNET_OPS_ADAM_H_
