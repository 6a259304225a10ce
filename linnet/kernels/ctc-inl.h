// The Highway body of ctc.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_CTC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_CTC_INL_H_
#undef LINNET_KERNELS_CTC_INL_H_
#else
#define LINNET_KERNELS_CTC_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/ctc.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Log of zero: finite, so that the difference of two is not NaN.
constexpr float kCtcNever = -1e30f;
constexpr float kCtcImpossible = -1e29f;  // values below it count as impossible

// States of a frame: b [labels + 1] and e [labels]. kCtcNever pads both ends of either, for the
// neighbors of the first and last state.
struct CtcRow {
  float* b;
  float* e;
};

inline size_t CtcRowFloats(size_t labels) { return 2 * (labels + 1 + 2 * kCtcPad); }

inline CtcRow CtcRowAt(float* from, size_t labels) {
  return {from + kCtcPad, from + labels + 1 + 3 * kCtcPad};
}

// log(exp a + exp b [+ exp c])
HWY_INLINE Vec CtcSum(Vec a, Vec b) {
  const F32 d;
  const Vec most = hn::Max(a, b);
  return hn::Add(most, hn::Log(d, hn::Add(Exp(hn::Sub(a, most)), Exp(hn::Sub(b, most)))));
}
HWY_INLINE Vec CtcSum(Vec a, Vec b, Vec c) {
  const F32 d;
  const Vec most = hn::Max(hn::Max(a, b), c);
  const Vec sum =
      hn::Add(hn::Add(Exp(hn::Sub(a, most)), Exp(hn::Sub(b, most))), Exp(hn::Sub(c, most)));
  return hn::Add(most, hn::Log(d, sum));
}

// Computes the next row, forward (step = -1) or backward (1), without the frame's own emission.
// `between` [labels] is 0, or kCtcNever if target i equals the one before it.
template <int kStep>
void CtcAdvance(size_t labels, const CtcRow& from, const float* between, const CtcRow& to) {
  constexpr ptrdiff_t kLabelOfBlank = kStep < 0 ? -1 : 0, kBlankOfLabel = kStep < 0 ? 0 : 1;
  ForVectors(labels + 1, [&](size_t i, size_t used) HWY_ATTR {
    const auto at = static_cast<ptrdiff_t>(i);
    StoreN(CtcSum(LoadN(from.b + i, used), LoadN(from.e + at + kLabelOfBlank, used)), to.b + i,
           used);
  });
  ForVectors(labels, [&](size_t i, size_t used) HWY_ATTR {
    const auto at = static_cast<ptrdiff_t>(i);
    // The transition between i and its neighbor uses between[i], or the neighbor's entry.
    const Vec skip =
        hn::Add(LoadN(from.e + at + kStep, used), LoadN(between + at + kBlankOfLabel, used));
    StoreN(CtcSum(LoadN(from.e + i, used), LoadN(from.b + at + kBlankOfLabel, used), skip),
           to.e + i, used);
  });
}

// Adds a frame's log probabilities, then subtracts the row's maximum, which is returned.
float CtcEmit(size_t labels, float blank, const float* emitted, const CtcRow& row) {
  const F32 d;
  const Vec never = hn::Set(d, kCtcNever), add = hn::Set(d, blank);
  Vec largest = never;
  const auto keep = [&](Vec v, float* to, size_t used) HWY_ATTR {
    StoreN(v, to, used);
    largest = hn::Max(largest, hn::IfThenElse(hn::FirstN(d, used), v, never));
  };
  ForVectors(labels + 1, [&](size_t i, size_t used) HWY_ATTR {
    keep(hn::Add(LoadN(row.b + i, used), add), row.b + i, used);
  });
  ForVectors(labels, [&](size_t i, size_t used) HWY_ATTR {
    keep(hn::Add(LoadN(row.e + i, used), LoadN(emitted + i, used)), row.e + i, used);
  });
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (!(most > kCtcImpossible)) return 0;
  const Vec off = hn::Set(d, most);
  ForVectors(labels + 1, [&](size_t i, size_t used) HWY_ATTR {
    StoreN(hn::Max(never, hn::Sub(LoadN(row.b + i, used), off)), row.b + i, used);
  });
  ForVectors(labels, [&](size_t i, size_t used) HWY_ATTR {
    StoreN(hn::Max(never, hn::Sub(LoadN(row.e + i, used), off)), row.e + i, used);
  });
  return most;
}

