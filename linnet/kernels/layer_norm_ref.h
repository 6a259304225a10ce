// Reference for layer_norm.h: plain double precision.
#ifndef LINNET_KERNELS_LAYER_NORM_REF_H_
#define LINNET_KERNELS_LAYER_NORM_REF_H_

#include <cmath>
#include <cstddef>
#include <vector>

namespace linnet::kernels {

// Normalizes one row. Its input t already includes all parts and the residual (LayerNormInput). A
// null bias means RMS norm.
inline std::vector<double> LayerNormRef(std::vector<double> t, const float* weight,
                                        const float* bias, double eps) {
  const double n = static_cast<double>(t.size());
  double mean = 0, variance = 0;
  for (double x : t) mean += bias == nullptr ? 0 : x / n;
  for (double x : t) variance += (x - mean) * (x - mean) / n;
  for (size_t i = 0; i < t.size(); ++i) {
    t[i] = (t[i] - mean) / std::sqrt(variance + eps) * weight[i] + (bias == nullptr ? 0 : bias[i]);
  }
  return t;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LAYER_NORM_REF_H_
