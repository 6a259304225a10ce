// Transcribes audio to phones with a trained model, without libtorch: whole files, or streams.
//
//   auto model = linnet::Model::Open("models/phones.safetensors");
//   linnet::Transcriber transcriber(model);
//   linnet::Transcript heard =
//       transcriber.Transcribe(linnet::ReadAudio("yes.flac", transcriber.sample_rate()));
//   for (const linnet::Phone& phone : heard.phones) ...            // "Y" at 0.21 s, "EH" at 0.30 s, ...
//
//   linnet::PhoneStream stream(model);                             // a causal model
//   for (const linnet::Phone& phone : stream.Read(samples)) ...    // the new phones
//   for (const linnet::Phone& phone : stream.Finish()) ...
//
// Audio longer than the longest training utterance is encoded in overlapping windows. Each position
// is taken from one of them, so time and memory are linear in the length.
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

struct Audio {
  std::vector<float> samples = {};  // -1 .. 1
  int rate = 0;                     // samples per second
  int file_rate = rate;             // samples per second in the file

  double seconds() const { return static_cast<double>(samples.size()) / rate; }
};

// Reads a file in a format of libsndfile. Averages the channels and resamples (band-limited) to
// `rate`. Throws InputError on a file that is missing, empty, not audio, truncated, longer than a
// day, or has samples that are not finite or beyond a million times full scale.
LINNET_API Audio ReadAudio(const std::string& path, int rate);

// The same for the bytes of a file; `label` names it in errors.
LINNET_API Audio ParseAudio(std::span<const std::byte> bytes, const std::string& label, int rate);

// Reads the same samples in pieces, in constant memory: from a file, or from a pipe with WAV as
// they arrive.
//
//   AudioReader reader("speech.wav", 16'000);
//   while (const size_t count = reader.Read(piece)) ...
class LINNET_API AudioReader {
 public:
  // "-" is standard input. Throws as ReadAudio() does.
  AudioReader(const std::string& path, int rate);
  ~AudioReader();
  AudioReader(const AudioReader&) = delete;
  AudioReader& operator=(const AudioReader&) = delete;

  // Fills `samples` and returns the number of samples read: fewer at the end, then 0. From a pipe
  // it returns the samples that have arrived, at least one.
  size_t Read(std::span<float> samples);
  int file_rate() const;  // samples per second in the file

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

struct Phone {
  std::string name = {};
  double seconds = 0;      // start of its first frame in the audio
  double probability = 0;  // of the phone at its first frame
};

struct Transcript {
  std::vector<Phone> phones = {};
  std::vector<int> classes = {};  // the phones' indices in PhonesOf()
  double seconds = 0;             // length of the audio
  double log_probability = 0;     // natural logarithm, of the decoded path
};

struct TranscriberOptions {
  int threads = 0;  // 0: one per processor
  size_t beam = 1;  // 1: the most likely path; more: prefix beam search of that width
};

// The phones of the spec, in order.
LINNET_API std::vector<std::string> PhonesOf(const ModelSpec& spec);

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
  // The log-probabilities [positions, classes] that Transcribe() decodes.
  std::vector<float> LogProbabilities(const Audio& audio);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Transcribes audio as it arrives, with constant memory and constant work per second of audio. A
// phone is returned as soon as the model detects it, at most delay_seconds() after its beginning.
class LINNET_API PhoneStream {
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

// Detects defects of a recording that degrade its transcript: silence, clipping, a sample rate
// below the model's.
//
//   SoundCheck check;
//   check.Add(audio.samples);
//   for (const std::string& remark : check.Remarks(audio.file_rate, audio.rate)) ...   // lines
class LINNET_API SoundCheck {
 public:
  void Add(std::span<const float> samples);  // the next samples of the recording
  std::vector<std::string> Remarks(int file_rate, int rate) const;

 private:
  float peak_ = 0;
  size_t loud_ = 0, count_ = 0;
};

}  // namespace linnet

#endif  // LINNET_SPEECH_H_
