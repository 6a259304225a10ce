// Handling of SIGINT (Ctrl-C), SIGTERM and SIGHUP. A signal that is ignored at the start (nohup)
// stays ignored.
//
//   StopAtSignals();
//   while (!StopAsked()) Work();
//   Save();
#ifndef LINNET_PROGRAM_SIGNALS_H_
#define LINNET_PROGRAM_SIGNALS_H_

#include <csignal>

namespace linnet::cli {

constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Installs `handler` for each of kEndSignals that is not ignored. A later call replaces the
// handler. Call this from the main thread. Handlers run on a separate stack of 64 KiB.
void HandleEndSignals(void (*handler)(int));

// From this call on, a signal removes the half-written files and ends the process.
void DieAtSignals();

// From this call on, the first signal makes StopAsked() true. A second one ends the process if it
// arrives at least half a second later. An earlier one is ignored, because it may be a copy: a
// terminal sends Ctrl-C to parent and child, and the parent may pass it on as well.
void StopAtSignals();
bool StopAsked();

// Blocks kEndSignals during its lifetime, for example while a file is written.
class SignalsHeld {
 public:
  SignalsHeld();
  ~SignalsHeld() { Release(); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  void Release();  // unblocks early

 private:
  sigset_t before_;
};

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_SIGNALS_H_
