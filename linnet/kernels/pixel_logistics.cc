#include "linnet/kernels/pixel_logistics.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/pixel_logistics.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/pixel_logistics-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(PixelRows);

void PixelLogistics(size_t rows, size_t mixtures, const float* outputs, const uint8_t* rgb,
                    const MixtureOfLogisticsResult& result, ParallelFor parallel_for) {
  assert(mixtures >= 1 && mixtures <= kMaxMixtures && result.nats != nullptr);
  parallel_for(rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(PixelRows)(begin, end, mixtures, outputs, rgb, result);
  });
}

// The rest is in double precision and not vectorized: a position of an image has one pixel, whose
// arithmetic is small beside that of the network.
namespace {

double Value(uint8_t byte) { return byte / 127.5 - 1; }

// The means of component i, for given values of the colors before.
double Mean(size_t mixtures, const float* outputs, size_t i, size_t color, const uint8_t* rgb) {
  const auto coefficient = [&](size_t c) {
    return std::tanh(double{outputs[(7 + c) * mixtures + i]});
  };
  const double mean = outputs[(1 + color) * mixtures + i];
  if (color == 0) return mean;
  if (color == 1) return mean + coefficient(0) * Value(rgb[0]);
  return mean + coefficient(1) * Value(rgb[0]) + coefficient(2) * Value(rgb[1]);
}

double LogScale(size_t mixtures, const float* outputs, size_t i, size_t color) {
  return outputs[(4 + color) * mixtures + i];
}

// ln sigmoid(x)
double LogSigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// ln P_i(byte): the three factors of mixture_of_logistics.h.
double LogProbability(uint8_t byte, double mean, double log_scale) {
  const double inverse = std::exp(-std::clamp<double>(log_scale, kMinLogScale, kMaxLogScale));
  const double center = Value(byte) - mean;
  const double plus = (center + 1.0 / 255) * inverse, minus = (center - 1.0 / 255) * inverse;
  double log = 0;
  if (byte != 255) log += LogSigmoid(plus);
  if (byte != 0) log += LogSigmoid(-minus);
  if (byte != 0 && byte != 255) log += std::log(-std::expm1(-2.0 / 255 * inverse));
  return log;
}

double LogSum(const double* logs, size_t count) {
  double max = -HUGE_VAL;
  for (size_t i = 0; i < count; ++i) max = std::max(max, logs[i]);
  if (!std::isfinite(max)) return max;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(logs[i] - max);
  return max + std::log(sum);
}

}  // namespace

void PixelNats(size_t mixtures, const float* outputs, const uint8_t* rgb, float* nats) {
  double logs[kMaxMixtures];
  std::copy_n(outputs, mixtures, logs);
  double before = LogSum(logs, mixtures);
  for (size_t color = 0; color < 3; ++color) {
    for (size_t i = 0; i < mixtures; ++i) {
      logs[i] += LogProbability(rgb[color], Mean(mixtures, outputs, i, color, rgb),
                                LogScale(mixtures, outputs, i, color));
    }
    const double after = LogSum(logs, mixtures);
    nats[color] = static_cast<float>(before - after);
    before = after;
  }
}

void SamplePixel(size_t mixtures, const float* outputs, const std::array<float, 4>& uniform,
                 const LogisticsSamplerOptions& options, uint8_t* rgb) {
  const size_t chosen = ChooseComponent(mixtures, outputs, uniform[0], options.temperature);
  for (size_t color = 0; color < 3; ++color) {
    rgb[color] =
        DrawLogistic(Mean(mixtures, outputs, chosen, color, rgb),
                     LogScale(mixtures, outputs, chosen, color), uniform[1 + color], options);
  }
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
