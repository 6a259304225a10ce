#include "linnet/tasks/speech/audio.h"

#include <fcntl.h>
#include <samplerate.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

constexpr double kLongest = 24 * 3600;                        // seconds
constexpr int kHighestRate = 10'000'000, kMostChannels = 64;  // rate: samples per second
constexpr double kLargestQuotient = 256;  // libsamplerate's limit for the ratio of two rates
constexpr float kLoudest = 1e6;           // limit of a sample; full scale is 1
constexpr int kQuality = SRC_SINC_MEDIUM_QUALITY;
constexpr size_t kPiece = 1 << 14;  // samples per read

// A virtual file for libsndfile that is read from memory.
struct Bytes {
  std::span<const std::byte> data;
  sf_count_t at = 0;  // offset of the next byte to read

  sf_count_t size() const { return static_cast<sf_count_t>(data.size()); }
};

SF_VIRTUAL_IO InMemory() {
  return {.get_filelen = [](void* user) { return static_cast<Bytes*>(user)->size(); },
          .seek = [](sf_count_t offset, int whence, void* user) -> sf_count_t {
            auto& bytes = *static_cast<Bytes*>(user);
            const sf_count_t from = whence == SEEK_SET   ? 0
                                    : whence == SEEK_CUR ? bytes.at
                                                         : bytes.size();
            if (offset < -from || offset > bytes.size() - from) return -1;
            return bytes.at = from + offset;
          },
          .read = [](void* to, sf_count_t count, void* user) -> sf_count_t {
            auto& bytes = *static_cast<Bytes*>(user);
            count = std::clamp<sf_count_t>(count, 0, bytes.size() - bytes.at);
            std::memcpy(to, bytes.data.data() + bytes.at, static_cast<size_t>(count));
            bytes.at += count;
            return count;
          },
          .write = [](const void*, sf_count_t, void*) -> sf_count_t { return 0; },
          .tell = [](void* user) { return static_cast<Bytes*>(user)->at; }};
}

struct Close {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

}  // namespace

std::vector<float> Resample(std::span<const float> samples, int from, int to) {
  const auto fits = [](int rate) { return rate >= 1 && rate <= kHighestRate; };
  const double quotient = static_cast<double>(to) / from;
  if (!fits(from) || !fits(to) || std::max(quotient, 1 / quotient) > kLargestQuotient) {
    throw InputError("audio at ", from, " samples per second cannot be resampled to ", to);
  }
  if (from == to || samples.empty()) return {samples.begin(), samples.end()};
  const auto length =
      static_cast<size_t>(std::llround(std::ceil(static_cast<double>(samples.size()) * quotient)));
  std::vector<float> resampled(length);
  SRC_DATA data{};
  data.data_in = samples.data(), data.data_out = resampled.data();
  data.input_frames = static_cast<long>(samples.size());
  data.output_frames = static_cast<long>(length);
  data.src_ratio = quotient;
  if (const int error = src_simple(&data, kQuality, /*channels=*/1)) {
    throw RuntimeError("audio cannot be resampled: ", src_strerror(error));
  }
  resampled.resize(static_cast<size_t>(data.output_frames_gen));
  return resampled;
}

namespace {

using File = std::unique_ptr<SNDFILE, Close>;

// Returns the length of the file; of a WAV file, the length without what follows its samples.
// Throws InputError if a WAV file has, before its samples, a chunk that reaches beyond the end of
// the file. Given such a chunk before or after them, libsndfile 1.2 searches for minutes.
size_t CheckChunks(std::span<const std::byte> bytes, const std::string& label) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool little = text.starts_with("RIFF");
  if ((!little && !text.starts_with("RIFX")) || text.size() < 12 || text.substr(8, 4) != "WAVE") {
    return text.size();
  }
  for (size_t at = 12; text.size() - at >= 8;) {
    const std::string_view name = text.substr(at, 4);
    uint32_t size = 0;
    for (size_t i = 0; i < 4; ++i) {
      size = size << 8 | static_cast<uint8_t>(text[at + 4 + (little ? 3 - i : i)]);
    }
    at += 8;
    if (name == "data") return at + std::min<size_t>(size, text.size() - at);
    if (size > text.size() - at) {
      throw InputError(label, ": damaged: a chunk of ", size,
                       " bytes before the audio, but the file has only ", text.size());
    }
    at = std::min(at + size + size % 2, text.size());
  }
  return text.size();
}

