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

// Installs `handler` for each of these signals; a later call replaces it. Called in the first
// thread. Handlers run on a stack of 64 KiB that is theirs alone.
void HandleEndSignals(void (*handler)(int));

// A signal removes the half-written files and ends the process.
void DieAtSignals();

// The first signal sets StopAsked(). A second one ends the process if it arrives at least half a
// second later. (A terminal sends Ctrl-C to all programs in it, and a parent passes it on as well:
// that still counts as the first.)
void StopAtSignals();
bool StopAsked();

// Blocks the signals during its lifetime, for example while a file is written.
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
