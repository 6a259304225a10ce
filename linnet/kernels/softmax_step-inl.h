// The Highway body of softmax_step.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_SOFTMAX_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SOFTMAX_STEP_INL_H_
#undef LINNET_KERNELS_SOFTMAX_STEP_INL_H_
#else
#define LINNET_KERNELS_SOFTMAX_STEP_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/softmax_step.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// scores[i] = scale q . keys[i] for i < count; overwrites scores up to the next multiple of four.
// Returns the maximum of the first `count`.
HWY_INLINE float Scores(size_t count, size_t dim, float scale, const float* HWY_RESTRICT q,
                        const float* HWY_RESTRICT keys, float* HWY_RESTRICT scores) {
  const F32 d;
  const Vec factor = hn::Set(d, scale);
  Vec largest = hn::Set(d, -3.4e38f);
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < count; i += 4) {
    // Rows beyond the last key repeat the last key.
    const float* row[4];
    Unrolled<4>([&](auto r) { row[r] = keys + std::min(i + r, count - 1) * dim; });
    Vec dot[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    ForVectors(dim, [&](size_t c, size_t used) HWY_ATTR {
      const Vec part = LoadN(q + c, used);
      Unrolled<4>([&](auto r)
                      HWY_ATTR { dot[r] = hn::MulAdd(part, LoadN(row[r] + c, used), dot[r]); });
    });
    StoreSums(dot[0], dot[1], dot[2], dot[3], scores + i);
  }
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vec x = hn::Mul(hn::LoadU(d, scores + i), factor);
    largest = hn::Max(largest, x);
    hn::StoreU(x, d, scores + i);
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) most = std::max(most, scores[i] *= scale);
  return most;
}

// scores[i] = exp(scores[i] - most) for i < count. Returns the sum.
HWY_INLINE float Exponentials(size_t count, float most, float* HWY_RESTRICT scores) {
  const F32 d;
  const Vec shift = hn::Set(d, most);
  Vec sum = hn::Zero(d);
  ForVectors(count, [&](size_t i, size_t used) HWY_ATTR {
    const Vec x = ZeroBeyond(Exp(hn::Sub(LoadN(scores + i, used), shift)), used);
    sum = hn::Add(sum, x);
    StoreN(x, scores + i, used);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// out[0 .. width) = scale sum_i weights[i] values[i], for kVectors vectors of columns.
template <size_t kVectors>
HWY_INLINE void MeanOf(size_t count, size_t stride, size_t width, float scale,
                       const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values,
                       float* HWY_RESTRICT out) {
  const F32 d;
  const size_t lanes = hn::Lanes(d), last = width - (kVectors - 1) * lanes;
  constexpr size_t kChains = 4;
  Vec sum[kChains][kVectors];
  Unrolled<kChains>([&](auto chain) HWY_ATTR {
    Unrolled<kVectors>([&](auto c) HWY_ATTR { sum[chain][c] = hn::Zero(d); });
  });
  const auto add = [&](size_t i, auto chain) HWY_ATTR {
    const Vec weight = hn::Set(d, weights[i]);
    Unrolled<kVectors>([&](auto c) HWY_ATTR {
      const float* from = values + i * stride + c * lanes;
      const Vec x = c + 1 < kVectors ? hn::LoadU(d, from) : LoadN(from, last);
      sum[chain][c] = hn::MulAdd(weight, x, sum[chain][c]);
    });
  };
  size_t i = 0;
  for (; i + kChains <= count; i += kChains) {
    Unrolled<kChains>([&](auto chain) HWY_ATTR { add(i + chain, chain); });
  }
  for (; i < count; ++i) add(i, std::integral_constant<size_t, 0>());
  Unrolled<kVectors>([&](auto c) HWY_ATTR {
    const Vec total = hn::Add(hn::Add(sum[0][c], sum[1][c]), hn::Add(sum[2][c], sum[3][c]));
    const Vec scaled = hn::Mul(total, hn::Set(d, scale));
    StoreN(scaled, out + c * lanes, c + 1 < kVectors ? lanes : last);
  });
}

void SoftmaxStepBody(const SoftmaxStepShape& shape, size_t batch, float scale,
                     const SoftmaxStepArgs& args) {
  const size_t dim = shape.dim, m = shape.value_dim, lanes = hn::Lanes(F32());
  for (size_t n = 0; n < batch; ++n) {
    const size_t place = args.sequences ? args.sequences[n] : n;
    const size_t position = args.positions[place], at = position % shape.capacity;
    const size_t count = std::min(position + 1, shape.capacity);
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t own = h / shape.readers;
      float* keys = args.cache + static_cast<ptrdiff_t>(place) * args.cache_stride +
                    static_cast<ptrdiff_t>(own * shape.HeadFloats());
      float* values = keys + shape.capacity * dim;
      if (h % shape.readers == 0) {
        std::memcpy(keys + at * dim, args.k.At(n, 0, own), dim * sizeof(float));
        std::memcpy(values + at * m, args.v.At(n, 0, own), m * sizeof(float));
      }
      const float most = Scores(count, dim, scale, args.q.At(n, 0, h), keys, args.scratch);
      const float sum = Exponentials(count, most, args.scratch);
      float* out = args.out.At(n, 0, h);
      size_t c = 0;
      for (; c + 2 * lanes <= m; c += 2 * lanes) {
        MeanOf<2>(count, m, 2 * lanes, 1 / sum, args.scratch, values + c, out + c);
      }
      for (; c < m; c += lanes) {
        MeanOf<1>(count, m, std::min(lanes, m - c), 1 / sum, args.scratch, values + c, out + c);
      }
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SOFTMAX_STEP_INL_H_