// Throws InputError unless the file was opened and has audio.
void Check(const File& file, const SF_INFO& info, const std::string& label) {
  if (!file) {
    throw InputError(label, ": not readable as audio: ", sf_strerror(nullptr),
                     " Use WAV, FLAC or uncompressed NIST SPHERE");
  }
  if (info.samplerate < 1 || info.samplerate > kHighestRate || info.channels < 1 ||
      info.channels > kMostChannels) {
    throw InputError(label, ": ", info.channels, " channels at ", info.samplerate,
                     " samples per second are not supported");
  }
  if (info.frames <= 0) throw InputError(label, ": contains no samples");
  // libsndfile reads a truncated WAV without an error; only its log shows the truncation. A header
  // that states about 2^31 bytes or more is accepted: a program that writes WAV to a pipe does not
  // know the length, and writes such a placeholder.
  char log[4096] = "";
  sf_command(file.get(), SFC_GET_LOG_INFO, log, sizeof(log));
  const char* data = std::strstr(log, "\ndata : ");
  unsigned long long said = 0, is = 0;  // bytes of audio: stated in the header, and present
  constexpr unsigned long long kUnknown = 0x7fff0000;
  if (info.seekable && data != nullptr &&
      std::sscanf(data, "\ndata : %llu (should be %llu)", &said, &is) == 2 && said < kUnknown) {
    throw InputError(label, ": ends after ", is, " of ", said, " bytes of audio");
  }
}

// Throws InputError if the file's rate cannot be resampled to `rate`.
void CheckRate(const SF_INFO& info, int rate, const std::string& label) {
  try {
    Resample({}, info.samplerate, rate);
  } catch (const Error& error) {
    throw InputError(label, ": ", error.what());
  }
}

// Reads up to `most` further samples of each channel, and appends their averages over the channels
// to `mono`. Returns their number. `piece` is a buffer for the samples of all channels.
size_t ReadMono(SNDFILE* file, size_t channels, size_t most, const std::string& label,
                std::vector<float>& piece, std::vector<float>& mono) {
  piece.resize(most * channels);
  const sf_count_t frames = sf_readf_float(file, piece.data(), static_cast<sf_count_t>(most));
  for (size_t i = 0; i < static_cast<size_t>(frames); ++i) {
    float sum = 0;
    for (size_t c = 0; c < channels; ++c) sum += piece[i * channels + c];
    if (!(std::abs(sum) < kLoudest)) throw InputError(label, ": has NaN, infinite or huge samples");
    mono.push_back(sum / static_cast<float>(channels));
  }
  return static_cast<size_t>(frames);
}

}  // namespace

Audio ParseAudio(std::span<const std::byte> bytes, const std::string& label, int rate) {
  if (bytes.empty()) throw InputError(label, ": is empty");
  Bytes memory{bytes.first(CheckChunks(bytes, label))};
  SF_VIRTUAL_IO io = InMemory();
  SF_INFO info{};
  const File file(sf_open_virtual(&io, SFM_READ, &info, &memory));
  Check(file, info, label);
  if (static_cast<double>(info.frames) > kLongest * info.samplerate) {
    throw InputError(label, ": is longer than a day");
  }
  // Reads in pieces instead of allocating memory for the header's length, which may be wrong.
  std::vector<float> piece, mono;
  while (ReadMono(file.get(), static_cast<size_t>(info.channels), kPiece, label, piece, mono) > 0) {
  }
  if (mono.size() != static_cast<size_t>(info.frames)) {
    throw InputError(label, ": ends after ", mono.size(), " of ", info.frames, " samples");
  }
  if (info.samplerate == rate) return {std::move(mono), rate};
  CheckRate(info, rate, label);
  return {Resample(mono, info.samplerate, rate), rate, info.samplerate};
}

Audio ReadAudio(const std::string& path, int rate) {
  const MappedFile file(path);
  return ParseAudio(file.bytes(), path, rate);
}

struct AudioReader::Source {
  struct Free {
    void operator()(SRC_STATE* state) const { src_delete(state); }
  };
  std::string label;
  int fd = -1;                      // 0, standard input, stays open
  std::optional<MappedFile> bytes;  // unless the audio comes from a pipe or a device
  Bytes memory;                     // of `bytes`, for `file`
  File file;
  SF_INFO info{};
  double quotient = 1;                         // output rate / file rate
  std::unique_ptr<SRC_STATE, Free> resampler;  // null if the rates are equal
  std::vector<float> piece, mono;              // mono: read but not yet resampled or returned
  size_t read = 0;                             // number of the file's samples read
  bool ended = false;

  ~Source() {
    file.reset();
    if (fd > 0) close(fd);
  }

  // Reads up to `most` samples of the file into `mono`. Sets `ended` at the end of the file.
  void Fill(size_t most) {
    const size_t count =
        ReadMono(file.get(), static_cast<size_t>(info.channels), most, label, piece, mono);
    read += count;
    if (count > 0) return;
    ended = true;
    // The header of WAV data from a pipe may lack the length, so only files are checked.
    if (info.seekable && read != static_cast<size_t>(info.frames)) {
      throw InputError(label, ": ends after ", read, " of ", info.frames, " samples");
    }
  }
  // Removes the first `count` samples of `mono`.
  void Drop(size_t count) {
    mono.erase(mono.begin(), mono.begin() + static_cast<ptrdiff_t>(count));
  }
};

