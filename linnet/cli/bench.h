// What the benchmarks share: timing in turns, and records that set a time against its limit.
//
//   const auto median = MedianSeconds({step, read}, /*seconds=*/1.0);
//   PrintRecords({{.name = "step", .value = 1e6 * median[0], .unit = "us/token",
//                  .limit = 1e6 * median[1], .identity = {{"batch", 1}}}}, json);
//
// A benchmark verifies its result before it makes a record of it; one that is wrong throws.
#ifndef LINNET_CLI_BENCH_H_
#define LINNET_CLI_BENCH_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"

namespace linnet::cli {

// The benchmarks: one file each (bench_step.cc: AddBenchStep), listed in verb_bench.cc.
void AddBenchCausalLinear(CLI::App& bench);
void AddBenchGenerate(CLI::App& bench);
void AddBenchPrefix(CLI::App& bench);
void AddBenchStep(CLI::App& bench);
void AddBenchStream(CLI::App& bench);
// Those that need libtorch, listed in train_bench_main.cc.
void AddBenchAttention(CLI::App& bench);
void AddBenchFeatures(CLI::App& bench);
void AddBenchMemory(CLI::App& bench);
void AddBenchSpeech(CLI::App& bench);
void AddBenchTrain(CLI::App& bench);

struct Record {
  std::string name;   // of the benchmark
  std::string label;  // of the case, for people
  double value = 0;   // in `unit`; less is better
  std::string unit;
  double limit = 0;                 // what the machine allows, measured in the same run
  nlohmann::ordered_json identity;  // what tells this case from others: N, batch, threads, ...
};

// A table, or with `json` a list of {name, value, unit, limit, ratio, checked, identity's fields}.
void PrintRecords(const std::vector<Record>& records, bool json);

// The median seconds a call of each body, timed in turns (so that a slow spell of the machine falls
// on all of them) for about `seconds` in all.
std::vector<double> MedianSeconds(const std::vector<FunctionRef<void()>>& bodies, double seconds);

// The largest difference between two arrays, over the largest magnitude of the second.
class RelativeError {
 public:
  void Add(double value, double expected);
  double value() const;

 private:
  double difference_ = 0, magnitude_ = 0;
};

// What records say of where and when: "Intel(R) Xeon(R) Processor, family 6, model 143" and
// "2026-11-21".
std::string MachineName();
std::string Today();

struct BenchOptions {
  int threads = 0;
  double seconds = 1.0;
  bool json = false;
};
void AddBenchOptions(CLI::App* verb, BenchOptions& options);

}  // namespace linnet::cli

#endif  // LINNET_CLI_BENCH_H_
