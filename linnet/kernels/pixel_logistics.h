// Mixture of K logistics over the three colors of a pixel, as in PixelCNN++ (Salimans et al.,
// 2017): negative log-likelihood, gradient and sampler. The mean of green depends on red, that of
// blue on both.
//
//   PixelLogistics(pixels, /*mixtures=*/10, outputs, rgb, {.nats = nats.data()}, SerialFor);
//   float nats[3];
//   PixelNats(/*mixtures=*/10, outputs, rgb, nats);                     // of each color
//   SamplePixel(10, outputs, {rng.Uniform(), ...}, {}, rgb);
//
// The outputs [10 K] are K mixture logits, then three blocks [3, K], each ordered by color: means
// m, log-scales s, and coefficients c. With bytes r, g, b, which stand for x = byte / 127.5 - 1:
//
//   P(r, g, b) = sum_i softmax(logits)_i P_i(r) P_i(g) P_i(b)
//
// where P_i(byte) is that of mixture_of_logistics.h with log-scale s and mean m_red,
// m_green + tanh(c_0) x_r, m_blue + tanh(c_1) x_r + tanh(c_2) x_g.
#ifndef LINNET_KERNELS_PIXEL_LOGISTICS_H_
#define LINNET_KERNELS_PIXEL_LOGISTICS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/mixture_of_logistics.h"

namespace linnet::kernels {

// result.nats [rows]: -ln P(r, g, b); result.grad [rows, 10 mixtures], as for MixtureOfLogistics().
// outputs [rows, 10 mixtures] and rgb [rows, 3] are dense; 1 <= mixtures <= kMaxMixtures. In fp32;
// a row's result does not depend on the other rows.
void PixelLogistics(size_t rows, size_t mixtures, const float* outputs, const uint8_t* rgb,
                    const MixtureOfLogisticsResult& result, ParallelFor parallel_for);

// For one pixel, in double precision. nats [3]: -ln P(r), -ln P(g | r), -ln P(b | r, g). Their sum
// is -ln P(r, g, b). 1 <= mixtures <= kMaxMixtures.
void PixelNats(size_t mixtures, const float* outputs, const uint8_t* rgb, float* nats);

// The pixel selected by four independent uniform numbers in (0, 1): the first chooses the
// component, the others the quantiles of the colors in it.
void SamplePixel(size_t mixtures, const float* outputs, const std::array<float, 4>& uniform,
                 const LogisticsSamplerOptions& options, uint8_t* rgb);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_PIXEL_LOGISTICS_H_
