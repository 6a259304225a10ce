// Bytes under a discretised mixture of K logistics (Salimans et al., 2017): density, gradient and
// sampler, for the head whose outputs are K mixture logits, K means and K log-scales.
//
//   std::vector<float> nats(rows);
//   MixtureOfLogistics(rows, /*mixtures=*/10, outputs, bytes, {.nats = nats.data()}, SerialFor);
//   uint8_t byte = SampleMixtureOfLogistics(10, outputs, rng.Uniform(), rng.Uniform(), {});
//
// A byte b stands for x = b / 127.5 - 1 and the bin x - 1/255 .. x + 1/255; the bins of 0 and 255
// reach to infinity. With s = max(log-scale, -7), plus and minus = (x +- 1/255 - mean) exp(-s):
//
//   P(b) = sum_i softmax(logits)_i P_i(b),   P_i(b) = sigmoid(plus) - sigmoid(minus)
//
// The difference is evaluated as (1 - exp(minus - plus)) sigmoid(plus) sigmoid(-minus), which loses
// nothing however far b lies in a tail, so there is no case in which a density must stand in for
// the bin's probability, and the 256 probabilities sum to one.
#ifndef LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_
#define LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

inline constexpr size_t kMaxMixtures = 1024;
inline constexpr float kMinLogScale = -7.0f;

struct MixtureOfLogisticsResult {
  float* nats = nullptr;  // [rows]: -ln P(byte)
  // Optional, [rows, 3 mixtures], dense: grad_scale times the gradient of each row's nats. Where a
  // log-scale lies below its clamp its gradient is 0.
  float* grad = nullptr;
  float grad_scale = 1.0f;
};

// outputs [rows, 3 mixtures], dense; bytes [rows]; 1 <= mixtures <= kMaxMixtures. grad may be the
// array of outputs itself. A row's result does not depend on the other rows.
void MixtureOfLogistics(size_t rows, size_t mixtures, const float* outputs, const uint8_t* bytes,
                        const MixtureOfLogisticsResult& result, ParallelFor parallel_for);

struct LogisticsSamplerOptions {
  // Divides the mixture's logits and multiplies the logistics' scales; 1 draws from the density
  // above, towards 0 from the most likely component's mean. > 0.
  float temperature = 1.0f;
  // The reference library's sampler: elu(log-scale) + 1.0001 for the scale, not exp.
  bool reference_scale = false;
};

// The byte that two independent uniform numbers in (0, 1) select: u_mixture chooses the component,
// u_value the place in it. outputs [3 mixtures].
uint8_t SampleMixtureOfLogistics(size_t mixtures, const float* outputs, float u_mixture,
                                 float u_value, const LogisticsSamplerOptions& options);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_
