// The phone error rate of a model of speech over a corpus: AN4's folder, or a manifest (docs/speech.md).
#ifndef LINNET_TASKS_SPEECH_EVAL_H_
#define LINNET_TASKS_SPEECH_EVAL_H_

#include <cstddef>
#include <string>

#include "linnet/base/function_ref.h"
#include "linnet/tasks/speech/transcriber.h"
#include "linnet/tasks/task.h"

namespace linnet {

struct SpeechEvalOptions {
  std::string data, split = "test";
  std::string dictionary;  // words and their phones, for a manifest's texts
  size_t limit = 0;        // utterances; 0: all
};

// warn(line) is called for what is left out. Evaluation::examples are the phones that are most often taken for
// others. Throws InputError on data that the model does not fit, and where no recording can be heard.
Evaluation EvalSpeech(const SpeechEvalOptions& options, Transcriber& transcriber,
                      const EvalProgress& report,
                      const FunctionRef<void(const std::string& line)>& warn);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_EVAL_H_
