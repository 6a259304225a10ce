// Adds up gradients over processes while the backward pass still runs.
//
//   GradientSums sums(processes, model->parameters());
//   sums.Begin();
//   loss.backward();       // sends the gradients of a bucket of parameters once it has all of them
//   sums.Finish();         // waits; the gradients are then the sums
//
// Buckets hold consecutive parameters, from the last to the first: about the order in which
// backward() computes their gradients.
#ifndef LINNET_TRAIN_GRADIENT_SUMS_H_
#define LINNET_TRAIN_GRADIENT_SUMS_H_

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "linnet/train/processes.h"

namespace linnet::train {

class GradientSums {
 public:
  GradientSums(const Processes& processes, const std::vector<torch::Tensor>& parameters);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // The next backward() is the last one of an update, and computes the gradient of each parameter
  // once. A parameter gets a gradient in all processes, in the same order, or in none.
  void Begin();
  // Without Begin(), sends all gradients now.
  void Finish();

 private:
  struct Bucket {
    std::vector<torch::Tensor> parameters;
    size_t missing = 0;  // parameters whose gradients backward() has not computed yet
    std::unique_ptr<Processes::Sums> sums;
  };

  void Got(size_t bucket);
  void Start(Bucket& bucket);

  const Processes& processes_;
  std::vector<Bucket> buckets_;
  size_t started_ = 0;  // the first bucket that has not been sent
  bool running_ = false;
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;  // of the parameters' gradients
  std::vector<uintptr_t> hooks_;                               // of nodes_
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_GRADIENT_SUMS_H_
