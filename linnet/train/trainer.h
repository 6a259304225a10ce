// Trains a model: updates, progress, metrics.jsonl, validation, checkpoints, resumption.
//
//   TrainConfig config = ...;
//   TrainResult result = Train(kCopyTask, config, /*resume=*/false,
//                              {.stop = [&] { return interrupted.load(); }});
//
// The folder config.out then holds
//   config.json         the settings; --config with this file repeats the run
//   metrics.jsonl       one record every log_every updates, and one per validation
//   model.safetensors   the model (model/checkpoint.h)
//   state.safetensors   the state to resume from: weights, moments, random state, progress
// With the same number of threads, a resumed run ends with the weights of an uninterrupted one, bit
// for bit. Resuming reads state.safetensors alone, so a run killed after writing it, but before
// writing model.safetensors, loses nothing.
#ifndef LINNET_TRAIN_TRAINER_H_
#define LINNET_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "linnet/base/progress.h"
#include "linnet/train/config.h"
#include "linnet/train/processes.h"
#include "linnet/train/task.h"

namespace linnet::train {

struct TrainHooks {
  std::function<bool()> stop;        // called after every update; true: checkpoint and return
  ProgressLine* progress = nullptr;  // shows progress; may be null
  // The processes that train together; null: this one alone. Each computes a part of every batch
  // and makes the same updates. The first one writes the folder, which all of them can read.
  const Processes* processes = nullptr;
  // Number of consecutive processes that share each sequence (state_relay.h).
  int sequence_parallel = 1;
};

struct TrainResult {
  int64_t step = 0, steps = 0;  // updates made so far, and in the whole run
  bool interrupted = false;
  bool nothing_to_do = false;  // resumed after all updates had been made: nothing was written
  Metrics validation;          // the last one; empty if there was none
  std::string model_path;
};

// If `resume` is false, starts a run; throws InputError if the folder already holds a run or model.
// If `resume` is true, continues the folder's run; throws InputError if there is none. Throws
// RuntimeError if the loss or a gradient is not finite, naming the last good checkpoint, or if the
// disk is full. A checkpoint is written only if the loss of the next batch is finite, so the last
// checkpoint is always good.
TrainResult Train(const TaskInfo& task, const TrainConfig& config, bool resume,
                  const TrainHooks& hooks);

// Throws InputError if `count` processes cannot train together with these settings.
void CheckProcesses(const TrainConfig& config, int count, int sequence_parallel = 1);

// The config.json of a run's folder. Throws InputError if there is none.
std::string ReadRunConfig(const std::string& folder);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_TRAINER_H_
