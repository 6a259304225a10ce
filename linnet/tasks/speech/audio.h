// Sound from files: one channel at the rate that a model wants.
//
//   Audio audio = ReadAudio("yes.flac", 16'000);       // WAV, FLAC, NIST SPHERE without compression
//   audio.seconds()                                    // 0.9
#ifndef LINNET_TASKS_SPEECH_AUDIO_H_
#define LINNET_TASKS_SPEECH_AUDIO_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace linnet {

struct Audio {
  std::vector<float> samples = {};  // -1 .. 1
  int rate = 0;                     // samples a second
  int file_rate = rate;             // those of the file that they come from

  double seconds() const { return static_cast<double>(samples.size()) / rate; }
};

// Reads a file that libsndfile knows: several channels become their mean, another rate is resampled
// (band-limited). Throws InputError on a file that is not there, holds no sound, ends before it should,
// holds what is no number (or beyond a million times the loudest), or is longer than a day.
Audio ReadAudio(const std::string& path, int rate);

// The same of a file's bytes; `label` names it in errors.
Audio ParseAudio(std::span<const std::byte> bytes, const std::string& label, int rate);

// The same piece by piece, in memory that does not grow with the sound: from a file, or from a pipe with
// WAV in it, as it arrives.
//
//   AudioReader reader("speech.wav", 16'000);
//   while (const size_t count = reader.Read(piece)) ...
class AudioReader {
 public:
  // "-" is standard input. Throws as ReadAudio() does.
  AudioReader(const std::string& path, int rate);
  ~AudioReader();
  AudioReader(const AudioReader&) = delete;
  AudioReader& operator=(const AudioReader&) = delete;

  // Fills `samples` and returns how many there were: fewer at the end, then 0. Of a pipe it returns what
  // has arrived, one at least.
  size_t Read(std::span<float> samples);
  int file_rate() const;  // samples a second of the file

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

// Band-limited resampling, rates 1 .. 10,000,000, whose quotient is 256 at most.
std::vector<float> Resample(std::span<const float> samples, int from, int to);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_AUDIO_H_
