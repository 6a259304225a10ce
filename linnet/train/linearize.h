// Replaces the attention of a trained model by another kind, for example softmax attention by a
// recurrence. MatchAttention() is the first step; the second is to train the whole network from the
// model that MatchAttention() writes.
//
//   TrainConfig config = ...;              // the model's settings, with the new --attention
//   MatchResult result = MatchAttention(kTextTask, config, {.model = "full.safetensors"}, hooks);
//   config.init = result.path;
//   Train(kTextTask, config, /*resume=*/false, hooks);
//
// Matching trains all layers that get a new mixer at the same time. Each new layer reads the input
// of the same layer in the given model. Its attention (from the norm to the output projection)
// learns the given attention's output for that input: the loss is |new - given|^2 / |given|^2. The
// projections of queries, keys, values and output begin as copies of the given ones where their
// shapes allow; everything outside of attention is copied.
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
  double lr = 1e-3;     // initial learning rate of Adam; a cosine lowers it to zero
};

struct MatchResult {
  bool interrupted = false;  // stopped by TrainHooks::stop; nothing was written
  // Validations: of the given model, and of the new one before and after matching.
  Metrics given, copied, matched;
  // The layers whose mixer changed, and the loss of each one before and after matching: a mean over
  // batches that were not used for matching.
  std::vector<int> layers;
  std::vector<double> copied_losses, matched_losses;
  std::string path;  // the new model
  double seconds = 0;
};

// Writes config.out/matched.safetensors. Runs on the CPU. Throws InputError if the folder holds a
// run or a model, if the models differ in more than their mixers or have the same mixers, or if
// the network is not a single stack of transformer layers.
MatchResult MatchAttention(const TaskInfo& task, const TrainConfig& config,
                           const MatchOptions& options, const TrainHooks& hooks);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_LINEARIZE_H_
