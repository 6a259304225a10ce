// Models of a given shape with random weights, for benchmarks.
//
//   const Checkpoint checkpoint = RandomModel(RandomSpec("cifar10"));
#ifndef LINNET_CLI_RANDOM_MODEL_H_
#define LINNET_CLI_RANDOM_MODEL_H_

#include <string>

#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"

namespace linnet::cli {

// The paper's model for "mnist" (8 layers of 256) or "cifar10" (16), with any attention.
// Throws InputError for another.
ModelSpec RandomSpec(const std::string& dataset, const MixerSpec& attention = {});

// It takes the way of every model, through a file, which is removed at once.
Checkpoint RandomModel(const ModelSpec& spec);

}  // namespace linnet::cli

#endif  // LINNET_CLI_RANDOM_MODEL_H_
