#include "linnet/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "linnet/error.h"

namespace linnet {
namespace {

// Number of spins before a waiting thread sleeps. They take about ten microseconds: longer than the
// time between two barriers of an inference step, much shorter than a scheduler's time slice.
constexpr int kSpins = 400;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until `value` differs from `old`: spins briefly, then sleeps. Returns whether it slept.
bool AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return false;
    Pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old);
  return true;
}

}  // namespace

int ThreadPool::AvailableProcessors() {
#ifdef __EMSCRIPTEN__
  return 1;  // the WebAssembly modules have no threads
#else
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
#endif
}

ThreadPool::ThreadPool(int threads) : size_(threads > 0 ? threads : AvailableProcessors()) {
  threads_.reserve(static_cast<size_t>(size_ - 1));
  try {
    for (int worker = 1; worker < size_; ++worker) {
      threads_.emplace_back([this, worker] { WorkerLoop(worker); });
    }
  } catch (const std::system_error&) {
    const size_t started = threads_.size() + 1;
    Stop();
    throw RuntimeError("cannot start ", size_, " threads, only ", started, "; use fewer");
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    AwaitChange(generation_, seen);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    try {
      (*body_)(worker);
    } catch (...) {
      std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    Barrier();
  }
}

void ThreadPool::Run(FunctionRef<void(int)> body) {
  if (size_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  try {
    body(0);
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
  Barrier();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::For(size_t count, RangeBody body) {
  if (count == 0) return;
  if (size_ == 1 || count == 1) {
    body(0, count);
    return;
  }
  const size_t workers = static_cast<size_t>(size_);
  Run([&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    const size_t begin = count * w / workers, end = count * (w + 1) / workers;
    if (begin < end) body(begin, end);
  });
}

void ThreadPool::Barrier() {
  if (size_ == 1) return;
  const uint32_t round = barrier_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_.fetch_add(1, std::memory_order_release);
    barrier_.notify_all();
  } else {
    if (AwaitChange(barrier_, round)) sleeps_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace linnet
