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

Metrics SyntheticTask::Validate(nn::Network& network) {
  // Enough sequences for a stable metric, from random streams that no training step uses.
  const int batches = (kValidationSequences + config_.batch - 1) / config_.batch;
  Metrics mean;
  for (int i = 0; i < batches; ++i) {
    const Metrics metrics =
        Read(Evaluate(network, Philox(config_.seed, ~static_cast<uint64_t>(i)), {}).metrics);
    if (i == 0) mean = metrics;
    for (size_t m = 0; m < mean.size() && i > 0; ++m) mean[m].second += metrics[m].second;
  }
  for (auto& [name, sum] : mean) sum /= batches;
  return mean;
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
