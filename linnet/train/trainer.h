// Runs a training: updates, progress, metrics.jsonl, validation, checkpoints, resumption.
//
//   TrainConfig config = ...;
//   TrainResult result = Train(kCopyTask, config, /*resume=*/false,
//                              {.stop = [&] { return interrupted.load(); }});
//
// The folder config.out then holds
//   config.json         what the run used; `--config` repeats it
//   metrics.jsonl       a record every log_every updates, and one for each validation
//   model.safetensors   the model (model/checkpoint.h)
//   state.safetensors   all that continuing needs: weights, moments, random state, position
// A resumed run ends with the weights of an uninterrupted one, bit for bit, at the same number of
// threads. state.safetensors stands alone, so a run killed between the two files loses nothing.
#ifndef LINNET_TRAIN_TRAINER_H_
#define LINNET_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "linnet/base/progress.h"
#include "linnet/train/config.h"
#include "linnet/train/task.h"

namespace linnet::train {

struct TrainHooks {
  std::function<bool()> stop;        // asked after every update; true: checkpoint and return
  ProgressLine* progress = nullptr;  // where progress is shown, if anywhere
};

struct TrainResult {
  int64_t step = 0, steps = 0;  // updates made and wanted
  bool interrupted = false;
  bool nothing_to_do = false;  // resumed where all updates had been made: nothing was written
  Metrics validation;          // the last one; empty if there was none
  std::string model_path;
};

// Starts a run (resume = false; throws InputError if the folder already holds one, or a model) or
// continues the folder's (resume = true; throws InputError if there is none). Throws RuntimeError
// when the loss is no longer a number, naming the last good checkpoint, or when the disk is full. A
// checkpoint is good: the loss that follows it was looked at before it replaced the one before.
TrainResult Train(const TaskInfo& task, const TrainConfig& config, bool resume,
                  const TrainHooks& hooks);

// The config.json of a run's folder. Throws InputError if there is none.
std::string ReadRunConfig(const std::string& folder);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_TRAINER_H_
