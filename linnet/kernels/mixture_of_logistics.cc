#include "linnet/kernels/mixture_of_logistics.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/mixture_of_logistics.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/mixture_of_logistics-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(MixtureRows);

void MixtureOfLogistics(size_t rows, size_t mixtures, const float* outputs, const uint8_t* bytes,
                        const MixtureOfLogisticsResult& result, ParallelFor parallel_for) {
  assert(mixtures >= 1 && mixtures <= kMaxMixtures && result.nats != nullptr);
  parallel_for(rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(MixtureRows)(begin, end, mixtures, outputs, bytes, result);
  });
}

// Not vectorized: a call draws only one byte, for one position of one image. Double precision gives
// the same result on every target.
size_t ChooseComponent(size_t mixtures, const float* logits, float u, double temperature) {
  const double max = *std::max_element(logits, logits + mixtures);
  const auto weight = [&](size_t i) { return std::exp((logits[i] - max) / temperature); };
  double left = 0;
  for (size_t i = 0; i < mixtures; ++i) left += weight(i);
  left *= u;
  size_t chosen = 0;
  for (; chosen + 1 < mixtures; ++chosen) {
    left -= weight(chosen);
    if (left < 0) break;
  }
  return chosen;
}

uint8_t DrawLogistic(double mean, double log_scale, double u,
                     const LogisticsSamplerOptions& options) {
  const double scale = options.reference_scale
                           ? (log_scale > 0 ? log_scale : std::expm1(log_scale)) + 1.0001
                           : std::exp(std::max<double>(log_scale, kMinLogScale));
  const double x = mean + options.temperature * scale * (std::log(u) - std::log1p(-u));
  const double byte = std::floor((x + 1) * 127.5 + 0.5);
  // A NaN, from a broken model, becomes 0.
  return byte > 0 ? static_cast<uint8_t>(std::min(byte, 255.0)) : uint8_t{0};
}

uint8_t SampleMixtureOfLogistics(size_t mixtures, const float* outputs, float u_mixture,
                                 float u_value, const LogisticsSamplerOptions& options) {
  const size_t chosen = ChooseComponent(mixtures, outputs, u_mixture, options.temperature);
  return DrawLogistic(outputs[mixtures + chosen], outputs[2 * mixtures + chosen], u_value, options);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
