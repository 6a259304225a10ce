#include "linnet/program/signals.h"

#include <atomic>
#include <ctime>

#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

constexpr long kSame = 500;  // ms; a signal so soon after the first may be a copy and is ignored

constexpr long kNever = -1;
std::atomic<long> asked_at{kNever};  // Milliseconds() of the first signal

long Milliseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // safe in a signal handler
  return static_cast<long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

void Die(int signal) {
  RemoveTemporaryFiles();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Stop(int signal) {
  const long now = Milliseconds();
  // One atomic operation tests and sets asked_at, since another signal may interrupt this handler.
  long first = kNever;
  if (!asked_at.compare_exchange_strong(first, now) && now - first >= kSame) Die(signal);
}

}  // namespace

void HandleEndSignals(void (*handler)(int)) {
  // Handlers have a stack of their own: oneDNN's generated code for matrix products points the
  // stack register into the heap, where a handler's frame would overwrite data. sigaltstack()
  // affects only the calling thread: the main thread, to which the operating system delivers the
  // process's signals.
  alignas(64) static char memory[64 * 1024];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof(memory);
  sigaltstack(&stack, nullptr);
  for (const int signal : kEndSignals) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART | SA_ONSTACK;  // SA_RESTART: reads and writes continue
    sigaction(signal, &action, nullptr);
  }
}

void DieAtSignals() { HandleEndSignals(Die); }
void StopAtSignals() { HandleEndSignals(Stop); }
bool StopAsked() { return asked_at != kNever; }

SignalsHeld::SignalsHeld() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kEndSignals) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &before_);
}

void SignalsHeld::Release() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace linnet::cli
