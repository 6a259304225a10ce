// The second factor of a product of low rank, in fp32 (private to linnet/runtime). The first factor
// is one of the mixer's projections.
//
//   SecondFactor factor(weight, bias, out);      // weight [out, rank]
//   factor.Apply(x, 0, out, y);                  // y = x W^T + b, x [rank]
#ifndef LINNET_RUNTIME_SECOND_FACTOR_H_
#define LINNET_RUNTIME_SECOND_FACTOR_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "linnet/base/aligned.h"

namespace linnet {

class SecondFactor {
 public:
  // weight [out, rank], or with `transposed` [rank, out]; empty if only sizes are needed. bias
  // empty: none.
  SecondFactor() = default;
  SecondFactor(std::span<const float> weight, std::span<const float> bias, size_t out,
               bool transposed = false)
      : out_(out), rank_(weight.size() / out), weight_(weight.size()), bias_(out) {
    for (size_t i = 0; i < weight.size(); ++i) {
      weight_[transposed ? i : i % rank_ * out + i / rank_] = weight[i];
    }
    std::fill(bias_.begin(), bias_.end(), 0.0f);
    std::copy(bias.begin(), bias.end(), bias_.begin());
  }

  size_t rank() const { return rank_; }

  // Outputs [begin, end).
  void Apply(const float* x, size_t begin, size_t end, float* y) const {
    std::copy(bias_.begin() + begin, bias_.begin() + end, y);
    for (size_t r = 0; r < rank_; ++r) {
      const float* weight = weight_.data() + r * out_;
      for (size_t o = begin; o < end; ++o) y[o - begin] += x[r] * weight[o];
    }
  }

 private:
  size_t out_ = 0, rank_ = 0;
  AlignedBuffer<float> weight_, bias_;  // weight_ [rank, out]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SECOND_FACTOR_H_
