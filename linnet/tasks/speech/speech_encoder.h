// Runs a trained speech model without libtorch: computes the distribution of phones at each
// position.
//
//   auto model = Model::Open("models/phones.safetensors");
//   SpeechEncoder encoder(model);                         // one per thread; they share the model
//   encoder.Encode(inputs, log_probs);                    // a whole utterance
//
//   State state = encoder.NewState();                     // causal models: as audio arrives
//   encoder.Extend(state, inputs, log_probs);             // the next positions, any number of them
//
// inputs [positions, inputs()]: normalized frames (filterbank.h), stacked as SpeechSpec describes
// (linnet/spec.h). log_probs [positions, classes()]: class 0 is the blank. The outputs of Encode()
// depend on the utterance alone, bit for bit. Extend() gives the same outputs, up to rounding.
#ifndef LINNET_TASKS_SPEECH_SPEECH_ENCODER_H_
#define LINNET_TASKS_SPEECH_SPEECH_ENCODER_H_

#include <cstddef>
#include <memory>
#include <span>

#include "linnet/engine.h"

namespace linnet {

class SpeechEncoder {
 public:
  // Throws InputError for a model that reads no frames.
  explicit SpeechEncoder(std::shared_ptr<const Model> model);

  const Model& model() const { return engine_.model(); }
  size_t inputs() const;         // floats per position
  size_t classes() const;        // log-probabilities per position
  size_t max_positions() const;  // positions of the longest training utterance

  // Throws InputError if the sizes disagree, RuntimeError if an output is not finite.
  void Encode(std::span<const float> inputs, std::span<float> log_probs);

  // NewState() and Extend() throw InputError for a model that is not causal.
  State NewState() const { return engine_.NewState(1); }
  void Extend(State& state, std::span<const float> inputs, std::span<float> log_probs);

 private:
  // Checks the sizes, and returns the number of positions.
  size_t Positions(std::span<const float> inputs, std::span<const float> log_probs) const;
  // Converts the head's outputs to log-probabilities, in place. Throws if one is not finite.
  void Finish(std::span<float> log_probs) const;

  Engine engine_;
};

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_SPEECH_ENCODER_H_
