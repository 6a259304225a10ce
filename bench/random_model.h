// Models with random weights, for benchmarks.
//
//   const Checkpoint checkpoint = RandomModel(RandomSpec("cifar10"));
#ifndef BENCH_RANDOM_MODEL_H_
#define BENCH_RANDOM_MODEL_H_

#include <string>

#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"

namespace linnet::bench {

// Returns the spec of the paper's model for "mnist" (8 layers of width 256) or "cifar10" (16
// layers), with the given attention. Throws InputError for any other data set.
ModelSpec RandomSpec(const std::string& dataset, const MixerSpec& attention = {});

// Returns the spec of a small language model: 12 layers of width 768, and a vocabulary of 32,000
// tokens. `kind` is a gated recurrence (in the layers of flash-linear-attention) or rwkv7 (in the
// layers of BlinkDL's RWKV-7). Throws InputError for any other mixer.
ModelSpec RandomLanguageSpec(const std::string& kind);

// Writes a model with random weights to a temporary file and opens it like any other model. The
// file is removed before the function returns.
Checkpoint RandomModel(const ModelSpec& spec);

}  // namespace linnet::bench

#endif  // BENCH_RANDOM_MODEL_H_
