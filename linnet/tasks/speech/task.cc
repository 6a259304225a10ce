// Speech: the lines of `linnet info`. Task::evaluate is null, because the evaluation needs the
// audio libraries. Programs that have them call EvalSpeech() (eval.h).
#include "linnet/tasks/task.h"
#include "linnet/error.h"
#include "linnet/model/spec.h"

namespace linnet {
namespace {

TaskLines DescribeSpeech(const ModelSpec& spec) {
  const SpeechSpec& speech = *spec.speech();
  return {{"task", StrCat(", ", spec.head.classes - 1, " phones")},
          {"frames", StrCat(speech.bands, " bands at ", speech.sample_rate,
                            " samples per second, normalized by the ", speech.normalization, "; ",
                            "a position every ", speech.stride, " frames of 10 ms, from ",
                            speech.stack, " frames, ", speech.lookahead, " of them lookahead")}};
}

}  // namespace

constinit const Task kSpeechTask = {
    .name = "speech",
    .description = "phones in speech",
    .describe = DescribeSpeech,
};

}  // namespace linnet
