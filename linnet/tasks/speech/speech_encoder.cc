#include "linnet/tasks/speech/speech_encoder.h"

#include <cmath>
#include <utility>

#include "linnet/error.h"
#include "linnet/sampling.h"

namespace linnet {

SpeechEncoder::SpeechEncoder(std::shared_ptr<const Model> model)
    : engine_(std::move(model), {.threads = 1}) {
  const Model& own = engine_.model();
  if (!own.spec().ReadsFrames()) {
    throw InputError(own.path(), ": a model of the task '", own.spec().task,
                     "', but transcription needs one of 'speech'");
  }
}

size_t SpeechEncoder::inputs() const {
  return static_cast<size_t>(model().spec().speech()->Inputs());
}
size_t SpeechEncoder::classes() const { return engine_.output_size(); }
size_t SpeechEncoder::max_positions() const {
  return static_cast<size_t>(model().spec().input.max_length);
}

size_t SpeechEncoder::Positions(std::span<const float> inputs,
                                std::span<const float> log_probs) const {
  const size_t rows = inputs.size() / this->inputs();
  if (inputs.size() != rows * this->inputs() || log_probs.size() != rows * classes()) {
    throw InputError(model().path(), ": a position has ", this->inputs(), " inputs and ", classes(),
                     " outputs; ", inputs.size(), " inputs and ", log_probs.size(),
                     " outputs do not belong to the same whole number of positions");
  }
  return rows;
}

void SpeechEncoder::Finish(std::span<float> log_probs) const {
  for (size_t at = 0; at < log_probs.size(); at += classes()) {
    LogSoftmax(log_probs.subspan(at, classes()));
  }
  for (const float x : log_probs) {
    if (!std::isfinite(x)) {
      throw RuntimeError(model().path(),
                         ": produced NaN or infinity; its weights are broken, or its input is "
                         "not audio");
    }
  }
}

void SpeechEncoder::Encode(std::span<const float> inputs, std::span<float> log_probs) {
  const size_t rows = Positions(inputs, log_probs);
  if (rows == 0) return;
  engine_.Whole(1, inputs, rows, log_probs);
  Finish(log_probs);
}

void SpeechEncoder::Extend(State& state, std::span<const float> inputs,
                           std::span<float> log_probs) {
  const size_t rows = Positions(inputs, log_probs);
  if (rows == 0) return;
  engine_.Prefix(state, inputs, rows, log_probs);
  Finish(log_probs);
}

}  // namespace linnet
