// Transcribes audio to phones with a trained model: whole recordings, or streams.
//
//   auto model = linnet::Model::Open("models/phones.safetensors");
//   linnet::Transcriber transcriber(model);
//   linnet::Transcript heard =
//       transcriber.Transcribe({.samples = samples, .rate = transcriber.sample_rate()});
//   for (const linnet::Phone& phone : heard.phones) ...       // "Y" at 0.21 s, "EH" at 0.30 s, ...
//
//   linnet::PhoneStream stream(model);                             // a causal model
//   for (const linnet::Phone& phone : stream.Read(samples)) ...    // the new phones
//   for (const linnet::Phone& phone : stream.Finish()) ...
//
// Audio longer than the longest training utterance is encoded in overlapping windows of that
// length, so time and memory are linear in the length of the audio.
#ifndef LINNET_SPEECH_H_
#define LINNET_SPEECH_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/export.h"
#include "linnet/model.h"

namespace linnet {

// Mono sound.
struct Audio {
  std::vector<float> samples = {};  // -1 .. 1
  int rate = 0;                     // samples per second
  int file_rate = rate;             // samples per second in the file, before resampling

  double seconds() const { return static_cast<double>(samples.size()) / rate; }
};

struct Phone {
  std::string name = {};
  double seconds = 0;      // start of its first frame in the audio
  double probability = 0;  // of the phone at its first frame
};

struct Transcript {
  std::vector<Phone> phones = {};
  std::vector<int> classes = {};  // the phones' indices in PhonesOf(), which lacks the blank
  double seconds = 0;             // length of the audio
  // In nats. With beam = 1: of the most likely CTC path. With a larger beam: of the phones, summed
  // over the CTC paths that the search kept.
  double log_probability = 0;
};

struct TranscriberOptions {
  int threads = 0;  // 0: one per processor
  size_t beam = 1;  // 1: the most likely path; more: prefix beam search of that width
};

// The phones of the spec, in order.
LINNET_API std::vector<std::string> PhonesOf(const ModelSpec& spec);

// The log energies [frames, spec.speech()->bands] of audio at the spec's rate in the bands of the
// mel filterbank that the model hears: a frame of 25 ms every 10 ms, in nats, not normalized.
// Throws InputError for a model of another task.
LINNET_API std::vector<float> SpeechFrames(const ModelSpec& spec, std::span<const float> samples);
// The number of frames in this many samples.
LINNET_API size_t SpeechFrameCount(const ModelSpec& spec, size_t samples);

class LINNET_API Transcriber {
 public:
  // Throws InputError for a model of another task.
  explicit Transcriber(std::shared_ptr<const Model> model, const TranscriberOptions& options = {});
  ~Transcriber();

  const Model& model() const;
  int sample_rate() const;  // samples per second
  int threads() const;

  // Throws InputError for audio at another rate, or shorter than a frame (25 ms).
  Transcript Transcribe(const Audio& audio);
  // The log-probabilities [positions, 1 + phones] that Transcribe() decodes; index 0 is the blank.
  std::vector<float> LogProbabilities(const Audio& audio);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Transcribes audio as it arrives, with constant memory and constant work per second of audio. A
// phone is returned as soon as the model detects it: delay_seconds() after its beginning, or later
// by at most a stride of the model plus the length of the piece passed to Read().
class LINNET_API PhoneStream {
 public:
  // Throws InputError for a model that is not causal, or that normalizes by utterance: the
  // utterance's statistics are known only at the end of the stream.
  explicit PhoneStream(const std::shared_ptr<const Model>& model);
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

#endif  // LINNET_SPEECH_H_
