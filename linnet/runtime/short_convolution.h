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
#include "linnet/kernels/depthwise.h"

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
    const size_t oldest = taps_ > 0 ? taps_ - 1 : 0;  // how far back a row reads
    for (size_t t = 0; t < rows.length; ++t) {
      const size_t before = oldest - std::min(oldest, t);  // the first taps read past positions
      for (size_t p = 0; p < parts.size(); ++p) {
        const size_t first = parts[p].first, width = parts[p].width;
        float* out = to(p, t);
        const float* in = rows.in + (t + before - oldest) * rows.stride + first;
        if (taps_ == 0) {
          std::copy_n(in, width, out);
          continue;
        }
        const float* start = bias_.size() > 0 ? bias_.data() + head * channels_ + first : nullptr;
        const auto add = [&](size_t tap, size_t count, const float* x, size_t stride) {
          const float* weight = weight_.data() + (head * taps_ + tap) * channels_ + first;
          kernels::DepthwiseRow({.width = count,
                                 .channels = width,
                                 .x = x,
                                 .x_stride = stride,
                                 .weight = weight,
                                 .weight_stride = channels_,
                                 .start = start,
                                 .out = out});
          start = out;
        };
        if (before > 0 && rows.past) add(0, before, rows.past + t * channels_ + first, channels_);
        add(before, taps_ - before, in, rows.stride);
      }
    }
    // Updates the past inputs. In this order, no past row is overwritten before it is read.
    for (size_t w = 0; rows.past != nullptr && w < oldest; ++w) {
      const size_t t = rows.length + w;  // counted from the oldest past position
      std::copy_n(t < oldest ? rows.past + t * channels_ : rows.in + (t - oldest) * rows.stride,
                  channels_, rows.past + w * channels_);
    }
  }

 private:
  size_t taps_, channels_;
  AlignedBuffer<float> weight_, bias_;  // [heads, taps, channels], [heads, channels]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SHORT_CONVOLUTION_H_
