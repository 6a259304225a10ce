// Fibers: functions with their own stacks that pause and resume, all on one thread.
//
//   Fiber fiber;
//   fiber.Start([&] { ...; fiber.Yield(); ...; });
//   while (!fiber.done()) fiber.Resume();
//
// AddressSanitizer and ThreadSanitizer are told of every switch.
#ifndef LINNET_KERNELS_CUDA_FIBER_H_
#define LINNET_KERNELS_CUDA_FIBER_H_

#include <cstddef>
#include <functional>

// Processors other than x86-64 switch with swapcontext(). Define LINNET_FIBER_UCONTEXT to test that
// variant on x86-64.
#if !defined(__x86_64__) && !defined(LINNET_FIBER_UCONTEXT)
#define LINNET_FIBER_UCONTEXT 1
#endif
#ifdef LINNET_FIBER_UCONTEXT
#include <ucontext.h>
#endif

namespace linnet::kernels::cuda {

class Fiber {
 public:
  // Throws Error if there is no memory for the stack.
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume() calls `body`, which must not throw. A fiber that has ended may start again.
  void Start(std::function<void()> body);
  // Runs the fiber until it calls Yield() or ends. Must not be called when done().
  void Resume();
  // Returns to the caller of Resume(). Must be called from inside the fiber.
  void Yield();
  bool done() const { return done_; }

 private:
  static void Enter();
  void SwitchIn();
  void SwitchOut(bool last);

  std::function<void()> body_;
  bool done_ = true;
  unsigned char* memory_ = nullptr;  // a guard page, then the stack
#ifdef LINNET_FIBER_UCONTEXT
  ucontext_t inside_, outside_;
#else
  void* inside_ = nullptr;   // stack pointer of the fiber
  void* outside_ = nullptr;  // stack pointer of the caller of Resume()
#endif
  // For the sanitizers.
  void* fake_inside_ = nullptr;
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_size_ = 0;
  void* tsan_inside_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_FIBER_H_
