// The benchmarks of linnet-bench-torch. Each is implemented in a file of its own and listed in
// main.cc.
#ifndef BENCH_TORCH_BENCHMARKS_H_
#define BENCH_TORCH_BENCHMARKS_H_

#include <CLI/CLI.hpp>

namespace linnet::bench {

void AddAttention(CLI::App& app);
void AddFeatures(CLI::App& app);
void AddMemory(CLI::App& app);
void AddScanTorch(CLI::App& app);
void AddSpeech(CLI::App& app);
void AddStem(CLI::App& app);
void AddTrain(CLI::App& app);

}  // namespace linnet::bench

#endif  // BENCH_TORCH_BENCHMARKS_H_
