// The Highway body of depthwise.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_DEPTHWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_DEPTHWISE_INL_H_
#undef LINNET_KERNELS_DEPTHWISE_INL_H_
#else
#define LINNET_KERNELS_DEPTHWISE_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "linnet/kernels/depthwise.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Number of output positions (not filter taps) that are computed together: their sums stay in
// registers, and each weight is read once for all of them.
inline constexpr size_t kTaps = 8;

// Length of sequence n without its padding.
HWY_INLINE size_t Counted(const DepthwiseShape& shape, const int64_t* lengths, size_t n) {
  return lengths == nullptr ? shape.length : static_cast<size_t>(lengths[n]);
}

// to[t] = start + sum over j < width of weight[j] from[t + j - before], for first <= t < length and
// one vector of channels (`used` lanes). Positions of `from` outside 0 .. length - 1 count as
// zeros. Rows are `stride` floats apart. With kReversed, the order of the weights is reversed.
template <bool kReversed>
HWY_INLINE void Convolve(const float* from, const float* weight, Vec start, size_t first,
                         size_t length, size_t width, size_t before, size_t stride, size_t used,
                         float* to) {
  for (size_t t0 = first; t0 < length; t0 += kTaps) {
    const size_t rows = std::min(kTaps, length - t0);
    Vec sums[kTaps];
    Unrolled<kTaps>([&](auto i) HWY_ATTR { sums[i] = start; });
    for (size_t j = 0; j < width; ++j) {
      const Vec w = LoadN(weight + (kReversed ? width - 1 - j : j) * stride, used);
      // to[t] needs from[t + j - before], which exists if least <= t < most.
      const size_t least = before > j ? before - j : 0;
      const size_t most = length + before > j ? length + before - j : 0;
      if (rows == kTaps && t0 >= least && t0 + kTaps <= most) {
        const float* x = from + (t0 + j - before) * stride;
        Unrolled<kTaps>([&](auto i) HWY_ATTR {
          sums[i] = hn::MulAdd(w, LoadN(x + i * stride, used), sums[i]);
        });
      } else {
        Unrolled<kTaps>([&](auto i) HWY_ATTR {
          const size_t t = t0 + i;
          if (i < rows && t >= least && t < most) {
            sums[i] = hn::MulAdd(w, LoadN(from + (t + j - before) * stride, used), sums[i]);
          }
        });
      }
    }
    Unrolled<kTaps>([&](auto i) HWY_ATTR {
      if (i < rows) StoreN(sums[i], to + (t0 + i) * stride, used);
    });
  }
}

HWY_INLINE void ZeroRows(size_t begin, size_t end, size_t stride, size_t used, float* to) {
  for (size_t t = begin; t < end; ++t) StoreN(hn::Zero(F32()), to + t * stride, used);
}

// Computes the forward of channels [begin, end).
void DepthwiseForwardRange(const DepthwiseShape& shape, const DepthwiseForwardArgs& args,
                           size_t begin, size_t end) {
  ForVectors(end - begin, [&](size_t i, size_t used) HWY_ATTR {
    const size_t c = begin + i;
    const Vec bias = LoadN(args.bias + c, used);
    for (size_t n = 0; n < shape.batch; ++n) {
      const size_t at = n * shape.length * shape.channels + c;
      const size_t length = Counted(shape, args.lengths, n);
      Convolve<false>(args.x + at, args.weight + c, bias, shape.first, length, shape.width,
                      shape.before, shape.channels, used, args.out + at);
      ZeroRows(std::max(length, shape.first), shape.length, shape.channels, used, args.out + at);
    }
  });
}

// Computes the gradients of channels [begin, end).
void DepthwiseBackwardRange(const DepthwiseShape& shape, const DepthwiseBackwardArgs& args,
                            size_t begin, size_t end) {
  const size_t stride = shape.channels;
  ForVectors(end - begin, [&](size_t i, size_t used) HWY_ATTR {
    const size_t c = begin + i;
    Vec bias = hn::Zero(F32());
    for (size_t j = 0; j < shape.width; ++j) {
      StoreN(bias, args.grad_weight + j * stride + c, used);
    }
    for (size_t n = 0; n < shape.batch; ++n) {
      const size_t at = n * shape.length * stride + c;
      const size_t length = Counted(shape, args.lengths, n);
      const float* grad = args.grad_out + at;
      const float* x = args.x + at;
      // x[t] contributes weight[j] x[t] to out[t + before - j], so grad_x is a convolution of
      // grad_out with the weights in reverse order.
      Convolve<true>(grad, args.weight + c, hn::Zero(F32()), 0, length, shape.width,
                     shape.width - 1 - shape.before, stride, used, args.grad_x + at);
      ZeroRows(length, shape.length, stride, used, args.grad_x + at);
      for (size_t t = 0; t < length; ++t) bias = hn::Add(bias, LoadN(grad + t * stride, used));
      for (size_t j = 0; j < shape.width; ++j) {
        const size_t least = shape.before > j ? shape.before - j : 0;
        const size_t most =
            std::min(length, length + shape.before > j ? length + shape.before - j : 0);
        Vec even = hn::Zero(F32()), odd = even;  // two sums hide the latency of additions
        for (size_t t = least; t < most; ++t) {
          const Vec gx = LoadN(grad + t * stride, used);
          const Vec xx = LoadN(x + (t + j - shape.before) * stride, used);
          if (t % 2 == 0) {
            even = hn::MulAdd(gx, xx, even);
          } else {
            odd = hn::MulAdd(gx, xx, odd);
          }
        }
        float* to = args.grad_weight + j * stride + c;
        StoreN(hn::Add(LoadN(to, used), hn::Add(even, odd)), to, used);
      }
    }
    StoreN(bias, args.grad_bias + c, used);
  });
}

void DepthwiseRowBody(const DepthwiseRowArgs& args) {
  ForVectors(args.channels, [&](size_t i, size_t used) HWY_ATTR {
    Vec sum = args.start == nullptr ? hn::Zero(F32()) : LoadN(args.start + i, used);
    for (size_t j = 0; j < args.width; ++j) {
      const Vec weight = LoadN(args.weight + j * args.weight_stride + i, used);
      sum = hn::MulAdd(weight, LoadN(args.x + j * args.x_stride + i, used), sum);
    }
    StoreN(sum, args.out + i, used);
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_DEPTHWISE_INL_H_
