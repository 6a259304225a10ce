#include "bench/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "linnet/cli/verbs.h"
#include "linnet/program/program.h"

namespace linnet::bench {

void PrintRecords(const std::vector<Record>& records, bool json) {
  if (json) {
    auto list = nlohmann::ordered_json::array();
    for (const Record& record : records) {
      nlohmann::ordered_json entry = {{"name", record.name},
                                      {"value", record.value},
                                      {"unit", record.unit},
                                      {"limit", record.limit},
                                      {"ratio", record.value / record.limit},
                                      {"checked", true}};
      entry.update(record.identity);
      list.push_back(std::move(entry));
    }
    cli::PrintJson(list);
    return;
  }
  std::vector<std::string> titles = {"benchmark"};
  for (const Record& record : records) titles.push_back(record.name + "  " + record.label);
  size_t width = 0;
  for (const std::string& title : titles) width = std::max(width, title.size());
  for (std::string& title : titles) title.resize(width, ' ');
  std::cout << titles[0] << "    measured       limit             measured / limit\n";
  for (size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    char numbers[128];
    std::snprintf(numbers, sizeof(numbers), "  %10.3f  %10.3f  %-9s  %7.3g", record.value,
                  record.limit, record.unit.c_str(), record.value / record.limit);
    std::cout << titles[i + 1] << numbers << "\n";
  }
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> MedianSeconds(const std::vector<FunctionRef<void()>>& bodies, double seconds) {
  constexpr double kTurn = 0.02;  // seconds per turn: far longer than a clock tick or cache refill
  constexpr size_t kMinTurns = 5, kMaxTurns = 1000;

  struct Timing {
    size_t calls = 1;  // per turn
    std::vector<double> turns;
  };
  std::vector<Timing> timings(bodies.size());
  double round = 0;  // seconds of one turn of each body
  for (size_t i = 0; i < bodies.size(); ++i) {
    bodies[i]();
    const Stopwatch watch;
    size_t calls = 0;
    do {
      bodies[i]();
      ++calls;
    } while (watch.Seconds() < kTurn);
    timings[i].calls = calls;
    round += watch.Seconds();
  }
  const size_t turns =
      static_cast<size_t>(std::clamp(seconds / round, double{kMinTurns}, double{kMaxTurns}));
  for (size_t turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      bodies[i]();  // warms the caches
      const Stopwatch watch;
      for (size_t call = 0; call < timings[i].calls; ++call) bodies[i]();
      timings[i].turns.push_back(watch.Seconds() / static_cast<double>(timings[i].calls));
    }
  }
  std::vector<double> medians;
  medians.reserve(timings.size());
  for (const Timing& timing : timings) medians.push_back(Median(timing.turns));
  return medians;
}

void RelativeError::Add(double value, double expected) {
  // Keeps a NaN: a later maximum must not hide it.
  const double difference = std::abs(value - expected);
  if (std::isnan(difference) || difference > difference_) difference_ = difference;
  magnitude_ = std::max(magnitude_, std::abs(expected));
}

double RelativeError::value() const {
  return magnitude_ > 0 ? difference_ / magnitude_ : difference_;
}

void AddBenchOptions(CLI::App* verb, BenchOptions& options) {
  cli::AddOption(verb, "--seconds", options.seconds, "N",
                 "Approximate time to measure a case, in seconds", cli::Between(0.0, 600.0));
  cli::AddThreadsOption(verb, options.threads);
  cli::AddJsonFlag(verb, options.json);
}

}  // namespace linnet::bench
