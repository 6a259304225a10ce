// What a speech model hears: the logarithm of the energy in bands of the mel scale, every 10 ms, as
// Kaldi computes it.
//
//   Filterbank bank({.rate = 16'000, .bins = 40});
//   std::vector<float> frames = bank.Compute(audio.samples);   // [Frames(samples), 40]
//   NormaliseFrames(frames, 40);                               // mean 0, deviation 1, of each band
//
// A frame sees its own window of samples and nothing else, so that sound may be read in pieces of any
// length. Of each window x [N]: its mean is taken off; x_i -= 0.97 x_{i-1} (x_{-1} = x_0); times the
// window (0.5 - 0.5 cos(2 pi i / (N - 1)))^0.85; the power spectrum of that, with zeros behind it up to
// a power of two; triangles of equal width on the scale 1127 ln(1 + f / 700); the logarithm of their
// sums, at least that of 2^-23. Samples count in units of 16-bit steps (times 32,768).
#ifndef LINNET_TASKS_SPEECH_FILTERBANK_H_
#define LINNET_TASKS_SPEECH_FILTERBANK_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace linnet {

struct FilterbankOptions {
  int rate = 16'000;  // samples a second
  int bins = 40;
  double window_ms = 25, step_ms = 10;
  double preemphasis = 0.97;
  double low = 20, high = 0;  // Hz; a high of 0 or below counts from half of the rate
};

class Filterbank {
 public:
  // Throws InputError on sizes that make no bank: no bins, bands too narrow for the window.
  explicit Filterbank(const FilterbankOptions& options = {});
  ~Filterbank();

  const FilterbankOptions& options() const { return options_; }
  size_t window() const { return window_.size(); }  // samples that a frame sees
  size_t step() const { return step_; }             // samples from one frame to the next
  // Whole windows in so many samples.
  size_t Frames(size_t samples) const;

  // [Frames(samples.size()), bins].
  std::vector<float> Compute(std::span<const float> samples);
  // One frame: samples [window()] -> frame [bins].
  void Frame(std::span<const float> samples, std::span<float> frame);

 private:
  struct Transform;
  struct Band {
    size_t first;                // of the spectrum
    std::vector<float> weights;  // from there on
  };
  FilterbankOptions options_;
  size_t step_ = 0;
  std::vector<float> window_;
  std::vector<Band> bands_;
  std::unique_ptr<Transform> transform_;
};

// frames [N, bins]: each band's mean over the frames is taken off, and it is divided by its deviation,
// at least 1e-5.
void NormaliseFrames(std::span<float> frames, size_t bins);

// The same with a mean and a deviation [bins] that come from elsewhere.
void NormaliseFrames(std::span<float> frames, std::span<const float> mean,
                     std::span<const float> deviation);

// `stack` frames one behind the other, from frame `first` of frames [N, bins] on, to [stack * bins];
// zeros for those that are not there (first may be negative).
void StackFrames(std::span<const float> frames, size_t bins, ptrdiff_t first, size_t stack,
                 std::span<float> to);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_FILTERBANK_H_
