#include "linnet/data/audio.h"

#include <samplerate.h>
#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#include "linnet/base/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

constexpr double kLongest = 24 * 3600;  // seconds
constexpr int kHighestRate = 10'000'000, kMostChannels = 64;
constexpr double kLargestQuotient = 256;  // libsamplerate's

// libsndfile over bytes in memory.
struct Bytes {
  std::span<const std::byte> data;
  sf_count_t at = 0;

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
    throw InputError("sound of ", from, " samples a second cannot be resampled to ", to);
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
  if (const int error = src_simple(&data, SRC_SINC_MEDIUM_QUALITY, /*channels=*/1)) {
    throw RuntimeError("sound cannot be resampled: ", src_strerror(error));
  }
  resampled.resize(static_cast<size_t>(data.output_frames_gen));
  return resampled;
}

Audio ParseAudio(std::span<const std::byte> bytes, const std::string& label, int rate) {
  Bytes memory{bytes};
  SF_VIRTUAL_IO io = InMemory();
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, Close> file(sf_open_virtual(&io, SFM_READ, &info, &memory));
  if (!file) {
    throw InputError(label, ": no sound that can be read: ", sf_strerror(nullptr),
                     " WAV, FLAC and NIST SPHERE without compression are");
  }
  if (info.samplerate < 1 || info.samplerate > kHighestRate || info.channels < 1 ||
      info.channels > kMostChannels) {
    throw InputError(label, ": ", info.channels, " channels of ", info.samplerate,
                     " samples a second are no sound");
  }
  if (info.frames <= 0) throw InputError(label, ": holds no sound");
  if (static_cast<double>(info.frames) > kLongest * info.samplerate) {
    throw InputError(label, ": is longer than a day");
  }
  // Piece by piece: what a header says of its length is not trusted with memory.
  constexpr sf_count_t kPiece = 1 << 16;
  const auto channels = static_cast<size_t>(info.channels);
  std::vector<float> piece(static_cast<size_t>(kPiece) * channels), mono;
  while (const sf_count_t frames = sf_readf_float(file.get(), piece.data(), kPiece)) {
    for (size_t i = 0; i < static_cast<size_t>(frames); ++i) {
      float sum = 0;
      for (size_t c = 0; c < channels; ++c) sum += piece[i * channels + c];
      if (!std::isfinite(sum)) throw InputError(label, ": holds samples that are no numbers");
      mono.push_back(sum / static_cast<float>(channels));
    }
  }
  if (mono.size() != static_cast<size_t>(info.frames)) {
    throw InputError(label, ": ends after ", mono.size(), " of ", info.frames, " samples");
  }
  if (info.samplerate == rate) return {std::move(mono), rate};
  return {Resample(mono, info.samplerate, rate), rate};
}

Audio ReadAudio(const std::string& path, int rate) {
  const MappedFile file(path);
  return ParseAudio(file.bytes(), path, rate);
}

}  // namespace linnet
