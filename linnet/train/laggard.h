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
    // A mean over about ten updates, in which one slow update does not count much.
    const double share = std::max(0.1, 1.0 / static_cast<double>(++updates_));
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
