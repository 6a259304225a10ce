#include "linnet/kernels/cuda/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "linnet/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define LINNET_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LINNET_FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define LINNET_FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LINNET_FIBER_TSAN 1
#endif
#endif
#ifdef LINNET_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LINNET_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifndef LINNET_FIBER_UCONTEXT
// Saves the callee-saved general registers on the current stack and the stack pointer in *from,
// then continues on the stack `to`. swapcontext() is slower: it also saves the floating-point
// control words and, by a system call, the signal mask.
extern "C" void LinnetSwitchStack(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl LinnetSwitchStack
.hidden LinnetSwitchStack
.type LinnetSwitchStack, @function
LinnetSwitchStack:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size LinnetSwitchStack, .-LinnetSwitchStack
)");
#endif

namespace linnet::kernels::cuda {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = 512 * 1024;  // reserved; only touched pages take memory

thread_local Fiber* current = nullptr;

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw RuntimeError("no memory for the stack of a fiber");
  memory_ = static_cast<unsigned char*>(memory);
  mprotect(memory_, kGuardBytes, PROT_NONE);
#ifdef LINNET_FIBER_TSAN
  tsan_inside_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef LINNET_FIBER_TSAN
  __tsan_destroy_fiber(tsan_inside_);
#endif
#ifdef LINNET_FIBER_ASAN
  __asan_unpoison_memory_region(memory_ + kGuardBytes, kStackBytes);
#endif
  munmap(memory_, kGuardBytes + kStackBytes);
}

void Fiber::Start(std::function<void()> body) {
  body_ = std::move(body);
  done_ = false;
  fake_inside_ = nullptr;
#ifdef LINNET_FIBER_ASAN
  __asan_unpoison_memory_region(memory_ + kGuardBytes, kStackBytes);
#endif
#ifndef LINNET_FIBER_UCONTEXT
  // The fiber's first stack, from low to high addresses: values of six registers, Enter as the
  // return address of LinnetSwitchStack, and a null return address of Enter. The null ends
  // backtraces, and it aligns the frame of Enter as a call would.
  auto* top = reinterpret_cast<uintptr_t*>(memory_ + kGuardBytes + kStackBytes) - 1;
  *top = 0;
  *--top = reinterpret_cast<uintptr_t>(&Fiber::Enter);
  for (int i = 0; i < 6; ++i) *--top = 0;
  inside_ = top;
#else
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = memory_ + kGuardBytes;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  makecontext(&inside_, &Fiber::Enter, 0);
#endif
}

void Fiber::Enter() {
  Fiber* const fiber = current;
#ifdef LINNET_FIBER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_bottom_, &fiber->outside_size_);
#endif
  fiber->body_();
  fiber->done_ = true;
  fiber->SwitchOut(true);
  __builtin_unreachable();
}

void Fiber::Resume() {
  Fiber* const before = std::exchange(current, this);
  SwitchIn();
  current = before;
}

void Fiber::Yield() { SwitchOut(false); }

void Fiber::SwitchIn() {
#ifdef LINNET_FIBER_ASAN
  __sanitizer_start_switch_fiber(&fake_outside_, memory_ + kGuardBytes, kStackBytes);
#endif
#ifdef LINNET_FIBER_TSAN
  tsan_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_inside_, 0);
#endif
#ifndef LINNET_FIBER_UCONTEXT
  LinnetSwitchStack(&outside_, inside_);
#else
  swapcontext(&outside_, &inside_);
#endif
#ifdef LINNET_FIBER_ASAN
  __sanitizer_finish_switch_fiber(fake_outside_, nullptr, nullptr);
#endif
}

void Fiber::SwitchOut([[maybe_unused]] bool last) {
#ifdef LINNET_FIBER_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_inside_, outside_bottom_, outside_size_);
#endif
#ifdef LINNET_FIBER_TSAN
  __tsan_switch_to_fiber(tsan_outside_, 0);
#endif
#ifndef LINNET_FIBER_UCONTEXT
  LinnetSwitchStack(&inside_, outside_);
#else
  swapcontext(&inside_, &outside_);
#endif
#ifdef LINNET_FIBER_ASAN
  __sanitizer_finish_switch_fiber(fake_inside_, &outside_bottom_, &outside_size_);
#endif
}

}  // namespace linnet::kernels::cuda
