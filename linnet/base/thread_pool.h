// A fixed set of threads for inference. Run() calls one function (the body) on all of them; For()
// gives each thread one range of the work. A waiting thread spins for about ten microseconds and
// then sleeps. The short waits within an inference step thus make no system calls, and an idle pool
// uses no processor time.
//
//   ThreadPool pool(2);
//   pool.Run([&](int worker) { ...; pool.Barrier(); ...; });   // worker = 0 .. size() - 1
//   pool.For(n, [&](size_t begin, size_t end) { ... });        // a ParallelFor
//
// The caller takes part as worker 0, so a pool of size 1 starts no thread. An exception in a body
// is rethrown to the caller of Run(). A body that uses Barrier() must not throw before its last
// Barrier(): the other workers would wait forever. Call Run() and For() from one thread at a time;
// they do not nest.
#ifndef LINNET_BASE_THREAD_POOL_H_
#define LINNET_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/base/parallel.h"

namespace linnet {

class ThreadPool {
 public:
  // threads = 0: one thread for each processor that this process may run on.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(worker) once on every worker and returns when all are done.
  void Run(FunctionRef<void(int worker)> body);

  // Splits [0, count) into size() ranges whose lengths differ by at most one.
  void For(size_t count, RangeBody body);

  // Inside Run(): waits until every worker has arrived.
  void Barrier();

  // `barriers` counts the barriers passed, `sleeps` the times that a worker stopped spinning at a
  // barrier and slept. Many sleeps indicate that other work uses the same processors. Both counters
  // wrap around.
  struct Waits {
    uint32_t barriers, sleeps;
  };
  Waits waits() const { return {barrier_.load(), sleeps_.load()}; }

  // The number of processors this process may run on (its affinity mask), at least 1.
  static int AvailableProcessors();

 private:
  void WorkerLoop(int worker);
  void Stop();  // ends and joins the running threads

  const int size_;
  std::vector<std::thread> threads_;
  const FunctionRef<void(int)>* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stop_{false};
  alignas(kCacheLine) std::atomic<uint32_t> generation_{0};  // Run() and Stop() increment it
  alignas(kCacheLine) std::atomic<uint32_t> arrived_{0};     // workers at the current barrier
  alignas(kCacheLine) std::atomic<uint32_t> barrier_{0};     // counts completed barriers
  alignas(kCacheLine) std::atomic<uint32_t> sleeps_{0};
};

}  // namespace linnet

#endif  // LINNET_BASE_THREAD_POOL_H_
