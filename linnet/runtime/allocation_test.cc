// Counts the allocations of all threads of this process: a step must not allocate. Lets the
// allocation of a buffer fail: the call that needs it can be repeated.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <vector>

#include "linnet/engine.h"
#include "linnet/model/checkpoint.h"
#include "linnet/runtime/test_models.h"

// Sanitizers replace the allocator, so allocations cannot be counted.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
std::atomic<size_t> allocations{0};
std::atomic<int> buffers_left{-1};  // that can be allocated; negative: any number

void* Counted(void* block) {
  ++allocations;
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
}  // namespace

void* operator new(size_t size) { return Counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Counted(memalign(static_cast<size_t>(alignment), size == 0 ? 1 : size));
}
// Not inlined: GCC would warn that std::free() gets a pointer of operator new.
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }
// Used by AlignedBuffer.
extern "C" int posix_memalign(void** block, size_t alignment, size_t size) noexcept {
  ++allocations;
  if (buffers_left == 0) return ENOMEM;
  if (buffers_left > 0) --buffers_left;
  *block = memalign(alignment, size);
  return *block != nullptr ? 0 : ENOMEM;
}

namespace linnet {
namespace {

void ExpectNoAllocations(const Checkpoint& checkpoint) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
    const auto model = Model::FromCheckpoint(checkpoint, {precision});
    for (const size_t batch : {1, 40}) {
      Engine engine(model, {.threads = 2});
      State state = engine.NewState(batch);
      std::vector<float> outputs(batch * engine.output_size());
      std::vector<int32_t> tokens(batch, 7);
      std::vector<size_t> chosen(batch);
      for (size_t i = 0; i < batch; ++i) chosen[i] = batch - 1 - i;
      engine.Step(state, tokens, outputs);  // allocates the scratch memory
      engine.Step(state, chosen, tokens, outputs);
      const size_t before = allocations;
      for (int i = 0; i < 20; ++i) {
        engine.Step(state, tokens, outputs);
        engine.Step(state, chosen, tokens, outputs);
      }
      EXPECT_EQ(allocations - before, 0u) << PrecisionName(precision) << ", batch " << batch;
    }
  }
}

TEST(Allocations, StepsDoNotAllocate) {
  ExpectNoAllocations(Checkpoint::Open("models/digits.safetensors"));
  ExpectNoAllocations(Hybrid().checkpoint());
  ExpectNoAllocations(StemmedColor().checkpoint());
  ExpectNoAllocations(Patched().checkpoint());
  const size_t before = allocations;
  { std::vector<float> one(1); }
  const AlignedBuffer<float> another(1);
  EXPECT_EQ(another[0], 0.0f);          // keeps the compiler from eliding the allocation
  EXPECT_EQ(allocations - before, 2u);  // the counter works
}

TEST(Allocations, ACallThatRanOutOfMemoryCanBeRepeated) {
  const auto model = Hybrid().model;
  const std::vector<int32_t> tokens = Hybrid().RandomTokens(3 * 50, 0);
  const auto read = [&](Engine& engine, State& state) {
    std::vector<float> outputs(3 * engine.output_size());
    engine.Prefix(state, tokens, 50, outputs);
    return outputs;
  };
  Engine fine(model, {.threads = 2});
  State expected = fine.NewState(3);
  const std::vector<float> want = read(fine, expected);
  int failures = 0;
  for (bool failed = true; failed; ++failures) {
    Engine engine(model, {.threads = 2});
    State state = engine.NewState(3);
    buffers_left = failures;
    failed = false;
    try {
      read(engine, state);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    buffers_left = -1;
    if (failed) {
      EXPECT_EQ(read(engine, state), want) << failures;
    }
  }
  EXPECT_GT(failures, 3);
}

}  // namespace
}  // namespace linnet

#endif
