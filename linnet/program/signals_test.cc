#include "linnet/program/signals.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

namespace linnet::cli {
namespace {

volatile uintptr_t handler_frame = 0;

void Record(int) {
  char here = 0;
  handler_frame = reinterpret_cast<uintptr_t>(&here);
}

// A handler on the interrupted code's stack would overwrite the memory below the stack register,
// and oneDNN's generated code points that register into the heap.
TEST(Signals, HandlersHaveAStackOfTheirOwn) {
  HandleEndSignals(Record);
  for (const int signal : kEndSignals) {
    SCOPED_TRACE(signal);
    handler_frame = 0;
    std::raise(signal);
    char here = 0;
    const auto frame = reinterpret_cast<intptr_t>(&here);
    ASSERT_NE(handler_frame, 0u);
    // A stack has 8 MiB by default, so these frames lie on different stacks.
    EXPECT_GT(std::abs(static_cast<intptr_t>(handler_frame) - frame), intptr_t{16} << 20);
  }
}

}  // namespace
}  // namespace linnet::cli
