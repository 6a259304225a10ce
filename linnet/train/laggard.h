// Finds the process that the others wait for.
//
//   Laggard laggard(processes.size());
//   laggard.Add(seconds);            // after each update: the seconds that each has computed
//   progress += laggard.Remark();    // "process 2 takes 1.8 times as long as the others", or ""
#ifndef LINNET_TRAIN_LAGGARD_H_
#define LINNET_TRAIN_LAGGARD_H_

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace linnet::train {

class Laggard {
 public:
  explicit Laggard(int processes) : mean_(static_cast<size_t>(processes)) {}

  void Add(const std::vector<double>& seconds) {
    // A mean over about kTime, at least over kUpdates, so a single slow update does not count much,
    // and neither does a second in which other programs take a processor.
    constexpr double kTime = 10;  // seconds
    constexpr double kUpdates = 10;
    const double longest = *std::max_element(seconds.begin(), seconds.end());
    const double share =
        std::max(std::min(1 / kUpdates, longest / kTime), 1.0 / static_cast<double>(++updates_));
    for (size_t i = 0; i < mean_.size(); ++i) mean_[i] += share * (seconds[i] - mean_[i]);
  }

  std::string Remark() const {
    constexpr int kLeast = 5;         // updates; the first ones take longer
    constexpr double kSlower = 1.25;  // processes of equal machines differ by less
    if (mean_.size() < 2 || updates_ < kLeast) return "";
    const auto slowest = std::max_element(mean_.begin(), mean_.end());
    std::vector<double> others(mean_.begin(), mean_.end());
    others.erase(others.begin() + (slowest - mean_.begin()));
    const auto middle = others.begin() + static_cast<ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    if (!(*slowest > kSlower * *middle)) return "";
    char text[80];
    std::snprintf(text, sizeof(text), "process %td takes %.1f times as long as the others",
                  slowest - mean_.begin(), *slowest / *middle);
    return text;
  }

 private:
  std::vector<double> mean_;  // seconds of each process
  int updates_ = 0;
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_LAGGARD_H_
