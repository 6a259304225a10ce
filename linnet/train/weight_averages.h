// Moving averages of a model's weights (--ema), which validations and saved models use in place of
// the weights.
#ifndef LINNET_TRAIN_WEIGHT_AVERAGES_H_
#define LINNET_TRAIN_WEIGHT_AVERAGES_H_

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace linnet::train {

class WeightAverages {
 public:
  WeightAverages() = default;  // no averages: Update() and Swap() do nothing
  // decay: of an average, per update; 0 for no averages. The averages begin as the parameters.
  WeightAverages(double decay, const std::vector<torch::Tensor>& parameters);

  // After update `step`, counted from 1.
  void Update(int64_t step);
  // Swaps the parameters and their averages.
  void Swap();

  // In the order of the parameters; empty if there are none.
  std::vector<torch::Tensor>& tensors() { return averages_; }

 private:
  double decay_ = 0;
  std::vector<torch::Tensor> parameters_, averages_;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_WEIGHT_AVERAGES_H_
