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
#include <utility>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/ctc.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Stands for log(0). It is finite, so that the difference of two such logs is not NaN.
constexpr float kCtcNever = -1e30f;
constexpr float kCtcImpossible = -1e29f;  // log probabilities below this count as log(0)

// The states of one frame (ctc.h): b [labels + 1] and e [labels]. Both arrays are padded with
// kCtcNever at both ends, so that transitions from beyond the first and last states add nothing.
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

// Computes the row `to` of the frame after `from` (kStep = -1, the forward recursion) or before it
// (kStep = 1, the backward recursion). Does not add the log probabilities of the new frame;
// CtcEmit() does. between[i] is kCtcNever if target i is the first or equals target i - 1,
// otherwise 0.
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
    // The transition that skips the blank between two targets. In the forward recursion, it leads
    // from target i - 1 to i and adds between[i]. In the backward recursion, it leads from target
    // i + 1 to i and adds between[i + 1].
    const Vec skip =
        hn::Add(LoadN(from.e + at + kStep, used), LoadN(between + at + kBlankOfLabel, used));
    StoreN(CtcSum(LoadN(from.e + i, used), LoadN(from.b + at + kBlankOfLabel, used), skip),
           to.e + i, used);
  });
}

// Adds a frame's log probabilities to a row, then subtracts the row's maximum and returns it. If
// the whole row is impossible, subtracts nothing and returns 0.
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

// Writes the gradient of frame t from its states in the forward recursion, `way`, and in the
// backward recursion, `back`. Overwrites `way`. Normalizes the states' posterior probabilities to a
// sum of 1. This cancels accumulated rounding errors.
void CtcGradient(const CtcArgs& args, size_t t, const CtcRow& way, const CtcRow& back) {
  const F32 d;
  const size_t labels = args.labels;
  Vec largest = hn::Set(d, kCtcNever);
  const auto meet = [&](float* to, const float* from, size_t n) HWY_ATTR {
    ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
      const Vec both = hn::Add(LoadN(to + i, used), LoadN(from + i, used));
      StoreN(both, to + i, used);
      largest = hn::Max(largest, hn::IfThenElse(hn::FirstN(d, used), both, hn::Set(d, kCtcNever)));
    });
  };
  meet(way.b, back.b, labels + 1), meet(way.e, back.e, labels);
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
  const float blank = SumOf(blanks);
  const float scale = -1 / (blank + SumOf(sums));
  float* const grad = args.grad + t * args.stride;
  const float* const logs = args.log_probs + t * args.stride;
  ForVectors(args.classes, [&](size_t c, size_t used)
                               HWY_ATTR { StoreN(Exp(LoadN(logs + c, used)), grad + c, used); });
  grad[args.blank] += blank * scale;
  for (size_t i = 0; i < labels; ++i) grad[args.targets[i]] += way.e[i] * scale;
}

// The forward and backward recursions. Scratch holds the states of the frames.
class CtcPaths {
 public:
  CtcPaths(const CtcArgs& args, float* scratch)
      : args_(args),
        labels_(args.labels),
        width_(CtcRowFloats(labels_)),
        between_(scratch + kCtcPad),
        emitted_(between_ + labels_ + kCtcPad),
        rows_(emitted_ + labels_ + kCtcPad) {
    std::fill_n(scratch, labels_ + 2 * kCtcPad, kCtcNever);
    for (size_t i = 1; i < labels_; ++i) {
      if (args.targets[i] != args.targets[i - 1]) between_[i] = 0;
    }
  }

  // Returns -log of the summed probability of all paths. Keeps the rows of all frames if a gradient
  // is requested, otherwise only the last two rows.
  double Forward() {
    const size_t kept = args_.grad != nullptr ? args_.frames : 2;
    double taken = 0;  // sum of the maxima that Emit() has subtracted
    CtcRow row = RowAt(0);
    for (size_t t = 0; t < args_.frames; ++t) {
      const CtcRow before = row;
      row = RowAt(t % kept);
      if (t < kept) ClearRow(t);
      if (t == 0) {
        row.b[0] = 0;
        if (labels_ > 0) row.e[0] = 0;
      } else {
        CtcAdvance<-1>(labels_, before, between_, row);
      }
      taken += Emit(t, row);
    }
    if (read_nan_) return std::numeric_limits<double>::quiet_NaN();
    const double ends[2] = {row.b[labels_], labels_ > 0 ? row.e[labels_ - 1] : kCtcNever};
    const double most = std::max(ends[0], ends[1]);
    if (most < kCtcImpossible) return std::numeric_limits<double>::infinity();
    return -(taken + most + std::log(std::exp(ends[0] - most) + std::exp(ends[1] - most)));
  }

  // Writes the gradient. Requires that Forward() has returned a finite value.
  void Backward() {
    const size_t frames = args_.frames;
    ClearRow(frames), ClearRow(frames + 1);
    CtcRow after = RowAt(frames), now = RowAt(frames + 1);
    for (size_t t = frames; t-- > 0;) {
      std::swap(after, now);
      if (t + 1 == frames) {
        now.b[labels_] = 0;
        if (labels_ > 0) now.e[labels_ - 1] = 0;
      } else {
        CtcAdvance<1>(labels_, after, between_, now);
      }
      CtcGradient(args_, t, RowAt(t), now);
      Emit(t, now);
    }
  }

 private:
  CtcRow RowAt(size_t t) const { return CtcRowAt(rows_ + t * width_, labels_); }
  void ClearRow(size_t t) const { std::fill_n(rows_ + t * width_, width_, kCtcNever); }

  float LogProbability(size_t t, size_t c) {
    const float value = args_.log_probs[t * args_.stride + c];
    read_nan_ |= value != value;
    return std::max(kCtcNever, value);
  }

  float Emit(size_t t, const CtcRow& row) {
    for (size_t i = 0; i < labels_; ++i) {
      emitted_[i] = LogProbability(t, static_cast<size_t>(args_.targets[i]));
    }
    return CtcEmit(labels_, LogProbability(t, args_.blank), emitted_, row);
  }

  const CtcArgs& args_;
  const size_t labels_, width_;
  float* const between_;  // see CtcAdvance(); padded with kCtcNever at both ends
  float* const emitted_;  // log probability of each target at the current frame
  float* const rows_;     // the kept rows of Forward(), then two rows of Backward()
  bool read_nan_ = false;
};

double CtcBody(const CtcArgs& args, float* scratch) {
  for (size_t t = 0; args.grad != nullptr && t < args.frames; ++t) {
    std::fill_n(args.grad + t * args.stride, args.classes, 0.0f);
  }
  if (args.frames == 0) return args.labels == 0 ? 0 : std::numeric_limits<double>::infinity();
  CtcPaths paths(args, scratch);
  const double nats = paths.Forward();
  if (args.grad != nullptr && std::isfinite(nats)) paths.Backward();
  return nats;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_CTC_INL_H_
