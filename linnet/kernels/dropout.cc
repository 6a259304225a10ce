#include "linnet/kernels/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void DropoutTo(uint64_t seed, float p, size_t first, size_t n, const float* x, float* out) {
  const F32 df;
  const hn::RebindToUnsigned<F32> du;
  const auto low = hn::Set(du, static_cast<uint32_t>(seed));
  const auto high = hn::Set(du, static_cast<uint32_t>(seed >> 32));
  const auto a = hn::Set(du, 0x21f0aaadu), b = hn::Set(du, 0x735a2d97u);
  // Compares the upper 24 bits of each hash. As signed integers they are never negative, and some
  // targets have only signed comparison.
  const hn::RebindToSigned<F32> di;
  const auto below = hn::Set(di, static_cast<int32_t>(p * 0x1p24f) - 1);
  const Vec scale = hn::Set(df, 1 / (1 - p));
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    // The same hash as in DropoutKeeps() (dropout.h).
    auto h = hn::Xor(hn::Iota(du, static_cast<uint32_t>(first + i)), low);
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), a);
    h = hn::Xor(h, high);
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<15>(h)), b);
    h = hn::Xor(h, hn::ShiftRight<15>(h));
    const auto keep = hn::Gt(hn::BitCast(di, hn::ShiftRight<8>(h)), below);
    const Vec kept = hn::IfThenElseZero(hn::RebindMask(df, keep), LoadN(x + i, used));
    StoreN(hn::Mul(kept, scale), out + i, used);
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(DropoutTo);

void Dropout(uint64_t seed, float p, size_t first, size_t n, const float* x, float* out) {
  HWY_DYNAMIC_DISPATCH(DropoutTo)(seed, p, first, n, x, out);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
