#include "linnet/server/metrics.h"

#include <algorithm>
#include <cstdio>

#include "linnet/error.h"

namespace linnet::server {
namespace {

// Formats with 12 digits if they are exact, else with 17: "0.1", not "0.10000000000000001".
std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  if (std::stod(text) == value) {
    char shorter[32];
    std::snprintf(shorter, sizeof(shorter), "%.12g", value);
    if (std::stod(shorter) == value) return shorter;
  }
  return text;
}

}  // namespace

void Metrics::Histogram::Add(double value) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), value);
  ++counts[static_cast<size_t>(bucket - kBounds.begin())];
  sum += value;
}

void Metrics::Request(const std::string& path, int status, double seconds, double first) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  seconds_[path].Add(seconds);
  if (first >= 0) first_[path].Add(first);
}

void Metrics::Head(std::string& text, const std::string& name, const std::string& type,
                   const std::string& help) {
  text += StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void Metrics::Line(std::string& text, const std::string& name, const std::string& labels,
                   double value) {
  text += name + (labels.empty() ? "" : "{" + labels + "}") + " " + Number(value) + "\n";
}

void Metrics::Lines(std::string& text, const std::string& name,
                    const std::map<std::string, Histogram>& by_path) {
  for (const auto& [path, histogram] : by_path) {
    const std::string label = StrCat("path=\"", path, "\"");
    uint64_t sum = 0;
    for (size_t i = 0; i <= kBounds.size(); ++i) {
      sum += histogram.counts[i];
      const std::string bound = i < kBounds.size() ? Number(kBounds[i]) : "+Inf";
      Line(text, name + "_bucket", StrCat(label, ",le=\"", bound, "\""), static_cast<double>(sum));
    }
    Line(text, name + "_sum", label, histogram.sum);
    Line(text, name + "_count", label, static_cast<double>(sum));
  }
}

std::string Metrics::Text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  Head(text, "linnet_requests_total", "counter", "Requests that were answered.");
  for (const auto& [key, count] : requests_) {
    Line(text, "linnet_requests_total",
         StrCat("path=\"", key.first, "\",status=\"", key.second, "\""),
         static_cast<double>(count));
  }
  Head(text, "linnet_request_seconds", "histogram", "Time until the response was complete.");
  Lines(text, "linnet_request_seconds", seconds_);
  Head(text, "linnet_first_token_seconds", "histogram",
       "Time until the first token of a response.");
  Lines(text, "linnet_first_token_seconds", first_);
  return text;
}

}  // namespace linnet::server
