// Helpers for tests of tile programs: launches, runs in several orders of threads, random inputs.
#ifndef LINNET_KERNELS_CUDA_TEST_UTIL_H_
#define LINNET_KERNELS_CUDA_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/tile_executor.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {

inline constexpr uint64_t kOrders[] = {0, 1, 2, 3};  // TileLaunch::seed: each is another order

inline const TileLaunch kOneWarp{.threads = 32, .shared_bytes = 1024};
inline const TileLaunch kTwoWarps{.threads = 64, .shared_bytes = 1024};

// Expects that `program` runs without a fault in each of kOrders.
template <typename Program>
void ExpectNoFault(const TileLaunch& launch, const Program& program) {
  for (const uint64_t seed : kOrders) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TileLaunch seeded = launch;
    seeded.seed = seed;
    EXPECT_NO_THROW(RunTiles(seeded, program));
  }
}

// `n` normally distributed values. Each array of a test uses a different `stream`.
template <typename T>
AlignedBuffer<T> Random(size_t n, uint64_t stream) {
  AlignedBuffer<T> values(n);
  Philox rng(5, stream);
  for (T& value : values) StoreAs(&value, 0, rng.Normal());
  return values;
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TEST_UTIL_H_
