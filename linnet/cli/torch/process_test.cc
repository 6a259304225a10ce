#include "linnet/cli/torch/process.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cfloat>
#include <thread>

namespace linnet {
namespace {

bool HasSubnormals() {
  volatile float smallest = FLT_MIN;
  return smallest / 2 != 0;
}

// The setting reaches libtorch's threads and others, as it does in a program that begins with it.
TEST(Process, SubnormalsAreZerosInAllThreads) {
  std::thread([] {
    EXPECT_TRUE(HasSubnormals());
    FlushSubnormals();
#ifdef __x86_64__
    EXPECT_FALSE(HasSubnormals());
    std::thread([] { EXPECT_FALSE(HasSubnormals()); }).join();
    at::set_num_threads(3);
    std::atomic<int> with = 0;
    at::parallel_for(0, 3, 1, [&](int64_t, int64_t) { with += HasSubnormals(); });
    EXPECT_EQ(with, 0);
#endif
  }).join();
}

}  // namespace
}  // namespace linnet
