// The benchmarks of linnet-bench. Each is implemented in a file of its own and listed in main.cc.
#ifndef BENCH_BENCHMARKS_H_
#define BENCH_BENCHMARKS_H_

#include <CLI/CLI.hpp>

namespace linnet::bench {

void AddCausalLinear(CLI::App& app);
void AddGenerate(CLI::App& app);
void AddPrefix(CLI::App& app);
void AddScan(CLI::App& app);
void AddServe(CLI::App& app);
void AddStep(CLI::App& app);
void AddStream(CLI::App& app);

}  // namespace linnet::bench

#endif  // BENCH_BENCHMARKS_H_
