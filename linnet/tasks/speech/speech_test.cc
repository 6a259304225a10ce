#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sndfile.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numbers>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/io/test_util.h"
#include "linnet/rng.h"
#include "linnet/tasks/speech/audio.h"
#include "linnet/tasks/speech/filterbank.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;
using testing::HasSubstr;

Floats Tone(double hertz, int rate, size_t count, double amplitude = 0.5) {
  Floats samples(count);
  for (size_t i = 0; i < count; ++i) {
    samples[i] = static_cast<float>(
        amplitude * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  }
  return samples;
}

// Writes an audio file, and gives access to its path and its bytes.
class SoundFile {
 public:
  SoundFile(const Floats& samples, int rate, int channels, int format)
      : path_((std::filesystem::temp_directory_path() /
               ("linnet_speech_test." + std::to_string(getpid())))
                  .string()) {
    SF_INFO info{};
    info.samplerate = rate, info.channels = channels, info.format = format;
    SNDFILE* file = sf_open(path_.c_str(), SFM_WRITE, &info);
    EXPECT_NE(file, nullptr) << sf_strerror(nullptr);
    const auto count = static_cast<sf_count_t>(samples.size());
    if ((format & SF_FORMAT_SUBMASK) == SF_FORMAT_PCM_16) {  // sf_write_float scales by 32,767
      std::vector<short> steps;
      for (const float x : samples) steps.push_back(static_cast<short>(std::lrint(32768 * x)));
      sf_write_short(file, steps.data(), count);
    } else {
      sf_write_float(file, samples.data(), count);
    }
    sf_close(file);
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  ~SoundFile() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }
  std::vector<char>& bytes() { return bytes_; }

 private:
  std::string path_;
  std::vector<char> bytes_;
};

Audio Parse(const std::vector<char>& bytes, int rate) {
  return ParseAudio(std::as_bytes(std::span(bytes)), "here", rate);
}

TEST(Audio, ReadsWavFlacAndSphere) {
  Floats samples(3000);
  Philox rng(1, 2);
  for (float& x : samples) x = std::nearbyint(30000 * (2 * rng.Uniform() - 1)) / 32768;
  for (const int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                           SF_FORMAT_NIST | SF_FORMAT_PCM_16, SF_FORMAT_WAV | SF_FORMAT_FLOAT}) {
    const SoundFile file(samples, 16'000, 1, format);
    const Audio audio = ReadAudio(file.path(), 16'000);
    EXPECT_EQ(audio.rate, 16'000);
    EXPECT_EQ(audio.samples, samples) << format;
    EXPECT_DOUBLE_EQ(audio.seconds(), 3000.0 / 16'000);
  }
}

TEST(Audio, AveragesChannels) {
  Floats both;
  for (int i = 0; i < 100; ++i) both.insert(both.end(), {0.5f, i % 2 ? 0.25f : -0.5f});
  const SoundFile file(both, 8'000, 2, SF_FORMAT_WAV | SF_FORMAT_PCM_16);
  const Audio audio = ReadAudio(file.path(), 8'000);
  ASSERT_EQ(audio.samples.size(), 100u);
  EXPECT_FLOAT_EQ(audio.samples[0], 0);
  EXPECT_FLOAT_EQ(audio.samples[1], 0.375f);
}

TEST(Audio, ResamplesOtherRates) {
  for (const int rate : {8'000, 11'025, 44'100, 48'000}) {
    const SoundFile file(Tone(1000, rate, static_cast<size_t>(rate)), rate, 1,
                         SF_FORMAT_WAV | SF_FORMAT_FLOAT);
    const Floats got = ReadAudio(file.path(), 16'000).samples, want = Tone(1000, 16'000, 16'000);
    ASSERT_NEAR(static_cast<double>(got.size()), 16'000, 2) << rate;
    // The first and last samples are not compared: near the ends, the filter's window reaches
    // beyond the audio.
    for (size_t i = 1000; i < 15'000; ++i) ASSERT_NEAR(got[i], want[i], 2e-3) << rate << " " << i;
  }
  EXPECT_TRUE(Resample({}, 8'000, 16'000).empty());
  EXPECT_THAT(ErrorOf([] { Resample({}, 1, 16'000); }), HasSubstr("cannot be resampled"));
}

TEST(Audio, RefusesDamagedFiles) {
  EXPECT_THAT(ErrorOf([] { ReadAudio("/nowhere.wav", 16'000); }), HasSubstr("/nowhere.wav"));
  EXPECT_THAT(ErrorOf([] { Parse({}, 16'000); }), HasSubstr("here: is empty"));
  const std::string text = "hello, I am a text, which is longer than a header of a file with sound";
  EXPECT_THAT(ErrorOf([&] { Parse({text.begin(), text.end()}, 16'000); }), HasSubstr("readable"));
  SoundFile none({}, 16'000, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16);
  EXPECT_THAT(ErrorOf([&] { Parse(none.bytes(), 16'000); }), HasSubstr("contains no samples"));
  SoundFile nan(Floats(10, NAN), 16'000, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT);
  EXPECT_THAT(ErrorOf([&] { Parse(nan.bytes(), 16'000); }), HasSubstr("has NaN"));
  SoundFile flac(Tone(300, 16'000, 16'000), 16'000, 1, SF_FORMAT_FLAC | SF_FORMAT_PCM_16);
  flac.bytes().resize(flac.bytes().size() / 2);
  EXPECT_THAT(ErrorOf([&] { Parse(flac.bytes(), 16'000); }), HasSubstr("ends after"));
}

// All samples of a file, read in pieces.
Floats InPieces(const std::string& path, int rate, size_t piece) {
  AudioReader reader(path, rate);
  Floats all, part(piece);
  while (const size_t count = reader.Read(part)) {
    all.insert(all.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
  }
  EXPECT_EQ(reader.Read(part), 0u);
  return all;
}

TEST(AudioReader, PiecesEqualTheWhole) {
  const Floats samples = Tone(440, 48'000, 30'001);
  for (const int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16}) {
    const SoundFile file(samples, 48'000, 1, format);
    for (const size_t piece : {1u, 777u, 100'000u}) {
      EXPECT_EQ(InPieces(file.path(), 48'000, piece), ReadAudio(file.path(), 48'000).samples);
    }
    // Resampling in pieces gives the same samples, up to rounding.
    const Floats want = ReadAudio(file.path(), 16'000).samples;
    for (const size_t piece : {5u, 1600u}) {
      const Floats got = InPieces(file.path(), 16'000, piece);
      ASSERT_NEAR(static_cast<double>(got.size()), static_cast<double>(want.size()), 1);
      for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        ASSERT_NEAR(got[i], want[i], 1e-5) << i;
      }
    }
  }
}

TEST(AudioReader, ErrorsNameTheFault) {
  SoundFile wav(Tone(440, 16'000, 5000), 16'000, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16);
  std::vector<char> cut(wav.bytes().begin(), wav.bytes().end() - 3000);
  EXPECT_THAT(ErrorOf([&] { Parse(cut, 16'000); }), HasSubstr("ends after 7000 of 10000 bytes"));
  std::fill_n(cut.begin() + 40, 3, '\xff'), cut[43] = '\x7f';  // a placeholder for the length
  EXPECT_EQ(Parse(cut, 16'000).samples.size(), 3500u);
  SoundFile file(Tone(440, 16'000, 5000), 16'000, 1, SF_FORMAT_FLAC | SF_FORMAT_PCM_16);
  std::filesystem::resize_file(file.path(), file.bytes().size() / 2);
  EXPECT_THAT(ErrorOf([&] { InPieces(file.path(), 16'000, 1000); }), HasSubstr("ends after"));
  EXPECT_THAT(ErrorOf([] { AudioReader reader("/no/such", 16'000); }), HasSubstr("/no/such"));
  EXPECT_THAT(ErrorOf([] { AudioReader reader("/dev/null", 16'000); }), HasSubstr("not readable"));
  EXPECT_THAT(ErrorOf([] { AudioReader reader("/", 16'000); }), HasSubstr("a folder"));
}

// Compares with torchaudio's Kaldi-compatible filterbank.
TEST(Filterbank, AgreesWithTorchaudio) {
  const SafetensorsFile file = SafetensorsFile::Open("tests/audio/fbank.safetensors");
  const auto samples = file.Get("samples").f32();
  const auto check = [&](const FilterbankOptions& options, const char* name) {
    Filterbank bank(options);
    const Floats got = bank.Compute(samples);
    const auto want = file.Get(name).f32();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-3) << name << " " << i;
  };
  check({}, "frames");
  check({.rate = 8'000, .bins = 23, .window_ms = 32, .step_ms = 8, .low = 60, .high = -200},
        "frames_8000");
}

TEST(Filterbank, AToneIsLoudestInItsBand) {
  Filterbank bank;
  const double lowest = 1127 * std::log(1 + 20 / 700.0),
               highest = 1127 * std::log(1 + 8000 / 700.0);
  for (const size_t band : {5, 17, 30, 38}) {
    const double mel = lowest + (highest - lowest) / 41 * static_cast<double>(band + 1);
    const Floats frames = bank.Compute(Tone(700 * (std::exp(mel / 1127) - 1), 16'000, 400));
    const auto loudest = std::max_element(frames.begin(), frames.end()) - frames.begin();
    EXPECT_EQ(static_cast<size_t>(loudest), band);
  }
  // Doubling the amplitude adds log 4 to each band. A constant signal gives the lower bound.
  const Floats once = bank.Compute(Tone(500, 16'000, 400, 0.25)),
               twice = bank.Compute(Tone(500, 16'000, 400, 0.5)),
               silent = bank.Compute(Floats(400, 0.25f));
  for (size_t b = 0; b < once.size(); ++b) {
    EXPECT_NEAR(twice[b] - once[b], std::log(4), 1e-2);
    EXPECT_NEAR(silent[b], -23 * std::log(2), 1e-3);
  }
}

TEST(Filterbank, FramesAreOfWholeWindows) {
  Filterbank bank;
  EXPECT_EQ(bank.window(), 400u);
  EXPECT_EQ(bank.step(), 160u);
  for (const auto& [samples, frames] :
       std::vector<std::pair<size_t, size_t>>{{0, 0}, {399, 0}, {400, 1}, {559, 1}, {560, 2}}) {
    EXPECT_EQ(bank.Frames(samples), frames);
    EXPECT_EQ(bank.Compute(Floats(samples)).size(), 40 * frames);
  }
  // Computing frame by frame gives the same as computing all frames at once.
  const Floats tone = Tone(700, 16'000, 2000), all = bank.Compute(tone);
  for (size_t i = 0; i < bank.Frames(2000); ++i) {
    Floats frame(40);
    bank.Frame(std::span(tone).subspan(i * 160, 400), frame);
    EXPECT_TRUE(
        std::equal(frame.begin(), frame.end(), all.begin() + static_cast<ptrdiff_t>(40 * i)));
  }
}

TEST(Filterbank, NormalizedBandsHaveMeanZeroAndDeviationOne) {
  Floats frames(50 * 3);
  Philox rng(3, 4);
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i] = i % 3 == 2 ? 7 : 5 + static_cast<float>(i % 3 + 1) * rng.Normal();
  }
  NormalizeFrames(frames, 3);
  for (size_t b = 0; b < 3; ++b) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < 50; ++i)
      sum += frames[i * 3 + b], squares += std::pow(frames[i * 3 + b], 2);
    EXPECT_NEAR(sum / 50, 0, 1e-5);
    EXPECT_NEAR(squares / 50, b == 2 ? 0 : 1, 1e-4);  // a constant band becomes 0
  }
}

TEST(Filterbank, RefusesInvalidOptions) {
  const auto error = [](const FilterbankOptions& options) {
    return ErrorOf([&] { Filterbank bank(options); });
  };
  EXPECT_THAT(error({.rate = 0}), HasSubstr("samples per second"));
  EXPECT_THAT(error({.bins = 0}), HasSubstr("0 bands"));
  EXPECT_THAT(error({.bins = 500}), HasSubstr("narrower"));
  EXPECT_THAT(error({.low = 9000}), HasSubstr("at most half of the rate, 8000"));
  EXPECT_THAT(error({.window_ms = 0.01}), HasSubstr("windows"));
  EXPECT_THAT(error({.window_ms = NAN}), HasSubstr("windows"));
  EXPECT_THAT(error({.preemphasis = 2}), HasSubstr("pre-emphasis"));
}

}  // namespace
}  // namespace linnet
