// The Highway bodies of rwkv7.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_RWKV7_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_RWKV7_INL_H_
#undef LINNET_KERNELS_RWKV7_INL_H_
#else
#define LINNET_KERNELS_RWKV7_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "linnet/kernels/rwkv7.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// The sum of the lanes of term(index, number of floats) over a row's vectors.
template <class Term>
HWY_INLINE float SumOverRow(size_t n, Term term) {
  Vec sum = hn::Zero(F32());
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR { sum = hn::Add(sum, term(i, used)); });
  return SumOf(sum);
}

void Rwkv7KeysBody(const Rwkv7KeysArgs& args) {
  const F32 d;
  const Vec one = hn::Set(d, 1.0f);
  for (size_t h = 0; h < args.heads; ++h) {
    const float* key = args.key + h * args.key_stride;
    const size_t at = h * args.dim;
    const auto removed = [&](size_t i, size_t used) HWY_ATTR {
      return hn::Mul(LoadN(key + i, used), LoadN(args.removal + at + i, used));
    };
    const float squares = SumOverRow(args.dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec u = removed(i, used);
      return hn::Mul(u, u);
    });
    const Vec inverse = hn::Set(d, 1.0f / std::max(std::sqrt(squares), args.least));
    ForVectors(args.dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec u = hn::Mul(removed(i, used), inverse), rate = LoadN(args.write + at + i, used);
      const Vec share = LoadN(args.key_rate + at + i, used);
      const Vec factor = hn::MulAdd(hn::Sub(rate, one), share, one);
      StoreN(hn::Mul(LoadN(key + i, used), factor), args.k + at + i, used);
      StoreN(hn::Neg(u), args.erase + at + i, used);
      StoreN(hn::Mul(u, rate), args.write + at + i, used);
    });
  }
}

void Rwkv7OutputBody(const Rwkv7OutputArgs& args) {
  const F32 d;
  const float share = 1.0f / static_cast<float>(args.value_dim);
  for (size_t h = 0; h < args.heads; ++h) {
    const float* r = args.r + h * args.r_stride;
    const size_t key = h * args.dim, at = h * args.value_dim;
    const Vec bonus = hn::Set(d, SumOverRow(args.dim, [&](size_t i, size_t used) HWY_ATTR {
                                const Vec k = LoadN(args.k + key + i, used);
                                const Vec weight = LoadN(args.bonus + key + i, used);
                                return hn::Mul(hn::Mul(LoadN(r + i, used), k), weight);
                              }));
    float* out = args.out + at;
    const float sum = SumOverRow(
        args.value_dim, [&](size_t i, size_t used) HWY_ATTR { return LoadN(out + i, used); });
    const Vec mean = hn::Set(d, sum * share);
    const float squares = SumOverRow(args.value_dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec x = ZeroBeyond(hn::Sub(LoadN(out + i, used), mean), used);
      return hn::Mul(x, x);
    });
    const Vec inverse = hn::Set(d, 1.0f / std::sqrt(squares * share + args.eps));
    ForVectors(args.value_dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec x = hn::Mul(hn::Sub(LoadN(out + i, used), mean), inverse);
      const Vec shift =
          hn::MulAdd(bonus, LoadN(args.v + at + i, used), LoadN(args.bias + at + i, used));
      const Vec y = hn::MulAdd(x, LoadN(args.weight + at + i, used), shift);
      StoreN(hn::Mul(y, LoadN(args.gate + at + i, used)), out + i, used);
    });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_RWKV7_INL_H_
