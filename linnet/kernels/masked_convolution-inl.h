// The Highway body of masked_convolution.h, compiled once for each instruction set: the gradient of
// the weights, a sum of outer products.
//
// A tile is a few outputs by two vectors of inputs. Its sums stay in registers over the pixels of
// an image row, whose inputs and gradients stay in the first-level cache.
#if defined(LINNET_KERNELS_MASKED_CONVOLUTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_MASKED_CONVOLUTION_INL_H_
#undef LINNET_KERNELS_MASKED_CONVOLUTION_INL_H_
#else
#define LINNET_KERNELS_MASKED_CONVOLUTION_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "hwy/highway.h"
#include "linnet/kernels/vector-inl.h"

#ifndef LINNET_KERNELS_WEIGHT_GRADIENT_ARGS_
#define LINNET_KERNELS_WEIGHT_GRADIENT_ARGS_
namespace linnet::kernels {

// to[o, i] += sum over p < positions of grad_out[p, o] x[p, i]. The rows of x may overlap.
struct WeightGradientArgs {
  size_t positions, outputs, inputs;
  const float* grad_out;
  size_t grad_out_stride;
  const float* x;
  size_t x_stride;
  float* to;
  size_t to_stride;
};

}  // namespace linnet::kernels
#endif  // LINNET_KERNELS_WEIGHT_GRADIENT_ARGS_

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Chosen so that the sums of a tile take 24 of 32 registers with AVX-512, and 12 of 16 with AVX2.
inline constexpr size_t kTileOutputs = HWY_TARGET == HWY_AVX3     ? 12
                                       : HWY_TARGET == HWY_SCALAR ? 1
                                       : HWY_TARGET == HWY_WASM   ? 3
                                                                  : 6;

// Number of tiles, of nearly equal heights, for that many outputs.
size_t TilesOfOutputs(size_t outputs) { return (outputs + kTileOutputs - 1) / kTileOutputs; }

// The tile at output 0 and input 0 of `args`. `used`: inputs in its last vector.
template <size_t kOutputs, size_t kVectors>
HWY_INLINE void WeightGradientTile(const WeightGradientArgs& args, size_t used) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  Vec sum[kOutputs * kVectors];
  Unrolled<kOutputs * kVectors>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  const float* HWY_RESTRICT x = args.x;
  const float* HWY_RESTRICT grad = args.grad_out;
  const auto walk = [&](auto load) HWY_ATTR {
    for (size_t p = 0; p < args.positions; ++p) {
      Vec in[kVectors];
      Unrolled<kVectors>([&](auto v) HWY_ATTR { in[v] = load(x + v * lanes, v); });
      Unrolled<kOutputs>([&](auto o) HWY_ATTR {
        const Vec g = hn::Set(d, grad[o]);
        Unrolled<kVectors>([&](auto v) HWY_ATTR {
          sum[o * kVectors + v] = hn::MulAdd(g, in[v], sum[o * kVectors + v]);
        });
      });
      x += args.x_stride;
      grad += args.grad_out_stride;
    }
  };
  if (used == lanes) {
    walk([&](const float* from, auto) HWY_ATTR { return hn::LoadU(d, from); });
  } else {
    walk([&](const float* from, auto v)
             HWY_ATTR { return v + 1 == kVectors ? LoadN(from, used) : hn::LoadU(d, from); });
  }
  Unrolled<kOutputs>([&](auto o) HWY_ATTR {
    float* to = args.to + o * args.to_stride;
    Unrolled<kVectors>([&](auto v) HWY_ATTR {
      const size_t count = v + 1 == kVectors ? used : lanes;
      StoreN(hn::Add(LoadN(to + v * lanes, count), sum[o * kVectors + v]), to + v * lanes, count);
    });
  });
}

template <size_t kOutputs>
void WeightGradientOutputs(const WeightGradientArgs& args, size_t inputs) {
  const size_t lanes = hn::Lanes(F32());
  if (inputs > lanes) {
    WeightGradientTile<kOutputs, 2>(args, inputs - lanes);
  } else {
    WeightGradientTile<kOutputs, 1>(args, inputs);
  }
}

template <size_t... kIndex>
constexpr std::array<void (*)(const WeightGradientArgs&, size_t), sizeof...(kIndex)>
WeightGradientTable(std::index_sequence<kIndex...>) {
  return {WeightGradientOutputs<kIndex + 1>...};
}

// Adds the gradients of tiles [begin, end) of `tiles`, over all inputs.
void WeightGradientTiles(const WeightGradientArgs& all, size_t begin, size_t end, size_t tiles) {
  static constexpr auto kTable = WeightGradientTable(std::make_index_sequence<kTileOutputs>());
  const size_t width = 2 * hn::Lanes(F32());
  for (size_t i = 0; i < all.inputs; i += width) {
    for (size_t tile = begin; tile < end; ++tile) {
      const size_t o = all.outputs * tile / tiles;
      WeightGradientArgs args = all;
      args.x += i;
      args.grad_out += o;
      args.to += o * all.to_stride + i;
      kTable[all.outputs * (tile + 1) / tiles - o - 1](args, std::min(width, all.inputs - i));
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_MASKED_CONVOLUTION_INL_H_
