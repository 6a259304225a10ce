// The verbs of linnet-speech.
#ifndef LINNET_CLI_SPEECH_H_
#define LINNET_CLI_SPEECH_H_

#include <CLI/CLI.hpp>

namespace linnet::cli {

void AddSpeechTranscribe(CLI::App& app);  // speech_transcribe.cc
void AddSpeechEval(CLI::App& app);        // speech_eval.cc

}  // namespace linnet::cli

#endif  // LINNET_CLI_SPEECH_H_
