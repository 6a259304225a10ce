#include "linnet/kernels/machine_peak.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/machine_peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;

// Enough chains to hide the latency of multiply-adds (four or five cycles on each of two FMA
// ports), but few enough for 16 registers.
constexpr size_t kChains = 10;

float SpinFma(size_t rounds) {
  const F32 d;
  const auto decay = hn::Set(d, 0.5f), step = hn::Set(d, 0.25f);  // every chain converges to 0.5
  // The chains start at different values: a compiler would merge equal chains into one.
  const auto begin = [&](float at) HWY_ATTR { return hn::Set(d, at); };
  auto c0 = begin(0.0f), c1 = begin(0.1f), c2 = begin(0.2f), c3 = begin(0.3f), c4 = begin(0.4f);
  auto c5 = begin(0.5f), c6 = begin(0.6f), c7 = begin(0.7f), c8 = begin(0.8f), c9 = begin(0.9f);
  for (size_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, decay, step);
    c1 = hn::MulAdd(c1, decay, step);
    c2 = hn::MulAdd(c2, decay, step);
    c3 = hn::MulAdd(c3, decay, step);
    c4 = hn::MulAdd(c4, decay, step);
    c5 = hn::MulAdd(c5, decay, step);
    c6 = hn::MulAdd(c6, decay, step);
    c7 = hn::MulAdd(c7, decay, step);
    c8 = hn::MulAdd(c8, decay, step);
    c9 = hn::MulAdd(c9, decay, step);
  }
  c0 = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(c4, c5));
  c0 = hn::Add(c0, hn::Add(hn::Add(c6, c7), hn::Add(c8, c9)));
  return hn::GetLane(hn::SumOfLanes(d, c0));
}

double FmaFlops(size_t rounds) {
  return 2.0 * kChains * static_cast<double>(hn::Lanes(F32())) * static_cast<double>(rounds);
}

float ReadFloats(const float* data, size_t count) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  // Prefetch distance in floats. The hardware prefetcher alone would stop at the end of each page.
  constexpr size_t kAhead = 512;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (size_t line = 0; line < 4 * lanes; line += 16) hwy::Prefetch(data + i + kAhead + line);
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * lanes));
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += data[i];
  return sum;
}

void WriteFloats(float* data, size_t count, bool past_caches) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0f);
  size_t i = 0;
  if (past_caches) {  // streaming stores need aligned vectors
    for (; i < count && reinterpret_cast<uintptr_t>(data + i) % (4 * lanes) != 0; ++i) data[i] = 1;
    for (; i + lanes <= count; i += lanes) hn::Stream(one, d, data + i);
    hwy::FlushStream();
  } else {
    for (; i + lanes <= count; i += lanes) hn::StoreU(one, d, data + i);
  }
  for (; i < count; ++i) data[i] = 1;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(SpinFma);
HWY_EXPORT(FmaFlops);
HWY_EXPORT(ReadFloats);
HWY_EXPORT(WriteFloats);

float SpinFma(size_t rounds) { return HWY_DYNAMIC_DISPATCH(SpinFma)(rounds); }
double FmaFlops(size_t rounds) { return HWY_DYNAMIC_DISPATCH(FmaFlops)(rounds); }
float ReadFloats(const float* data, size_t count) {
  return HWY_DYNAMIC_DISPATCH(ReadFloats)(data, count);
}
void WriteFloats(float* data, size_t count, bool past_caches) {
  HWY_DYNAMIC_DISPATCH(WriteFloats)(data, count, past_caches);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
