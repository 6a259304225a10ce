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
  return Evaluate(network, Philox(config_.seed, static_cast<uint64_t>(step)), part);
}

std::vector<double> SyntheticTask::ValidationSums(nn::Network& network, const Part& part) {
  // Enough sequences for stable metrics, from random streams that no training step uses.
  const int batches = (kValidationSequences + config_.batch - 1) / config_.batch;
  std::vector<double> sums(3);  // loss, accuracy, number of batches
  for (int i = 0; i < batches; ++i) {
    if (!part.Has(static_cast<size_t>(i))) continue;
    const Metrics metrics =
        Read(Evaluate(network, Philox(config_.seed, ~static_cast<uint64_t>(i)), {}).metrics);
    sums[0] += metrics[0].second, sums[1] += metrics[1].second, sums[2] += 1;
  }
  return sums;
}

Metrics SyntheticTask::MetricsOf(const std::vector<double>& sums) const {
  return {{"loss", sums[0] / sums[2]}, {"accuracy", sums[1] / sums[2]}};
}

StepLoss SyntheticTask::Evaluate(nn::Network& network, Philox rng, const Part& part) const {
  MaskedBatch batch = Make(rng);
  std::vector<float> counts(batch.mask);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] *= Counts(batch.targets[i]);
  const int64_t begin = part.Begin(batch.batch), size = part.End(batch.batch) - begin;
  // Cloned, because the gradient needs the tensors after the batch is destroyed.
  const auto tensor = [&](auto& values, torch::Dtype dtype) {
    return ToDevice(torch::from_blob(values.data(), {batch.batch, batch.length}, dtype).clone(),
                    network.device());
  };
  const Tensor all_mask = tensor(batch.mask, torch::kFloat32);
  const Tensor all_counted = tensor(counts, torch::kFloat32).to(torch::kBool);
  const auto rows = [&](const Tensor& all) { return all.narrow(0, begin, size); };
  const Tensor targets = rows(tensor(batch.targets, torch::kInt64)), mask = rows(all_mask);
  auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
  const Tensor logits = model.forward(rows(tensor(batch.tokens, torch::kInt64)));
  const Tensor share = mask.sum() / all_mask.sum();
  const Tensor loss = nn::MaskedCrossEntropy(logits, targets, mask) * share;
  const Tensor right = logits.detach().argmax(2).eq(targets).logical_and(rows(all_counted));
  const Tensor counted = all_counted.sum().to(torch::kFloat64);
  const Tensor accuracy = right.sum().to(torch::kFloat64) / counted.clamp_min(1);
  return {loss, {{"loss", loss.detach()}, {"accuracy", accuracy}}, size * batch.length};
}

}  // namespace linnet::train
