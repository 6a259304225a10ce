// Shared parts of the benchmarks: interleaved timing, and records that compare a time with its
// limit.
//
//   const auto median = MedianSeconds({step, read}, /*seconds=*/1.0);
//   PrintRecords({{.name = "step", .value = 1e6 * median[0], .unit = "us/token",
//                  .limit = 1e6 * median[1], .identity = {{"batch", 1}}}}, json);
//
// A benchmark verifies its result before it records a time, and throws if the result is wrong.
#ifndef BENCH_BENCH_H_
#define BENCH_BENCH_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"

namespace linnet::bench {

struct Record {
  std::string name;   // of the benchmark, as in "step"
  std::string label;  // of the case, for the table
  double value = 0;   // in `unit`; smaller is better
  std::string unit;
  double limit = 0;                 // the machine's limit, measured in the same run; in `unit`
  nlohmann::ordered_json identity;  // the parameters of the case: N, batch, threads, ...
};

// Prints the records as a table or, with `json`, as a JSON list. An element of the list has the
// fields name, value, unit, limit, ratio (value / limit) and checked, and those of `identity`.
void PrintRecords(const std::vector<Record>& records, bool json);

// Returns the median seconds per call for each body. The bodies run in turns, so that other load on
// the machine affects all of them. The whole measurement takes about `seconds`.
std::vector<double> MedianSeconds(const std::vector<FunctionRef<void()>>& bodies, double seconds);

// Returns the median; for an even number of values, the larger of the two middle ones.
double Median(std::vector<double> values);

// max |value - expected| / max |expected| over all added pairs. NaN if a difference is NaN.
class RelativeError {
 public:
  void Add(double value, double expected);
  double value() const;

 private:
  double difference_ = 0, magnitude_ = 0;
};

struct BenchOptions {
  int threads = 0;       // 0: one per processor
  double seconds = 1.0;  // approximate time to measure a case
  bool json = false;
};
void AddBenchOptions(CLI::App* verb, BenchOptions& options);

}  // namespace linnet::bench

#endif  // BENCH_BENCH_H_
