#include "linnet/kernels/ctc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/base/larger_error.h"
#include "linnet/kernels/ctc_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(CtcTest);

struct Problem {
  Problem(size_t frames, size_t classes, size_t labels, double sharpness, uint64_t seed)
      : args{.frames = frames,
             .classes = classes,
             .labels = labels,
             .stride = classes + 3,
             .blank = seed % classes} {
    Philox rng(seed);
    log_probs.assign(frames * args.stride, NAN);
    for (size_t t = 0; t < frames; ++t) {
      double sum = 0;
      float* row = log_probs.data() + t * args.stride;
      for (size_t c = 0; c < classes; ++c) {
        row[c] = static_cast<float>(sharpness * rng.Normal());
        sum += std::exp(row[c]);
      }
      for (size_t c = 0; c < classes; ++c) row[c] -= static_cast<float>(std::log(sum));
    }
    for (size_t i = 0; i < labels; ++i) {
      int64_t target = 0;
      do {
        target = rng.Below(static_cast<uint32_t>(classes));
      } while (static_cast<size_t>(target) == args.blank);
      if (i > 0 && rng.Below(4) == 0) target = targets.back();
      targets.push_back(target);
    }
    args.log_probs = log_probs.data(), args.targets = targets.data();
  }
  double Run(std::vector<float>* grad) {
    std::vector<float> scratch(CtcScratch(args.frames, args.labels, grad != nullptr) + 1, NAN);
    scratch.back() = 5;
    if (grad != nullptr) {
      grad->assign(args.frames * args.stride, 7);
      args.grad = grad->data();
    }
    const double nats = Ctc(args, scratch.data());
    args.grad = nullptr;
    EXPECT_EQ(scratch.back(), 5) << "wrote beyond its scratch";
    return nats;
  }

  CtcArgs args;
  std::vector<float> log_probs;
  std::vector<int64_t> targets;
};

TEST_P(CtcTest, MatchesTheReference) {
  uint64_t seed = 0;
  for (const size_t labels : {0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 100}) {
    for (const size_t frames : {size_t{1}, 2 * labels + 1, 3 * labels + 40}) {
      for (const double sharpness : {0.5, 4.0}) {
        Problem problem(frames, 2 + seed % 9, labels, sharpness, seed);
        ++seed;
        std::vector<double> want_grad(frames * problem.args.classes);
        const double want = CtcRef(problem.args, want_grad.data());
        std::vector<float> grad;
        const double nats = problem.Run(&grad);
        if (std::isinf(want)) {
          EXPECT_EQ(nats, want);
        } else {
          EXPECT_NEAR(nats, want, 1e-4 + 1e-6 * want) << labels << " in " << frames;
        }
        EXPECT_EQ(problem.Run(nullptr), nats);
        for (size_t t = 0; t < frames; ++t) {
          for (size_t c = 0; c < problem.args.classes; ++c) {
            EXPECT_NEAR(grad[t * problem.args.stride + c], want_grad[t * problem.args.classes + c],
                        1e-4)
                << labels << " in " << frames << ": " << t << " " << c;
          }
          EXPECT_EQ(grad[t * problem.args.stride + problem.args.classes], 7);
        }
      }
    }
  }
}

// Probabilities are nearly uniform, as in an untrained model. In most frames, the states with the
// largest posterior have far less forward probability than states further along.
TEST_P(CtcTest, LongSequences) {
  Problem problem(4000, 34, 840, 0.1, 3);
  std::vector<double> want_grad(4000 * 34);
  const double want = CtcRef(problem.args, want_grad.data());
  std::vector<float> grad;
  EXPECT_NEAR(problem.Run(&grad), want, 1e-5 * want);
  double off = 0, largest = 0;
  for (size_t t = 0; t < 4000; ++t) {
    for (size_t c = 0; c < 34; ++c) {
      off = LargerError(off, std::abs(grad[t * problem.args.stride + c] - want_grad[t * 34 + c]));
      largest = std::max(largest, std::abs(want_grad[t * 34 + c]));
    }
  }
  EXPECT_LT(off, 5e-3 * largest);
}

TEST_P(CtcTest, TooLongLabelsGiveInfinityAndNoGradient) {
  for (const bool repeats : {false, true}) {
    Problem problem(repeats ? 5 : 3, 4, repeats ? 3 : 4, 1, 1);
    problem.targets = repeats ? std::vector<int64_t>{2, 2, 2} : std::vector<int64_t>{0, 2, 3, 0};
    problem.args.targets = problem.targets.data();
    std::vector<float> grad;
    EXPECT_EQ(std::isinf(problem.Run(&grad)), !repeats);
    if (repeats) continue;
    for (size_t t = 0; t < problem.args.frames; ++t) {
      for (size_t c = 0; c < 4; ++c) EXPECT_EQ(grad[t * problem.args.stride + c], 0);
    }
  }
  Problem never(6, 3, 2, 1, 1);
  never.targets = {0, 2};
  never.args.targets = never.targets.data();
  for (size_t t = 0; t < 6; ++t) never.log_probs[t * never.args.stride + 2] = -INFINITY;
  EXPECT_EQ(never.Run(nullptr), INFINITY);
  never.log_probs[2] = NAN;
  EXPECT_TRUE(std::isnan(never.Run(nullptr)));
  Problem none(0, 3, 0, 1, 1);
  EXPECT_EQ(none.Run(nullptr), 0);
}

}  // namespace
}  // namespace linnet::kernels
