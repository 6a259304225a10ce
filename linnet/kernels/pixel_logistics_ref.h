// For tests: the mixture of logistics over pixels by its definition, in double precision.
#ifndef LINNET_KERNELS_PIXEL_LOGISTICS_REF_H_
#define LINNET_KERNELS_PIXEL_LOGISTICS_REF_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/mixture_of_logistics_ref.h"

namespace linnet::kernels {

// -ln P(r, g, b). outputs [10 mixtures], a container of numbers.
template <class Outputs>
double PixelNatsRef(size_t mixtures, const Outputs& outputs, const std::array<uint8_t, 3>& rgb) {
  const auto at = [&](size_t block, size_t i) { return double{outputs[block * mixtures + i]}; };
  const double r = rgb[0] / 127.5 - 1, g = rgb[1] / 127.5 - 1;
  double sum = 0, total = 0;
  for (size_t i = 0; i < mixtures; ++i) {
    const double means[] = {at(1, i), at(2, i) + std::tanh(at(7, i)) * r,
                            at(3, i) + std::tanh(at(8, i)) * r + std::tanh(at(9, i)) * g};
    double nats = 0;
    for (size_t color = 0; color < 3; ++color) {
      nats += MixtureOfLogisticsRef({0, means[color], at(4 + color, i)}, rgb[color]);
    }
    total += std::exp(at(0, i));
    sum += std::exp(at(0, i) - nats);
  }
  return -std::log(sum / total);
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_PIXEL_LOGISTICS_REF_H_
