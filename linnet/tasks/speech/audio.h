// Reads audio files as one channel at the sample rate of a model.
//
//   Audio audio = ReadAudio("yes.flac", 16'000);    // WAV, FLAC, uncompressed NIST SPHERE
//   audio.seconds()                                 // 0.9
#ifndef LINNET_TASKS_SPEECH_AUDIO_H_
#define LINNET_TASKS_SPEECH_AUDIO_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/speech.h"

namespace linnet {

// Reads a file in any format of libsndfile. Averages the channels and resamples (band-limited) to
// `rate`. Throws InputError on a file that is missing, empty, not audio, truncated or longer than a
// day, and on samples that are NaN, infinite or larger than a million times full scale.
Audio ReadAudio(const std::string& path, int rate);

// The same for a file's bytes in memory; `label` names the file in errors.
Audio ParseAudio(std::span<const std::byte> bytes, const std::string& label, int rate);

// Reads a file, or WAV data from a pipe, piece by piece in constant memory. Gives the same samples
// as ReadAudio(): bit for bit without resampling, up to rounding with it.
//
//   AudioReader reader("speech.wav", 16'000);
//   while (const size_t count = reader.Read(piece)) ...
class AudioReader {
 public:
  // "-" is standard input. The constructor and Read() throw as ReadAudio() does, except that the
  // audio may have any length.
  AudioReader(const std::string& path, int rate);
  ~AudioReader();
  AudioReader(const AudioReader&) = delete;
  AudioReader& operator=(const AudioReader&) = delete;

  // Reads up to samples.size() samples and returns their number, which is 0 only at the end. If a
  // pipe has no data, waits for it.
  size_t Read(std::span<float> samples);
  int file_rate() const;  // samples per second in the file

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

// Detects defects of a recording that degrade its transcript: silence, clipping, a sample rate
// below the model's.
//
//   SoundCheck check;
//   check.Add(audio.samples);
//   for (const std::string& remark : check.Remarks(audio.file_rate, audio.rate)) ...
class SoundCheck {
 public:
  void Add(std::span<const float> samples);  // the next samples of the recording
  std::vector<std::string> Remarks(int file_rate, int rate) const;  // one line per defect

 private:
  float peak_ = 0;
  size_t loud_ = 0, count_ = 0;  // numbers of samples: at full scale, and in total
};

// Resamples (band-limited) from one rate to another, in samples per second. Throws InputError if a
// rate is outside 1 .. 10,000,000, or if their ratio is above 256.
std::vector<float> Resample(std::span<const float> samples, int from, int to);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_AUDIO_H_