AudioReader::AudioReader(const std::string& path, int rate) : source_(std::make_unique<Source>()) {
  const bool standard = path == "-";
  source_->label = standard ? "standard input" : path;
  source_->fd = standard ? 0 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (source_->fd < 0) {
    throw InputError(path, ": ",
                     errno == ENOENT ? "no such file; check the path" : std::strerror(errno));
  }
  struct stat about {};
  if (fstat(source_->fd, &about) == 0 && S_ISDIR(about.st_mode)) {
    throw InputError(source_->label, ": a folder, not a file; name a file in it");
  }
  if (S_ISREG(about.st_mode) && about.st_size == 0) throw InputError(source_->label, ": is empty");
  if (S_ISREG(about.st_mode)) {
    const auto bytes = source_->bytes.emplace(standard ? "/dev/stdin" : path).bytes();
    source_->memory = {bytes.first(CheckChunks(bytes, source_->label))};
    SF_VIRTUAL_IO io = InMemory();
    source_->file.reset(sf_open_virtual(&io, SFM_READ, &source_->info, &source_->memory));
  } else {
    source_->file.reset(sf_open_fd(source_->fd, SFM_READ, &source_->info, /*close_desc=*/0));
  }
  if (!source_->file && standard) {
    throw InputError("standard input: not readable as an audio stream: ", sf_strerror(nullptr),
                     " From a pipe, only WAV is supported");
  }
  Check(source_->file, source_->info, source_->label);
  const int from = source_->info.samplerate;
  if (from == rate) return;
  CheckRate(source_->info, rate, source_->label);
  source_->quotient = static_cast<double>(rate) / from;
  int error = 0;
  source_->resampler.reset(src_new(kQuality, /*channels=*/1, &error));
  if (!source_->resampler) {
    throw RuntimeError("audio cannot be resampled: ", src_strerror(error));
  }
}

AudioReader::~AudioReader() = default;

int AudioReader::file_rate() const { return source_->info.samplerate; }

size_t AudioReader::Read(std::span<float> samples) {
  Source& source = *source_;
  if (samples.empty()) return 0;
  if (!source.resampler) {
    if (!source.ended) source.Fill(samples.size());
    const size_t count = std::min(samples.size(), source.mono.size());
    std::copy_n(source.mono.begin(), count, samples.begin());
    source.Drop(count);
    return count;
  }
  for (;;) {
    if (source.mono.empty() && !source.ended) {
      // Reads no more than the caller needs: a pipe may take long to deliver the rest.
      source.Fill(
          static_cast<size_t>(std::ceil(static_cast<double>(samples.size()) / source.quotient)));
    }
    SRC_DATA data{};
    data.data_in = source.mono.data(), data.data_out = samples.data();
    data.input_frames = static_cast<long>(source.mono.size());
    data.output_frames = static_cast<long>(samples.size());
    data.end_of_input = source.ended;
    data.src_ratio = source.quotient;
    if (const int error = src_process(source.resampler.get(), &data)) {
      throw RuntimeError("audio cannot be resampled: ", src_strerror(error));
    }
    source.Drop(static_cast<size_t>(data.input_frames_used));
    const auto made = static_cast<size_t>(data.output_frames_gen);
    if (made > 0 || (source.ended && source.mono.empty())) return made;
  }
}

void SoundCheck::Add(std::span<const float> samples) {
  constexpr float kLoud = 0.9999f;
  for (const float x : samples) {
    peak_ = std::max(peak_, std::abs(x));
    loud_ += std::abs(x) >= kLoud;
  }
  count_ += samples.size();
}

std::vector<std::string> SoundCheck::Remarks(int file_rate, int rate) const {
  constexpr float kQuiet = 1e-4f;
  constexpr double kManyLoud = 0.01;
  std::vector<std::string> remarks;
  const auto remark = [&](const auto&... text) { remarks.push_back(StrCat(text...)); };
  if (count_ > 0 && peak_ < kQuiet) remark("silent: its transcript is meaningless");
  const double share =
      static_cast<double>(loud_) / static_cast<double>(std::max<size_t>(count_, 1));
  if (share > kManyLoud) {
    remark("clipped: ", std::lround(100 * share), "% of the samples are at full scale");
  }
  if (file_rate < rate) {
    remark("recorded at ", file_rate, " samples per second: it has nothing above ", file_rate / 2,
           " Hz");
  }
  return remarks;
}

}  // namespace linnet
