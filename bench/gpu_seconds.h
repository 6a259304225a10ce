// Times kernels on a GPU.
#ifndef BENCH_GPU_SECONDS_H_
#define BENCH_GPU_SECONDS_H_

#include <algorithm>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::bench {

// Returns the median seconds per call of each body. The bodies run in turns; round 0 is a warm-up.
inline std::vector<double> GpuSeconds(std::span<const FunctionRef<void()>> bodies) {
  constexpr size_t kRounds = 7;
  std::vector<std::vector<double>> seconds(bodies.size());
  for (size_t round = 0; round <= kRounds; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double once = kernels::cuda::SecondsOf(bodies[i], nullptr, 1);
      const int runs = std::clamp(static_cast<int>(0.02 / once), 3, 100);
      if (round > 0) seconds[i].push_back(kernels::cuda::SecondsOf(bodies[i], nullptr, runs));
    }
  }
  std::vector<double> median;
  for (const auto& times : seconds) median.push_back(Median(times));
  return median;
}

}  // namespace linnet::bench

#endif  // BENCH_GPU_SECONDS_H_
