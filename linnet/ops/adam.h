// RAdam and Adam updates of lists of tensors. In fp32 on the CPU, a kernel (kernels/adam.h) updates
// all tensors in one pass over memory. Elsewhere, unfused libtorch operations update them.
//
//   const std::vector<double> norms = GradientNorms(parameters);
//   AdamUpdate(parameters, first, second, scales, {.step = 1e-3f});    // also clears the gradients
//
// FlatAdam, for GPUs, makes the same update with a few kernel launches for all tensors together.
// The host does not wait for the gradient norms.
#ifndef LINNET_OPS_ADAM_H_
#define LINNET_OPS_ADAM_H_

#include <torch/types.h>

#include <vector>

#include "linnet/kernels/adam.h"

namespace linnet::ops {

// The 2-norm of each parameter's gradient; 0 for a parameter without a gradient.
std::vector<double> GradientNorms(const std::vector<torch::Tensor>& parameters);

// Updates each parameter that has a gradient as kernels::AdamUpdate() does, with the parameter's
// entry of `gradient_scales` in place of step.gradient_scale. Then clears the gradient. Call under
// torch::NoGradGuard.
void AdamUpdate(std::vector<torch::Tensor>& parameters, std::vector<torch::Tensor>& first_moments,
                std::vector<torch::Tensor>& second_moments,
                const std::vector<double>& gradient_scales, const kernels::AdamStep& step);

class FlatAdam {
 public:
  // Copies the parameters (fp32, on one device) into one buffer, and makes each parameter a view of
  // that buffer. The moments are views of two more buffers, which are zero at first.
  explicit FlatAdam(const std::vector<torch::Tensor>& parameters);

  std::vector<torch::Tensor> first_moments() const { return Views(first_); }
  std::vector<torch::Tensor> second_moments() const { return Views(second_); }

  // Scales each tensor's gradient down to a norm of at most `clip` (0: no clipping), updates, and
  // clears the gradients. Parameters without a gradient keep their values and moments. If the norm
  // of any gradient is not finite, nothing is updated, and Finite() is false from then on.
  // step.gradient_scale is not read. Call under torch::NoGradGuard.
  void Update(const kernels::AdamStep& step, double clip) {
    Prepare(step);
    Apply(step, clip);
  }

  // The first half of Update(): copies the numbers that differ between steps (decay, step and
  // root_scale) to the device.
  void Prepare(const kernels::AdamStep& step);
  // The second half: everything else. A CUDA graph can replay it.
  void Apply(const kernels::AdamStep& step, double clip);

  // Whether the norms of all gradients so far were finite. Waits for the device.
  bool Finite() const { return finite_.item<bool>(); }

 private:
  // Number of elements that a tensor of `size` elements occupies in a buffer, including padding for
  // alignment. The padding stays zero.
  static int64_t Padded(int64_t size);
  // Concatenates the flattened tensors, each zero-padded to Padded() elements.
  static torch::Tensor Joined(const std::vector<torch::Tensor>& tensors);
  // For each parameter, its elements in the buffer `flat`, as a view of the parameter's shape.
  std::vector<torch::Tensor> Views(const torch::Tensor& flat) const;

  std::vector<torch::Tensor> parameters_;
  torch::Tensor values_, first_, second_;  // [all elements]
  torch::Tensor owner_;                    // int32: for each element, the index of its tensor
  torch::Tensor numbers_;                  // 1 - decay, step, root_scale
  torch::Tensor finite_;                   // bool, scalar
};

}  // namespace linnet::ops

#endif  // LINNET_OPS_ADAM_H_
