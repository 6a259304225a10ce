#include "linnet/train/synthetic.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"

namespace linnet::train {

using torch::Tensor;

namespace {

constexpr int kValidationSequences = 256;

}  // namespace

SyntheticTask::SyntheticTask(const TrainConfig& config) : config_(config) {
  if (config.steps == 0) {
    throw InputError("--steps is missing: the ", config.task, " task has no epochs");
  }
}

ModelSpec SyntheticTask::Spec() const {
  ModelSpec spec = BaseSpec(config_);
  spec.input.vocabulary = spec.head.classes = Vocabulary();
  spec.head.kind = HeadKind::kCategorical;
  spec.input.max_length = Length();
  return spec;
}

StepLoss SyntheticTask::Loss(nn::Network& network, int64_t step, const Part& part) {
  return Evaluate(network, BatchTensors(step), part);
}

std::vector<Tensor> SyntheticTask::BatchTensors(int64_t step) {
  return Tensors(Philox(config_.seed, static_cast<uint64_t>(step)));
}

StepLoss SyntheticTask::LossOf(nn::Network& network, const std::vector<Tensor>& batch) {
  return Evaluate(network, batch, {});
}

std::vector<double> SyntheticTask::ValidationSums(nn::Network& network, const Part& part) {
  // Enough sequences for stable metrics, from random streams that no training step uses.
  const int batches = (kValidationSequences + config_.batch - 1) / config_.batch;
  std::vector<double> sums(3);  // loss, accuracy, number of batches
  for (int i = 0; i < batches; ++i) {
    if (!part.Has(static_cast<size_t>(i))) continue;
    const Metrics metrics = Read(
        Evaluate(network, Tensors(Philox(config_.seed, ~static_cast<uint64_t>(i))), {}).metrics);
    sums[0] += metrics[0].second, sums[1] += metrics[1].second, sums[2] += 1;
  }
  return sums;
}

Metrics SyntheticTask::MetricsOf(const std::vector<double>& sums) const {
  return {{"loss", sums[0] / sums[2]}, {"accuracy", sums[1] / sums[2]}};
}

std::vector<Tensor> SyntheticTask::Tensors(Philox rng) const {
  MaskedBatch batch = Make(rng);
  std::vector<float> counts(batch.mask);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] *= Counts(batch.targets[i]);
  // Cloned, because `batch` is destroyed.
  const auto tensor = [&](auto& values, torch::Dtype dtype) {
    return torch::from_blob(values.data(), {batch.batch, batch.length}, dtype).clone();
  };
  return {tensor(batch.tokens, torch::kInt64), tensor(batch.targets, torch::kInt64),
          tensor(batch.mask, torch::kFloat32), tensor(counts, torch::kFloat32).to(torch::kBool)};
}

StepLoss SyntheticTask::Evaluate(nn::Network& network, const std::vector<Tensor>& batch,
                                 const Part& part) {
  const int64_t all = batch[0].size(0), begin = part.Begin(all), size = part.End(all) - begin;
  const auto to = [&](const Tensor& tensor) { return ToDevice(tensor, network.device()); };
  const auto rows = [&](const Tensor& tensor) { return tensor.narrow(0, begin, size); };
  const Tensor all_mask = to(batch[2]), all_counted = to(batch[3]);
  const Tensor targets = rows(to(batch[1])), mask = rows(all_mask);
  auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
  const Tensor logits = model.forward(rows(to(batch[0])));
  const Tensor share = mask.sum() / all_mask.sum();
  const Tensor loss = nn::MaskedCrossEntropy(logits, targets, mask) * share;
  const Tensor right = logits.detach().argmax(2).eq(targets).logical_and(rows(all_counted));
  const Tensor counted = all_counted.sum().to(torch::kFloat64);
  const Tensor accuracy = right.sum().to(torch::kFloat64) / counted.clamp_min(1);
  return {loss, {{"loss", loss.detach()}, {"accuracy", accuracy}}, size * batch[0].size(1)};
}

}  // namespace linnet::train
