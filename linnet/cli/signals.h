// What Ctrl-C (SIGINT), SIGTERM and SIGHUP do to these programs. One that is ignored from the start, as nohup
// has it, stays ignored.
//
//   StopAtSignals();
//   while (!StopAsked()) Work();
//   Save();
#ifndef LINNET_CLI_SIGNALS_H_
#define LINNET_CLI_SIGNALS_H_

#include <csignal>

namespace linnet::cli {

constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Each of them runs `handler`; the last call holds.
void HandleEndSignals(void (*handler)(int));

// They end the process, and its half-written files go with it.
void DieAtSignals();

// The first of them asks for an end; a second one, half a second later or more, ends the process. (A terminal sends
// Ctrl-C to all programs in it, and one that runs another passes it on: that is still the first.)
void StopAtSignals();
bool StopAsked();

// They wait until this is gone: what is written is written whole.
class SignalsHeld {
 public:
  SignalsHeld();
  ~SignalsHeld() { Release(); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  void Release();  // before its end

 private:
  sigset_t before_;
};

}  // namespace linnet::cli

#endif  // LINNET_CLI_SIGNALS_H_
