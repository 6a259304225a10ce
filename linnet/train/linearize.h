// Gives a trained model another kind of attention, for example softmax attention's weights to a
// recurrence. MatchAttention() is the first of two steps; a training of the whole network from its
// model is the second.
//
//   TrainConfig config = ...;              // the model's settings, with the new --attention
//   MatchResult result = MatchAttention(kTextTask, config, {.model = "full.safetensors"}, hooks);
//   config.init = result.path;
//   Train(kTextTask, config, /*resume=*/false, hooks);
//
// All layers are matched at the same time. Each reads the input that the given model's layer reads,
// and its attention, from the norm to the output projection, learns the output that the given one
// has for it: the loss is |new - given|^2 / |given|^2. Queries, keys, values and output projection
// begin as the given ones where their shapes allow; everything outside of attention is copied.
#ifndef LINNET_TRAIN_LINEARIZE_H_
#define LINNET_TRAIN_LINEARIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "linnet/train/config.h"
#include "linnet/train/task.h"
#include "linnet/train/trainer.h"

namespace linnet::train {

struct MatchOptions {
  std::string model;    // the given model's file
  int64_t steps = 300;  // updates
  double lr = 1e-3;     // of Adam; falls to zero as a cosine
};

struct MatchResult {
  bool interrupted = false;  // nothing was written
  // Validations: of the given model, and of the new one before and after matching.
  Metrics given, copied, matched;
  // The loss of each layer that has another mixer now, before and after matching, over batches that
  // were not used to match.
  std::vector<int> layers;
  std::vector<double> copied_losses, matched_losses;
  std::string path;  // the new model
  double seconds = 0;
};

// Writes config.out/matched.safetensors. Throws InputError if the folder holds a run or a model, if
// the models differ in more than their mixers, or in none, and for encoder-decoders. Runs on the
// CPU.
MatchResult MatchAttention(const TaskInfo& task, const TrainConfig& config,
                           const MatchOptions& options, const TrainHooks& hooks);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_LINEARIZE_H_
