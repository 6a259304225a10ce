// The copy task (section 4.1.1 of the paper): random tokens, a separator, the same tokens again.
#include "linnet/tasks/copy/copy_task.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/rng.h"
#include "linnet/train/task.h"

namespace linnet::train {
namespace {

using torch::Tensor;

class CopyTrainTask : public Task {
 public:
  explicit CopyTrainTask(const TrainConfig& config) : config_(config) {
    if (config.steps == 0) throw InputError("--steps is missing: the copy task has no epochs");
    task_.max_length = config.max_length;
    task_.symbols = config.symbols;
  }

  ModelSpec Spec() const override {
    ModelSpec spec = BaseSpec(config_);
    spec.input.vocabulary = spec.head.classes = task_.vocabulary();
    spec.head.kind = HeadKind::kCategorical;
    spec.input.max_length = task_.sequence_length();
    return spec;
  }

  int64_t TokensPerStep() const override {
    return int64_t{config_.batch} * task_.sequence_length();
  }

  StepLoss Loss(nn::Network& network, int64_t step, const Part& part) override {
    return Evaluate(network, Philox(config_.seed, static_cast<uint64_t>(step)), part);
  }

  Metrics Validate(nn::Network& network) override {
    // Enough sequences for a stable metric, from streams that no step uses.
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

  std::string Data() const override {
    return StrCat("random sequences of fewer than ", config_.max_length, " tokens, of ",
                  config_.symbols, " kinds");
  }

 private:
  static constexpr int kValidationSequences = 256;

  StepLoss Evaluate(nn::Network& network, Philox rng, const Part& part) {
    CopyBatch batch = MakeCopyBatch(task_, config_.batch, rng);
    const int64_t begin = part.Begin(batch.batch), size = part.End(batch.batch) - begin;
    // Cloned, because the gradient needs the tensors after the batch is destroyed.
    const auto tensor = [&](auto& values, torch::Dtype dtype) {
      return ToDevice(torch::from_blob(values.data(), {batch.batch, batch.length}, dtype).clone(),
                      network.device());
    };
    const Tensor all_targets = tensor(batch.targets, torch::kInt64);
    const Tensor all_mask = tensor(batch.mask, torch::kFloat32);
    // The separator is unpredictable: accuracy counts only the copied tokens, which are never 0.
    const Tensor all_counted = all_mask.to(torch::kBool).logical_and(all_targets != 0);
    const auto rows = [&](const Tensor& all) { return all.narrow(0, begin, size); };
    const Tensor targets = rows(all_targets), mask = rows(all_mask);
    auto& model = dynamic_cast<nn::SequenceModelImpl&>(network);
    const Tensor logits = model.forward(rows(tensor(batch.tokens, torch::kInt64)));
    const Tensor share = mask.sum() / all_mask.sum();
    const Tensor loss = nn::MaskedCrossEntropy(logits, targets, mask) * share;
    const Tensor right = logits.detach().argmax(2).eq(targets).logical_and(rows(all_counted));
    const Tensor counted = all_counted.sum().to(torch::kFloat64);
    const Tensor accuracy = right.sum().to(torch::kFloat64) / counted.clamp_min(1);
    return {loss, {{"loss", loss.detach()}, {"accuracy", accuracy}}, size * batch.length};
  }

  TrainConfig config_;
  CopyTask task_;
};

}  // namespace

const TaskInfo kCopyTask = {
    "copy",
    "Train a model to repeat a sequence after a separator (the paper's section 4.1.1)",
    "linnet train copy --preset demo --out runs/copy",
    {{"paper", "the paper's figure 2: 4 layers x 8 heads, lengths up to 128, RAdam at 1e-3",
      R"({"layers": 4, "batch": 64, "lr": 1e-3, "lr_drop_at": 3000, "steps": 10000})"},
     {"demo", "2 layers x 64, lengths up to 32: about a minute on two cores",
      R"({"layers": 2, "heads": 4, "d_model": 64, "max_length": 32, "batch": 32, "lr": 4e-3,
          "lr_warmup": 100, "lr_decay": 800, "steps": 2400, "validate_every": 400})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<CopyTrainTask>(config);
    }};

}  // namespace linnet::train
