// Evaluates the phone error rate of a speech model over the AN4 data set or a manifest
// (docs/speech.md).
#ifndef LINNET_TASKS_SPEECH_EVAL_H_
#define LINNET_TASKS_SPEECH_EVAL_H_

#include <cstddef>
#include <string>

#include "linnet/base/function_ref.h"
#include "linnet/speech.h"
#include "linnet/tasks/task.h"

namespace linnet {

struct SpeechEvalOptions {
  std::string data;  // AN4's folder, or a manifest file
  std::string split = "test";
  std::string dictionary;  // file of words and their phones; a manifest with texts needs it
  size_t limit = 0;        // maximum number of utterances; 0: all
};

// Calls warn(line) for data that is left out. Evaluation::examples lists the most frequent phone
// confusions. Throws InputError if the data does not fit the model or no recording is usable.
Evaluation EvalSpeech(const SpeechEvalOptions& options, Transcriber& transcriber,
                      const EvalProgress& report,
                      const FunctionRef<void(const std::string& line)>& warn);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_EVAL_H_
