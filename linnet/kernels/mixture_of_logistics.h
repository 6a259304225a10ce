// Discretized mixture of K logistics over bytes (Salimans et al., 2017): negative log-likelihood,
// gradient and sampler, for a head whose outputs are K mixture logits, K means and K log-scales.
//
//   std::vector<float> nats(rows);
//   MixtureOfLogistics(rows, /*mixtures=*/10, outputs, bytes, {.nats = nats.data()}, SerialFor);
//   uint8_t byte = SampleMixtureOfLogistics(10, outputs, rng.Uniform(), rng.Uniform(), {});
//
// A byte b stands for x = b / 127.5 - 1 and the bin x - 1/255 .. x + 1/255. The bin of byte 0
// extends to -infinity, and the bin of byte 255 to +infinity. With s = max(log-scale, -7):
//
//   P(b) = sum_i softmax(logits)_i P_i(b),   P_i(b) = sigmoid(plus) - sigmoid(minus)
//   plus = (x + 1/255 - mean) exp(-s),       minus = (x - 1/255 - mean) exp(-s)
//
// The difference is evaluated as (1 - exp(minus - plus)) sigmoid(plus) sigmoid(-minus), which loses
// no precision however far b lies in a tail. So the bin's probability never has to be approximated
// by a density, and the 256 probabilities sum to one.
#ifndef LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_
#define LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

inline constexpr size_t kMaxMixtures = 1024;
inline constexpr float kMinLogScale = -7.0f, kMaxLogScale = 80.0f;

struct MixtureOfLogisticsResult {
  float* nats = nullptr;  // [rows]: -ln P(byte)
  // Optional, [rows, 3 mixtures], dense: grad_scale times the gradient of each row's nats. The
  // gradient of a log-scale below its clamp is 0.
  float* grad = nullptr;
  float grad_scale = 1.0f;
};

// outputs [rows, 3 mixtures], dense; bytes [rows]; 1 <= mixtures <= kMaxMixtures. grad may alias
// outputs. A row's result does not depend on the other rows.
void MixtureOfLogistics(size_t rows, size_t mixtures, const float* outputs, const uint8_t* bytes,
                        const MixtureOfLogisticsResult& result, ParallelFor parallel_for);

struct LogisticsSamplerOptions {
  // > 0. Divides the mixture's logits and multiplies the logistics' scales. 1 draws from P above;
  // toward 0 the sample approaches the most likely component's mean.
  float temperature = 1.0f;
  // Samples like fast-transformers: the scale is elu(log-scale) + 1.0001 instead of exp(log-scale).
  bool reference_scale = false;
};

// The component that u in (0, 1) selects. logits [mixtures].
size_t ChooseComponent(size_t mixtures, const float* logits, float u, double temperature);
// The byte at quantile u in (0, 1) of a logistic.
uint8_t DrawLogistic(double mean, double log_scale, double u,
                     const LogisticsSamplerOptions& options);

// The byte selected by two independent uniform numbers in (0, 1): u_mixture chooses the component,
// u_value the quantile in it. outputs [3 mixtures].
uint8_t SampleMixtureOfLogistics(size_t mixtures, const float* outputs, float u_mixture,
                                 float u_value, const LogisticsSamplerOptions& options);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MIXTURE_OF_LOGISTICS_H_