double CtcBody(const CtcArgs& args, float* scratch) {
  const F32 d;
  const size_t labels = args.labels, frames = args.frames, width = CtcRowFloats(labels);
  const bool with_grad = args.grad != nullptr;
  for (size_t t = 0; with_grad && t < frames; ++t) {
    std::fill_n(args.grad + t * args.stride, args.classes, 0.0f);
  }
  if (frames == 0) return labels == 0 ? 0 : std::numeric_limits<double>::infinity();
  // Repetition mask between targets, padded at both ends; a frame's log probabilities of the
  // targets.
  float* const between = scratch + kCtcPad;
  float* const emitted = between + labels + kCtcPad;
  float* const rows = emitted + labels + kCtcPad;
  std::fill_n(scratch, labels + 2 * kCtcPad, kCtcNever);
  for (size_t i = 1; i < labels; ++i) {
    if (args.targets[i] != args.targets[i - 1]) between[i] = 0;
  }
  // The forward keeps every row if a gradient follows, else two.
  const auto row_at = [&](size_t t) { return CtcRowAt(rows + t * width, labels); };
  const size_t kept = with_grad ? frames : 2;
  const auto clear = [&](size_t t) { std::fill_n(rows + t * width, width, kCtcNever); };
  bool bad = false;
  const auto p = [&](size_t t, size_t c) {
    const float value = args.log_probs[t * args.stride + c];
    bad |= value != value;
    return std::max(kCtcNever, value);
  };
  const auto emit = [&](size_t t, const CtcRow& row) {
    for (size_t i = 0; i < labels; ++i) emitted[i] = p(t, static_cast<size_t>(args.targets[i]));
    return CtcEmit(labels, p(t, args.blank), emitted, row);
  };
  double taken = 0;
  CtcRow row = row_at(0);
  for (size_t t = 0; t < frames; ++t) {
    const CtcRow before = row;
    row = row_at(t % kept);
    if (t < kept) clear(t);
    if (t == 0) {
      row.b[0] = 0;
      if (labels > 0) row.e[0] = 0;
    } else {
      CtcAdvance<-1>(labels, before, between, row);
    }
    taken += emit(t, row);
  }
  if (bad) return std::numeric_limits<double>::quiet_NaN();
  const double ends[2] = {row.b[labels], labels > 0 ? row.e[labels - 1] : kCtcNever};
  const double most = std::max(ends[0], ends[1]);
  if (most < kCtcImpossible) return std::numeric_limits<double>::infinity();
  const double nats =
      -(taken + most + std::log(std::exp(ends[0] - most) + std::exp(ends[1] - most)));
  if (!with_grad) return nats;

  clear(frames), clear(frames + 1);
  CtcRow after = row_at(frames), now = row_at(frames + 1);
  for (size_t t = frames; t-- > 0;) {
    std::swap(after, now);
    if (t + 1 == frames) {
      now.b[labels] = 0;
      if (labels > 0) now.e[labels - 1] = 0;
    } else {
      CtcAdvance<1>(labels, after, between, now);
    }
    // Shares of the paths. The states of a frame sum to 1, which cancels accumulated rounding
    // errors. They overwrite the kept row.
    const CtcRow way = row_at(t);
    Vec largest = hn::Set(d, kCtcNever);
    const auto meet = [&](float* to, const float* back, size_t n) HWY_ATTR {
      ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
        const Vec both = hn::Add(LoadN(to + i, used), LoadN(back + i, used));
        StoreN(both, to + i, used);
        largest =
            hn::Max(largest, hn::IfThenElse(hn::FirstN(d, used), both, hn::Set(d, kCtcNever)));
      });
    };
    meet(way.b, now.b, labels + 1), meet(way.e, now.e, labels);
    const Vec top = hn::MaxOfLanes(d, largest);
    Vec sums = hn::Zero(d), blanks = hn::Zero(d);
    ForVectors(labels + 1, [&](size_t i, size_t used) HWY_ATTR {
      blanks = hn::Add(blanks, ZeroBeyond(Exp(hn::Sub(LoadN(way.b + i, used), top)), used));
    });
    ForVectors(labels, [&](size_t i, size_t used) HWY_ATTR {
      const Vec share = ZeroBeyond(Exp(hn::Sub(LoadN(way.e + i, used), top)), used);
      StoreN(share, way.e + i, used);
      sums = hn::Add(sums, share);
    });
    const float blank = hn::GetLane(hn::SumOfLanes(d, blanks));
    const float scale = -1 / (blank + hn::GetLane(hn::SumOfLanes(d, sums)));
    float* const grad = args.grad + t * args.stride;
    const float* const logs = args.log_probs + t * args.stride;
    ForVectors(args.classes, [&](size_t c, size_t used)
                                 HWY_ATTR { StoreN(Exp(LoadN(logs + c, used)), grad + c, used); });
    grad[args.blank] += blank * scale;
    for (size_t i = 0; i < labels; ++i) grad[args.targets[i]] += way.e[i] * scale;
    emit(t, now);
  }
  return nats;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_CTC_INL_H_
