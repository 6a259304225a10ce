// Transcribes audio to phones with a trained model, without libtorch: whole files, or streams.
//
//   auto model = Model::Open("models/phones.safetensors");
//   Transcriber transcriber(model);
//   Transcript heard = transcriber.Transcribe(ReadAudio("yes.flac", transcriber.sample_rate()));
//   for (const Phone& phone : heard.phones) ...            // "Y" at 0.21 s, "EH" at 0.30 s, ...
//
//   PhoneStream stream(model);                             // a causal model
//   for (const Phone& phone : stream.Read(samples)) ...    // the new phones
//   for (const Phone& phone : stream.Finish()) ...
//
// Audio longer than the longest training utterance is encoded in overlapping windows. Each position
// is taken from one of them, so time and memory are linear in the length.
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
  double seconds = 0;      // start of its first frame in the audio
  double probability = 0;  // of the phone at its first frame
};

struct Transcript {
  std::vector<Phone> phones = {};
  std::vector<int> classes = {};  // the phones' indices in PhonesOf()
  double seconds = 0;             // length of the audio
  double log_probability = 0;     // Decoded::log_probability (ctc.h)
};

// Detects defects of a recording that degrade its transcript: silence, clipping, a sample rate
// below the model's.
//
//   SoundCheck check;
//   check.Add(audio.samples);
//   for (const std::string& remark : check.Remarks(audio.file_rate, audio.rate)) ...   // lines
class SoundCheck {
 public:
  void Add(std::span<const float> samples);  // the next samples of the recording
  std::vector<std::string> Remarks(int file_rate, int rate) const;

 private:
  float peak_ = 0;
  size_t loud_ = 0, count_ = 0;
};

struct TranscriberOptions {
  int threads = 0;  // 0: one per processor
  size_t beam = 1;  // 1: the most likely path; more: prefix beam search of that width
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

  // Throws InputError for audio at another rate, or shorter than a frame (25 ms).
  Transcript Transcribe(const Audio& audio);
  // The log-probabilities [positions, classes] that Transcribe() decodes.
  std::vector<float> LogProbabilities(const Audio& audio);

 private:
  std::shared_ptr<const Model> model_;
  TranscriberOptions options_;
  std::vector<std::string> names_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<SpeechEncoder>> encoders_;  // one per thread
};

// Transcribes audio as it arrives, with constant memory and constant work per second of audio. A
// phone is returned as soon as the model detects it, at most delay_seconds() after its beginning.
class PhoneStream {
 public:
  // Throws InputError for a model that is not causal, or that normalizes by utterance: a stream
  // does not know the statistics before its end.
  explicit PhoneStream(std::shared_ptr<const Model> model);
  ~PhoneStream();

  double delay_seconds() const;
  double seconds() const;  // length of the audio so far

  // Takes the next samples, at the model's rate, in any number; returns the new phones.
  std::vector<Phone> Read(std::span<const float> samples);
  // Ends the audio; returns the remaining phones.
  std::vector<Phone> Finish();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_TRANSCRIBER_H_
