// Reference for mixture_of_logistics.h: plain double precision.
#ifndef LINNET_KERNELS_MIXTURE_OF_LOGISTICS_REF_H_
#define LINNET_KERNELS_MIXTURE_OF_LOGISTICS_REF_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace linnet::kernels {

// -ln P(byte) for one row [logits, means, log-scales].
inline double MixtureOfLogisticsRef(const std::vector<double>& outputs, uint8_t byte) {
  const size_t mixtures = outputs.size() / 3;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  double total = 0, probability = 0;
  for (size_t i = 0; i < mixtures; ++i) {
    const double mean = outputs[mixtures + i];
    const double scale = std::exp(std::max(outputs[2 * mixtures + i], -7.0));
    const double x = byte / 127.5 - 1 - mean, half = 1.0 / 255;
    // P_i is a - b, computed from the nearer tail: the difference of two sigmoids near 1 would lose
    // all precision.
    const double sign = x > 0 ? -1 : 1;
    const double a = byte == (x > 0 ? 0 : 255) ? 1 : sigmoid((sign * x + half) / scale);
    const double b = byte == (x > 0 ? 255 : 0) ? 0 : sigmoid((sign * x - half) / scale);
    const double weight = std::exp(outputs[i]);
    total += weight;
    probability += weight * (a - b);
  }
  return -std::log(probability / total);
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MIXTURE_OF_LOGISTICS_REF_H_
