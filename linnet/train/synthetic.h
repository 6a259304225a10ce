// Training tasks on synthetic token sequences. Batches are random, so there are no epochs.
#ifndef LINNET_TRAIN_SYNTHETIC_H_
#define LINNET_TRAIN_SYNTHETIC_H_

#include <cstdint>
#include <vector>

#include "linnet/rng.h"
#include "linnet/tasks/masked_batch.h"
#include "linnet/train/task.h"

namespace linnet::train {

class SyntheticTask : public Task {
 public:
  // Throws InputError if the config has no number of steps.
  explicit SyntheticTask(const TrainConfig& config);

  ModelSpec Spec() const override;
  int64_t TokensPerStep() const override { return int64_t{config_.batch} * Length(); }
  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override;
  std::vector<torch::Tensor> BatchTensors(int64_t step) override;
  StepLoss LossOf(nn::Network& network, const std::vector<torch::Tensor>& batch) override;
  std::vector<double> ValidationSums(nn::Network& network, const Part& part) override;
  Metrics MetricsOf(const std::vector<double>& sums) const override;

 protected:
  virtual int Vocabulary() const = 0;
  virtual int Length() const = 0;  // tokens of a sequence
  virtual MaskedBatch Make(Philox rng) const = 0;
  // Whether the accuracy counts predictions of this token.
  virtual bool Counts(int64_t) const { return true; }

  const TrainConfig config_;

 private:
  // A batch on the host: tokens, targets, the mask, and what the accuracy counts.
  std::vector<torch::Tensor> Tensors(Philox rng) const;
  static StepLoss Evaluate(nn::Network& network, const std::vector<torch::Tensor>& batch,
                           const Part& part);
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_SYNTHETIC_H_
