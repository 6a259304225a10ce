// Models with random weights, for benchmarks.
//
//   const Checkpoint checkpoint = RandomModel(RandomSpec("cifar10"));
#ifndef BENCH_RANDOM_MODEL_H_
#define BENCH_RANDOM_MODEL_H_

#include <string>

#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"

namespace linnet::bench {

// The paper's model for "mnist" (8 layers of width 256) or "cifar10" (16 layers), with any
// attention. Throws InputError for any other data set.
ModelSpec RandomSpec(const std::string& dataset, const MixerSpec& attention = {});

// A small language model: 12 layers of width 768 over 32,000 tokens. `kind` is a gated recurrence
// (in flash-linear-attention's blocks) or rwkv7 (in BlinkDL's). Throws InputError for others.
ModelSpec RandomLanguageSpec(const std::string& kind);

// A model with random weights. It is written to a temporary file and opened like any other model;
// the file is removed before the function returns.
Checkpoint RandomModel(const ModelSpec& spec);

}  // namespace linnet::bench

#endif  // BENCH_RANDOM_MODEL_H_
