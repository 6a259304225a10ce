// The input features of speech models: log energies in mel-scale bands every 10 ms, as Kaldi
// computes them.
//
//   Filterbank bank({.rate = 16'000, .bins = 40});
//   std::vector<float> frames = bank.Compute(audio.samples);   // [Frames(samples), 40]
//   NormalizeFrames(frames, 40);                               // each band: mean 0, deviation 1
//
// A frame depends only on its own window of samples, so audio may be read in pieces of any length.
// The steps for each window x [N] of samples, multiplied by 32,768 as in 16-bit audio:
//   1. Subtract the mean.
//   2. Pre-emphasis: x_i -= 0.97 x_{i-1}, where x_{-1} = x_0.
//   3. Multiply by Kaldi's Povey window, (0.5 - 0.5 cos(2 pi i / (N - 1)))^0.85.
//   4. Pad with zeros to a power of two, and take the power spectrum.
//   5. Sum over triangular bands of equal width on the mel scale, 1127 ln(1 + f / 700).
//   6. Take the logarithm of max(sum, 2^-23).
#ifndef LINNET_TASKS_SPEECH_FILTERBANK_H_
#define LINNET_TASKS_SPEECH_FILTERBANK_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace linnet {

struct FilterbankOptions {
  int rate = 16'000;  // samples per second
  int bins = 40;      // number of mel bands
  double window_ms = 25, step_ms = 10;
  double preemphasis = 0.97;
  double low = 20, high = 0;  // Hz; if high <= 0, it is added to half of the rate
};

class Filterbank {
 public:
  // Throws InputError on invalid sizes, such as no bins or bands too narrow for the window.
  explicit Filterbank(const FilterbankOptions& options = {});
  ~Filterbank();

  const FilterbankOptions& options() const { return options_; }
  size_t window() const { return window_.size(); }  // samples in a frame's window
  size_t step() const { return step_; }             // samples from one frame to the next
  // The number of whole windows in this many samples.
  size_t Frames(size_t samples) const;

  // Computes all frames of `samples`: [Frames(samples.size()), bins].
  std::vector<float> Compute(std::span<const float> samples);
  // One frame: samples [window()] -> frame [bins].
  void Frame(std::span<const float> samples, std::span<float> frame);

 private:
  struct Transform;  // FFT and its buffers
  struct Band {
    size_t first;  // index of the spectrum's element that weights[0] multiplies
    std::vector<float> weights;
  };
  FilterbankOptions options_;
  size_t step_ = 0;
  std::vector<float> window_;
  std::vector<Band> bands_;
  std::unique_ptr<Transform> transform_;
};

// Normalizes frames [N, bins] in place: subtracts each band's mean over the frames, and divides by
// the band's standard deviation, but by at least 1e-5.
void NormalizeFrames(std::span<float> frames, size_t bins);

// The same with a given mean and deviation [bins].
void NormalizeFrames(std::span<float> frames, std::span<const float> mean,
                     std::span<const float> deviation);

// Writes the frames first .. first + stack - 1 of `frames` [N, bins] to `to` [stack * bins]. Frames
// out of range are zeros; `first` may be negative.
void StackFrames(std::span<const float> frames, size_t bins, ptrdiff_t first, size_t stack,
                 std::span<float> to);

}  // namespace linnet

#endif  // LINNET_TASKS_SPEECH_FILTERBANK_H_
