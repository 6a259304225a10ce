// Counters and latencies for GET /metrics, in Prometheus' text format.
//
//   Metrics metrics;
//   metrics.Request("/v1/couplets", 200, 0.012, 0.004);
//   metrics.Text();      // "linnet_requests_total{path=\"/v1/couplets\",status=\"200\"} 1\n" ...
#ifndef LINNET_SERVER_METRICS_H_
#define LINNET_SERVER_METRICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace linnet::server {

class Metrics {
 public:
  // Records a finished request: its total seconds, and the seconds until its first token (negative
  // if it had none). Thread-safe.
  void Request(const std::string& path, int status, double seconds, double first);
  // The metrics of all requests so far, as text.
  std::string Text() const;

  // Head() appends a metric's HELP and TYPE comments, Line() one of its values. `labels` are the
  // value's labels ("model=\"digits\""), or "".
  static void Head(std::string& text, const std::string& name, const std::string& type,
                   const std::string& help);
  static void Line(std::string& text, const std::string& name, const std::string& labels,
                   double value);

 private:
  // Upper bounds of the histograms' buckets, in seconds; a last bucket is unbounded.
  static constexpr std::array<double, 12> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                     0.1,   0.25,   0.5,   1,    2.5,   10};
  struct Histogram {
    std::array<uint64_t, kBounds.size() + 1> counts{};  // per bucket, not cumulative
    double sum = 0;
    void Add(double value);
  };
  static void Lines(std::string& text, const std::string& name,
                    const std::map<std::string, Histogram>& by_path);

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;  // by path and status
  std::map<std::string, Histogram> seconds_, first_;          // by path
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_METRICS_H_
