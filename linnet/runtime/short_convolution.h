// The short causal convolution of a mixer's projected columns (private to linnet/runtime). It is
// depthwise, over the last `taps` positions; the state keeps the inputs at earlier positions.
//
//   ShortConvolution convolution(heads, taps, channels, /*bias=*/false);
//   convolution.weight(head, tap, channel) = ...;
//   convolution.Run(head, {.in = rows, .stride = width, .length = length, .past = state}, parts,
//                   [&](size_t part, size_t t) { return destination; });
//
// y_t[c] = bias[c] + sum over i < taps of weight[i][c] x_{t-taps+1+i}[c]; taps = 0: y_t = x_t.
#ifndef LINNET_RUNTIME_SHORT_CONVOLUTION_H_
#define LINNET_RUNTIME_SHORT_CONVOLUTION_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "linnet/base/aligned.h"

namespace linnet {

class ShortConvolution {
 public:
  ShortConvolution(size_t heads, size_t taps, size_t channels, bool bias)
      : taps_(taps), channels_(channels), weight_(heads * taps * channels) {
    if (bias && taps > 0) bias_ = AlignedBuffer<float>(heads * channels);
  }

  size_t taps() const { return taps_; }
  float& weight(size_t head, size_t tap, size_t channel) {
    return weight_[(head * taps_ + tap) * channels_ + channel];
  }
  float& bias(size_t head, size_t channel) { return bias_[head * channels_ + channel]; }

  // Floats of a head's inputs at the last taps - 1 positions, oldest first.
  size_t PastFloats() const { return taps_ > 0 ? (taps_ - 1) * channels_ : 0; }

  // Consecutive channels with a destination of their own.
  struct Part {
    size_t first, width;
  };
  struct Rows {
    const float* in;  // [length, channels], rows `stride` apart
    size_t stride, length;
    float* past;  // [PastFloats()], read and updated; null: zeros, not updated
  };
  // Convolves the rows, and writes part p of row t to the address to(p, t).
  template <class To>
  void Run(size_t head, const Rows& rows, std::span<const Part> parts, const To& to) const {
    // The inputs at row t, or if t < 0 at a past position; null: zeros.
    const auto input = [&](ptrdiff_t t) -> const float* {
      if (t >= 0) return rows.in + static_cast<size_t>(t) * rows.stride;
      if (rows.past == nullptr) return nullptr;
      return rows.past + static_cast<size_t>(t + static_cast<ptrdiff_t>(taps_) - 1) * channels_;
    };
    const auto oldest = static_cast<ptrdiff_t>(taps_) - 1;  // how far back a row reads
    for (size_t row = 0; row < rows.length; ++row) {
      const auto t = static_cast<ptrdiff_t>(row);
      for (size_t p = 0; p < parts.size(); ++p) {
        const Part& part = parts[p];
        float* out = to(p, row);
        if (taps_ == 0) {
          std::copy_n(input(t) + part.first, part.width, out);
          continue;
        }
        if (bias_.size() > 0) {
          std::copy_n(bias_.data() + head * channels_ + part.first, part.width, out);
        } else {
          std::fill_n(out, part.width, 0.0f);
        }
        for (size_t w = 0; w < taps_; ++w) {
          const float* x = input(t - oldest + static_cast<ptrdiff_t>(w));
          if (x == nullptr) continue;
          const float* weight = weight_.data() + (head * taps_ + w) * channels_ + part.first;
          for (size_t c = 0; c < part.width; ++c) out[c] += weight[c] * x[part.first + c];
        }
      }
    }
    // Updates the past inputs. In this order, no past row is overwritten before it is read.
    for (size_t w = 0; rows.past != nullptr && w + 1 < taps_; ++w) {
      const auto t = static_cast<ptrdiff_t>(rows.length + w) - oldest;
      std::copy_n(input(t), channels_, rows.past + w * channels_);
    }
  }

 private:
  size_t taps_, channels_;
  AlignedBuffer<float> weight_, bias_;  // [heads, taps, channels], [heads, channels]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SHORT_CONVOLUTION_H_
