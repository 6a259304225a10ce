// Metrics of a training run: means, text for display, and metrics.jsonl.
//
//   MeanMetrics mean;
//   mean.Add(loss.metrics);                     // each update
//   MetricsLog log("run/metrics.jsonl", step);
//   log.Write({{"step", step}, {"loss", mean.Take()[0].second}});
#ifndef LINNET_TRAIN_METRICS_H_
#define LINNET_TRAIN_METRICS_H_

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "linnet/train/task.h"

namespace linnet::train {

// Text for display: "0.6441 bits/dim".
std::string Show(const std::string& name, double value);
// The texts of all metrics in one line; leaves out "skipped" if it is 0.
std::string Show(const Metrics& metrics);

// Adds `more` to `sums`, metric by metric, in double precision on the metrics' device. Empty `sums`
// count as zeros.
void Add(const DeviceMetrics& more, DeviceMetrics& sums);

// The means of the metrics of several batches.
class MeanMetrics {
 public:
  void Add(const DeviceMetrics& metrics);
  // Returns the means over the batches since the last call.
  Metrics Take();

 private:
  DeviceMetrics sums_;
  int count_ = 0;
};

// A file of records, one JSON object per line, each with its "step".
class MetricsLog {
 public:
  // Opens the file, and removes the records after `step`: a resumed run repeats those updates and
  // logs them again.
  MetricsLog(const std::string& path, int64_t step);

  // Throws RuntimeError if the record cannot be written.
  void Write(const nlohmann::ordered_json& record);

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_METRICS_H_
