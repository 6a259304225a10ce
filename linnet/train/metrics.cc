#include "linnet/train/metrics.h"

#include <torch/utils.h>

#include <cstdio>
#include <ios>

#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet::train {

using nlohmann::json;

std::string Show(const std::string& name, double value) {
  char text[64];
  if (name == "accuracy") {
    std::snprintf(text, sizeof(text), "%.2f%% right", 100 * value);
  } else if (name == "bits_per_dim") {
    std::snprintf(text, sizeof(text), "%.4f bits/dim", value);
  } else if (name == "bits_per_token") {
    std::snprintf(text, sizeof(text), "%.4f bits/token", value);
  } else if (name == "phone_error_rate") {
    std::snprintf(text, sizeof(text), "%.2f%% of phones wrong", 100 * value);
  } else if (name == "skipped") {
    std::snprintf(text, sizeof(text), "%.2g utterances skipped (too short for their phones)",
                  value);
  } else {
    std::snprintf(text, sizeof(text), "%s %.4f", name.c_str(), value);
  }
  return text;
}

std::string Show(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    if (name == "skipped" && value == 0) continue;
    text += (text.empty() ? "" : "  ") + Show(name, value);
  }
  return text;
}

void Add(const DeviceMetrics& more, DeviceMetrics& sums) {
  torch::NoGradGuard no_grad;
  if (sums.empty()) {
    for (const auto& [name, value] : more) {
      // A copy: the value may lie in memory that the next update overwrites (--cuda-graph).
      sums.emplace_back(name, value.to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true));
    }
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) sums[i].second = sums[i].second + more[i].second;
}

void MeanMetrics::Add(const DeviceMetrics& metrics) {
  train::Add(metrics, sums_);
  ++count_;
}

Metrics MeanMetrics::Take() {
  Metrics means = Read(sums_);
  for (auto& [name, sum] : means) sum /= count_;
  sums_.clear();
  count_ = 0;
  return means;
}

MetricsLog::MetricsLog(const std::string& path, int64_t step) : path_(path) {
  std::string kept;
  if (std::ifstream old(path); old) {
    for (std::string line; std::getline(old, line);) {
      const json record = json::parse(line, nullptr, false);
      const json at = record.is_object() ? record.value("step", json()) : json();
      if (at.is_number() && at <= step) kept += line + "\n";
    }
  }
  WriteFileAtomically(path, kept);
  out_.open(path, std::ios::app);
}

void MetricsLog::Write(const nlohmann::ordered_json& record) {
  out_ << record.dump() << '\n' << std::flush;
  if (!out_) throw RuntimeError(path_, ": cannot write; is the disk full?");
}

}  // namespace linnet::train
