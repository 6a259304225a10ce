// linnet-speech: the verbs that read audio. `linnet transcribe` runs it, and so does `linnet eval`
// for speech models.
#include "linnet/cli/speech.h"
#include "linnet/program/program.h"

int main(int argc, char** argv) {
  using namespace linnet::cli;
  // Messages begin with "linnet", the program that the user called.
  CLI::App app("Transcribe recordings to phones, and evaluate speech models", "linnet");
  SetUp(app);
  AddSpeechTranscribe(app);
  AddSpeechEval(app);
  return RunProgram(app, argc, argv);
}
