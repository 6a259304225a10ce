// Running a trained model of speech: frames in, for each position a distribution over phones out. No
// libtorch.
//
//   auto model = Model::Open("models/phones.safetensors");
//   SpeechEncoder encoder(model);                         // one a thread; the model is shared
//   encoder.Encode(inputs, log_probs);                    // a whole utterance
//
//   SpeechState state = encoder.NewState();               // a causal model, as sound arrives
//   encoder.Extend(state, inputs, log_probs);             // the next positions, any number of them
//
// inputs [positions, inputs()] are stacked frames (SpeechSpec; data/filterbank.h makes them), normalised;
// log_probs [positions, classes()], class 0 being the blank. linnet/speech does all this from sound.
// What a position gets does not depend, bit for bit, on anything but its utterance; Extend() gives what
// Encode() gives, to rounding.
#ifndef LINNET_RUNTIME_SPEECH_ENCODER_H_
#define LINNET_RUNTIME_SPEECH_ENCODER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "linnet/runtime/model.h"

namespace linnet {

// What a causal model keeps of what it has heard: a fixed number of floats. A value.
class SpeechState {
 public:
  size_t position() const { return position_; }  // positions read
  size_t bytes() const { return floats_.size() * sizeof(float); }

 private:
  friend class SpeechEncoder;
  size_t position_ = 0;
  // Of each layer: s [heads, F, M], z [heads, F], and the last rows that its convolution has read.
  std::vector<float> floats_;
};

// Bytes of such a state; of a spec that is causal.
size_t SpeechStateBytes(const ModelSpec& spec);

class SpeechEncoder {
 public:
  // Throws InputError for a model of another task.
  explicit SpeechEncoder(std::shared_ptr<const Model> model);
  ~SpeechEncoder();

  const Model& model() const { return *model_; }
  size_t inputs() const;         // floats a position
  size_t classes() const;        // log-probabilities a position
  size_t max_positions() const;  // of an utterance, or of a state

  // Throws InputError where the sizes disagree, or the model has fewer positions; RuntimeError where what
  // comes out is no number.
  void Encode(std::span<const float> inputs, std::span<float> log_probs);

  // Both throw InputError for a model that is not causal.
  SpeechState NewState() const;
  void Extend(SpeechState& state, std::span<const float> inputs, std::span<float> log_probs);

 private:
  void Run(SpeechState* state, std::span<const float> inputs, std::span<float> log_probs);

  struct Scratch;
  class Pass;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SPEECH_ENCODER_H_
