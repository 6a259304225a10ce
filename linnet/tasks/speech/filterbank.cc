#include "linnet/tasks/speech/filterbank.h"

#include <kissfft/kissfft.hh>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "linnet/error.h"

namespace linnet {
namespace {

constexpr float kSampleScale = 32768;       // scales samples to the range of 16-bit audio
constexpr float kLeast = 1.0f / (1 << 23);  // lower bound of a band's energy

double Mel(double hertz) { return 1127 * std::log(1 + hertz / 700); }

}  // namespace

// A transform of `size` real samples, computed as one of size / 2 complex ones.
struct Filterbank::Transform {
  explicit Transform(size_t size) : plan(size / 2, /*inverse=*/false), in(size), out(size / 2) {}

  kissfft<float> plan;
  std::vector<float> in;
  // The frequencies below half of the rate; out[0].imag() holds the one at half of the rate, which
  // no band reads.
  std::vector<std::complex<float>> out;
};

Filterbank::Filterbank(const FilterbankOptions& options) : options_(options) {
  const auto require = [](bool good, const auto&... message) {
    if (!good) throw InputError("a filterbank ", message...);
  };
  const double half = options.rate / 2.0;
  const double high = options.high > 0 ? options.high : half + options.high;
  require(options.rate >= 100 && options.rate <= 1'000'000, "of ", options.rate,
          " samples per second; it must be between 100 and 1,000,000");
  require(options.bins >= 1 && options.bins <= 1024, "of ", options.bins,
          " bands; the number must be between 1 and 1024");
  require(options.low >= 0 && options.low < high && high <= half, "from ", options.low, " to ",
          high, " Hz; the limits must be in order, and at most half of the rate, ", half);
  const auto samples = [&](double ms) { return static_cast<int64_t>(options.rate * ms / 1000); };
  require(options.window_ms <= 1000 && samples(options.window_ms) >= 2 && options.step_ms <= 1000 &&
              samples(options.step_ms) >= 1,
          "with windows of ", options.window_ms, " ms every ", options.step_ms,
          " ms; windows must have at least two samples, steps at least one, both at most a second");
  require(options.preemphasis >= 0 && options.preemphasis <= 1, "with a pre-emphasis of ",
          options.preemphasis, "; it must be between 0 and 1");

  const auto length = static_cast<size_t>(samples(options.window_ms));
  step_ = static_cast<size_t>(samples(options.step_ms));
  for (size_t i = 0; i < length; ++i) {
    const double turn =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length - 1);
    window_.push_back(static_cast<float>(std::pow(0.5 - 0.5 * std::cos(turn), 0.85)));
  }
  size_t size = 1;
  while (size < length) size *= 2;
  transform_ = std::make_unique<Transform>(size);

  const double lowest = Mel(options.low), width = (Mel(high) - lowest) / (options.bins + 1);
  for (int b = 0; b < options.bins; ++b) {
    const double left = lowest + b * width;
    Band band{0, {}};
    for (size_t i = 0; i < size / 2; ++i) {
      const double mel = Mel(static_cast<double>(i) * options.rate / static_cast<double>(size));
      const double weight = std::min(mel - left, left + 2 * width - mel) / width;
      if (weight <= 0) continue;
      if (band.weights.empty()) band.first = i;
      band.weights.push_back(static_cast<float>(weight));
    }
    require(!band.weights.empty(), "of ", options.bins, " bands: number ", b,
            " is narrower than the resolution of windows of ", options.window_ms, " ms");
    bands_.push_back(std::move(band));
  }
}

Filterbank::~Filterbank() = default;

size_t Filterbank::Frames(size_t samples) const {
  return samples < window() ? 0 : (samples - window()) / step_ + 1;
}

void Filterbank::Frame(std::span<const float> samples, std::span<float> frame) {
  const size_t length = window();
  if (samples.size() != length || frame.size() != bands_.size()) {
    throw InputError("a frame needs ", length, " samples and room for ", bands_.size(), " bands");
  }
  double sum = 0;
  for (const float x : samples) sum += x;
  const float mean = static_cast<float>(sum / static_cast<double>(length));
  const auto emphasis = static_cast<float>(options_.preemphasis);
  std::vector<float>& in = transform_->in;
  for (size_t i = 0; i < length; ++i) {
    const float before = samples[i > 0 ? i - 1 : 0] - mean;
    in[i] = kSampleScale * window_[i] * ((samples[i] - mean) - emphasis * before);
  }
  std::fill(in.begin() + static_cast<ptrdiff_t>(length), in.end(), 0.0f);
  transform_->plan.transform_real(in.data(), transform_->out.data());
  transform_->out[0].imag(0);
  for (size_t b = 0; b < bands_.size(); ++b) {
    float energy = 0;
    for (size_t i = 0; i < bands_[b].weights.size(); ++i) {
      energy += bands_[b].weights[i] * std::norm(transform_->out[bands_[b].first + i]);
    }
    frame[b] = std::log(std::max(energy, kLeast));
  }
}

std::vector<float> Filterbank::Compute(std::span<const float> samples) {
  const size_t count = Frames(samples.size()), bins = bands_.size();
  std::vector<float> frames(count * bins);
  for (size_t i = 0; i < count; ++i) {
    Frame(samples.subspan(i * step_, window()), std::span(frames).subspan(i * bins, bins));
  }
  return frames;
}

void NormalizeFrames(std::span<float> frames, size_t bins) {
  const size_t count = frames.size() / bins;
  for (size_t b = 0; b < bins && count > 0; ++b) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) sum += frames[i * bins + b];
    const double mean = sum / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) {
      const double off = frames[i * bins + b] - mean;
      squares += off * off;
    }
    const double deviation = std::max(std::sqrt(squares / static_cast<double>(count)), 1e-5);
    for (size_t i = 0; i < count; ++i) {
      float& x = frames[i * bins + b];
      x = static_cast<float>((x - mean) / deviation);
    }
  }
}

void NormalizeFrames(std::span<float> frames, std::span<const float> mean,
                     std::span<const float> deviation) {
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i] = (frames[i] - mean[i % mean.size()]) / deviation[i % mean.size()];
  }
}

void StackFrames(std::span<const float> frames, size_t bins, ptrdiff_t first, size_t stack,
                 std::span<float> to) {
  const auto count = static_cast<ptrdiff_t>(frames.size() / bins);
  for (size_t i = 0; i < stack; ++i) {
    const ptrdiff_t at = first + static_cast<ptrdiff_t>(i);
    const std::span<float> place = to.subspan(i * bins, bins);
    if (at < 0 || at >= count) {
      std::fill(place.begin(), place.end(), 0.0f);
    } else {
      const auto from = frames.subspan(static_cast<size_t>(at) * bins, bins);
      std::copy(from.begin(), from.end(), place.begin());
    }
  }
}

}  // namespace linnet
