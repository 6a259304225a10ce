// The second factor of a low-rank product, in fp32 (private to linnet/runtime). The first factor is
// one of the mixer's projections.
//
//   SecondFactor factor(weight, bias, heads, width);        // weight [heads * width, rank]
//   factor.Apply(rows, x, x_stride, heads, y, y_stride);    // y = x W^T + b, for these heads
#ifndef LINNET_RUNTIME_SECOND_FACTOR_H_
#define LINNET_RUNTIME_SECOND_FACTOR_H_

#include <cstddef>
#include <span>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/linear.h"
#include "linnet/runtime/mixer.h"

namespace linnet {

class SecondFactor {
 public:
  SecondFactor() = default;
  // weight [heads * width, rank], or with `transposed` [rank, heads * width]; empty if only sizes
  // are needed. bias [heads * width]; empty: none.
  SecondFactor(std::span<const float> weight, std::span<const float> bias, size_t heads,
               size_t width, bool transposed = false)
      : rank_(weight.size() / (heads * width)), width_(width) {
    if (weight.empty()) return;
    head_floats_ = kernels::PackedLinearSize(rank_, width);
    packed_ = AlignedBuffer<float>(heads * head_floats_);
    std::vector<float> rows(width * rank_);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < rows.size(); ++i) {
        const size_t out = h * width + i / rank_, r = i % rank_;
        rows[i] = weight[transposed ? r * heads * width + out : out * rank_ + r];
      }
      kernels::PackLinear(rank_, width, rows.data(), rank_,
                          bias.empty() ? nullptr : bias.data() + h * width,
                          packed_.data() + h * head_floats_);
    }
  }

  size_t rank() const { return rank_; }

  // x [rows, rank], y [rows, (heads.end - heads.begin) * width]; strides in floats.
  void Apply(size_t rows, const float* x, size_t x_stride, const kernels::HeadRange& heads,
             float* y, size_t y_stride) const {
    for (size_t h = heads.begin; h < heads.end; ++h, y += width_) {
      kernels::Linear(rows, rank_, width_, x, x_stride, packed_.data() + h * head_floats_,
                      kernels::LinearMode::kOverwrite, y, y_stride);
    }
  }

 private:
  size_t rank_ = 0, width_ = 0, head_floats_ = 0;
  AlignedBuffer<float> packed_;  // [heads, head_floats_]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SECOND_FACTOR_H_
