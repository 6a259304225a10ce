// Optimizers whose whole state is two lists of tensors and a step count, so that a checkpoint can
// hold it and a resumed run equals an uninterrupted one.
//
//   Optimizer optimizer({.name = "radam"}, model->parameters());
//   loss.backward();
//   optimizer.Step(learning_rate);     // also clears the gradients
//
// Muon (Jordan et al., 2024) averages the gradients of a matrix, as SGD with momentum does, and
// makes all singular values of the average about equal before it is subtracted. It updates the
// matrices that its caller names; Adam updates the other parameters. A matrix whose gradient stays
// zero goes on moving.
#ifndef LINNET_NN_OPTIMIZER_H_
#define LINNET_NN_OPTIMIZER_H_

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "linnet/ops/adam.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::nn {

struct OptimizerOptions {
  // "radam" (Liu et al., 2019), "adam" (Kingma & Ba, 2014) or "muon".
  std::string name = "radam";
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;           // added after the square root
  double weight_decay = 0.01;  // decoupled: p -= lr * weight_decay * p
  double clip = 1.0;           // maximum norm of each tensor's gradient; 0: no clipping
  // radam makes steps of momentum SGD until rho_t, the length of the averaged gradient history,
  // reaches this value, and adaptive steps from then on. fast-transformers uses 5, Liu et al. 4.
  double rectify_from = 5;
  // muon: the decay of the average of gradients, and the precision of the products that
  // orthogonalize it
  double momentum = 0.95;
  ops::Precision precision = ops::Precision::kFp32;
};

class Optimizer {
 public:
  // `matrices`, for muon: the indices of the parameters that it orthogonalizes, which have two
  // dimensions and are on the CPU.
  Optimizer(const OptimizerOptions& options, std::vector<torch::Tensor> parameters,
            std::vector<size_t> matrices = {});

  // Updates the parameters from their gradients, then clears the gradients. Parameters without a
  // gradient stay unchanged. If a gradient is not finite, no parameter or moment changes, and
  // RuntimeError is thrown: by Step() on the CPU, and by Check() on another device, where Step()
  // does not wait for the norms.
  void Step(double learning_rate);

  // Step() in two halves, only on a device other than the CPU. Begin() counts the step and copies
  // its step size and decay to the device; Finish() makes the update. Begin() returns whether the
  // step is adaptive. From the first adaptive step on, Finish() runs the same operations at every
  // step, so that a CUDA graph can replay them.
  bool Begin(double learning_rate);
  void Finish();

  // Throws RuntimeError if a gradient of an earlier step was not finite. Waits for the device.
  void Check() const;

  // First and second moments of each parameter, in parameter order, and the number of steps made.
  std::vector<torch::Tensor>& first_moments() { return first_; }
  std::vector<torch::Tensor>& second_moments() { return second_; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  kernels::AdamStep NextStep(double learning_rate);
  // muon: updates a matrix from `gradient_scale` times its gradient, and clears the gradient.
  void StepMatrix(size_t index, double learning_rate, double gradient_scale);

  OptimizerOptions options_;
  std::vector<torch::Tensor> parameters_, first_, second_;
  std::vector<size_t> matrices_;       // of muon; their second moments stay zero
  std::optional<ops::FlatAdam> flat_;  // only on a device other than the CPU
  kernels::AdamStep begun_;            // the step between Begin() and Finish()
  int64_t steps_ = 0;
};

}  // namespace linnet::nn

#endif  // LINNET_NN_OPTIMIZER_H_
