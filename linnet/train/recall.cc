// The recall task: key-value pairs, then each key again; the model must predict the key's value.
#include "linnet/error.h"
#include "linnet/tasks/recall/recall_task.h"
#include "linnet/train/synthetic.h"

namespace linnet::train {
namespace {

class RecallTrainTask : public SyntheticTask {
 public:
  explicit RecallTrainTask(const TrainConfig& config)
      : SyntheticTask(config), task_{.pairs = config.max_length / 4, .symbols = config.symbols} {
    if (config.max_length % 4 != 0 || task_.pairs > config.symbols) {
      throw InputError(
          "--max-length is ", config.max_length,
          "; it must be a multiple of 4, and at most 4 x --symbols = ", 4 * config.symbols);
    }
  }

  std::string Data() const override {
    return StrCat("random sequences of ", task_.pairs, " key-value pairs, from ", task_.symbols,
                  " keys and ", task_.symbols, " values");
  }

 private:
  int Vocabulary() const override { return task_.vocabulary(); }
  int Length() const override { return task_.sequence_length(); }
  MaskedBatch Make(Philox rng) const override { return MakeRecallBatch(task_, config_.batch, rng); }

  const RecallTask task_;
};

}  // namespace

const TaskInfo kRecallTask = {
    "recall",
    "Train a model to recall values by their keys (multi-query associative recall)",
    "linnet train recall --out runs/recall",
    {{"small",
      "2 layers x 64 with convolutions, 16 key-value pairs: 96% right after a minute on one core",
      R"({"layers": 2, "heads": 2, "d_model": 64, "convolution": 4, "max_length": 64,
          "symbols": 64, "batch": 64, "optimizer": "adam", "lr": 2e-3, "lr_warmup": 100,
          "lr_decay": 100000000, "lr_decay_form": "cosine", "norm_first": true,
          "steps": 2000, "validate_every": 200})"}},
    [](const TrainConfig& config) -> std::unique_ptr<Task> {
      return std::make_unique<RecallTrainTask>(config);
    }};

}  // namespace linnet::train
