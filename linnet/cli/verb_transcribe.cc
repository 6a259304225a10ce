// linnet transcribe: runs linnet-speech, the program that reads audio.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddTranscribe(CLI::App& app) {
  AddSiblingVerb(app, "transcribe", "Tell the phones in recordings ('linnet transcribe --help')",
                 SpeechSibling("transcribe"));
}

}  // namespace linnet::cli
