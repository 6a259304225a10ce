// From sound to phones with a trained model, without libtorch: whole files, or sound as it arrives.
//
//   auto model = Model::Open("models/phones.safetensors");
//   Transcriber transcriber(model);
//   Transcript heard = transcriber.Transcribe(ReadAudio("yes.flac", transcriber.sample_rate()));
//   for (const Phone& phone : heard.phones) ...            // "Y" at 0.21 s, "EH" at 0.30 s, ...
//
//   PhoneStream stream(model);                             // a causal model
//   for (const Phone& phone : stream.Read(samples)) ...    // those that are certain by now
//   for (const Phone& phone : stream.Finish()) ...
//
// Sound that is longer than a model's positions (the longest utterance that it was trained on) is heard in
// windows that overlap; of each, the middle counts. So time and memory grow with it, no more.
#ifndef LINNET_TASKS_SPEECH_TRANSCRIBER_H_
#define LINNET_TASKS_SPEECH_TRANSCRIBER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/thread_pool.h"
#include "linnet/tasks/speech/audio.h"
#include "linnet/tasks/speech/speech_encoder.h"

namespace linnet {

struct Phone {
  std::string name = {};
  double seconds = 0;      // from the beginning to where it is first heard
  double probability = 0;  // of it, there
};

struct Transcript {
  std::vector<Phone> phones = {};
  std::vector<int> classes = {};  // the same as numbers in the model's list of phones, from 0 on
  double seconds = 0;             // of sound
  double log_probability = 0;     // ctc.h
};

// What about a recording makes its transcript worse: silence, clipping, a rate below the model's.
//
//   SoundCheck check;
//   check.Add(audio.samples);
//   for (const std::string& remark : check.Remarks(audio.file_rate, audio.rate)) ...   // a line each
class SoundCheck {
 public:
  void Add(std::span<const float> samples);  // all of them, piece by piece
  std::vector<std::string> Remarks(int file_rate, int rate) const;

 private:
  float peak_ = 0;
  size_t loud_ = 0, count_ = 0;
};

struct TranscriberOptions {
  int threads = 0;  // 0: one for each processor
  size_t beam = 1;  // 1: the likeliest path; more: prefix beam search of that width
};

// The phones of the spec, in order.
std::vector<std::string> PhonesOf(const ModelSpec& spec);

class Transcriber {
 public:
  // Throws InputError for a model of another task.
  explicit Transcriber(std::shared_ptr<const Model> model, const TranscriberOptions& options = {});
  ~Transcriber();

  const Model& model() const { return *model_; }
  int sample_rate() const { return model_->spec().speech()->sample_rate; }
  ThreadPool& pool() { return pool_; }

  // Throws InputError for sound at another rate, or too short for a single frame (25 ms).
  Transcript Transcribe(const Audio& audio);
  // Log-probabilities [positions, classes], what Transcribe() decodes.
  std::vector<float> LogProbabilities(const Audio& audio);

 private:
  std::shared_ptr<const Model> model_;
  TranscriberOptions options_;
  std::vector<std::string> names_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<SpeechEncoder>> encoders_;  // one a thread
};

// Sound as it arrives: constant memory and work a second, however long it lasts. A phone is told as soon
// as the model has heard it, delay_seconds() after it began to sound at most.
class PhoneStream {
 public:
  // Throws InputError for a model that is not causal, or normalises by the utterance, whose end is not
  // known.
  explicit PhoneStream(std::shared_ptr<const Model> model);
  ~PhoneStream();

  double delay_seconds() const;
  double seconds() const;  // of sound, so far

  // The next samples, at the model's rate, any number of them.
  std::vector<Phone> Read(std::span<const float> samples);
  // What the last samples say: nothing follows them.
  std::vector<Phone> Finish();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_TRANSCRIBER_H_
