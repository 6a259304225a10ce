#include "linnet/nn/rotary.h"

#include "linnet/model/gated.h"

namespace linnet::nn {

using torch::Tensor;

void Rotate(int64_t first, double base, Tensor& q, Tensor& k) {
  const int64_t dim = q.size(3), pairs = dim / 2, length = q.size(1);
  const Tensor angles = torch::empty({length, 1, pairs}, torch::kFloat64);
  for (int64_t i = 0; i < pairs; ++i) {
    angles.select(2, i) = (torch::arange(first, first + length, torch::kFloat64) *
                           RotaryFrequency(static_cast<int>(i), static_cast<int>(dim), base))
                              .unsqueeze(1);
  }
  const auto type = q.scalar_type();
  const bool narrow = type == torch::kBFloat16 || type == torch::kHalf;
  const auto wide = q.options().dtype(narrow ? torch::kFloat32 : type);
  const Tensor sine = angles.sin().to(wide), cosine = angles.cos().to(wide);
  for (Tensor* x : {&q, &k}) {
    const Tensor from = x->to(wide.dtype().toScalarType());
    const Tensor a = from.narrow(3, 0, pairs), b = from.narrow(3, pairs, pairs);
    *x = torch::cat({a * cosine - b * sine, b * cosine + a * sine,
                     from.narrow(3, 2 * pairs, dim - 2 * pairs)},
                    3)
             .to(type);
  }
}

}  // namespace linnet::nn
