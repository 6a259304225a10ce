// Runs the tile programs of causal linear attention on the executor and compares their results with
// the reference.
#include "linnet/kernels/cuda/causal_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/cuda/causal_linear_plan.h"
#include "linnet/kernels/cuda/causal_product_tile.h"
#include "linnet/kernels/cuda/tile_executor.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// Runs tile programs on the CPU (causal_linear_plan.h).
class ExecutorMachine {
 public:
  explicit ExecutorMachine(uint64_t seed) : seed_(seed) {}

  void Copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  void Zero(void* to, size_t bytes) { std::memset(to, 0, bytes); }
  template <class Sizes, typename T>
  void Run(unsigned blocks, const CausalProductArgs<T>& args) {
    RunTiles({.blocks = {blocks, 1, 1},
              .threads = Sizes::kThreads,
              .shared_bytes = Sizes::kBytes,
              .seed = seed_},
             [&](ExecutorTile& tile) { CausalProductTile<Sizes>(tile, args); });
  }
  template <typename T>
  void RunDelta(const std::array<unsigned, 3>& blocks, unsigned threads,
                const CausalProductArgs<T>& args, float* to) {
    RunTiles({.blocks = blocks, .threads = threads, .seed = seed_},
             [&](ExecutorTile& tile) { DeltaTile(tile, args, to); });
  }

 private:
  uint64_t seed_;
};

// ---- Problems ----

struct Problem {
  CausalLinearShape shape;
  FeatureMap feature_map = FeatureMap::kElu;
  bool normalize = true;
  bool state = false;                 // with an initial state and a gradient of the final state
  std::vector<int64_t> lengths = {};  // empty: no mask
  std::vector<int64_t> offsets = {};  // empty: not packed
  unsigned segments = 1;
  uint64_t seed = 0;   // seed of the order of threads
  size_t padding = 0;  // unused elements between the positions of a tensor
};

std::string Name(const Problem& p) {
  std::string name =
      StrCat("N ", p.shape.batch, " L ", p.shape.length, " H ", p.shape.heads, " D ", p.shape.dim,
             " M ", p.shape.value_dim, " segments ", p.segments, " seed ", p.seed);
  if (p.feature_map == FeatureMap::kElu) name += " elu";
  if (p.normalize) name += " normalized";
  if (p.state) name += " state";
  if (!p.lengths.empty()) name += " lengths";
  if (!p.offsets.empty()) name += " packed";
  return name;
}

CausalLinearPlan PlanOf(const Problem& problem) {
  constexpr int kProcessors = 4;
  return PlanCausalLinear(problem.shape, {problem.feature_map, problem.normalize, 1e-6f},
                          kProcessors, !problem.offsets.empty(), problem.segments);
}

template <typename T>
T Narrowed(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return ToBf16(x);
  }
}

// A tensor [N, L, H, width] with p.padding elements between positions and a canary behind it.
template <typename T>
class Tensor {
 public:
  Tensor(const Problem& p, size_t width)
      : length_(p.offsets.empty() ? p.shape.length : 0),
        heads_(p.shape.heads),
        width_(width),
        time_(heads_ * width + p.padding) {
    const size_t rows = p.offsets.empty() ? p.shape.batch * p.shape.length : p.shape.length;
    x_.assign(rows * time_ + kCanary, Narrowed<T>(std::numeric_limits<float>::quiet_NaN()));
    std::fill(x_.end() - kCanary, x_.end(), Narrowed<T>(77.0f));
  }
  Tensor& Fill(uint64_t stream, bool positive) {
    Philox rng(7, stream);
    for (size_t i = 0; i + kCanary < x_.size(); ++i) {
      const float x = rng.Normal();
      if (i % time_ < heads_ * width_) x_[i] = Narrowed<T>(positive ? std::abs(x) : x);
    }
    return *this;
  }
  operator Strided<T>() { return Of<T>(x_.data()); }
  operator Strided<const T>() const { return Of<const T>(x_.data()); }
  bool canary() const {
    return std::all_of(x_.end() - kCanary, x_.end(), [](T x) { return ToFloat(x) == 77.0f; });
  }
  // Rows [first, first + length) of sequence n and head h.
  Doubles Head(size_t n, size_t first, size_t length, size_t h) const {
    Doubles head;
    for (size_t l = 0; l < length; ++l) {
      const T* row = x_.data() + (n * length_ + first + l) * time_ + h * width_;
      for (size_t i = 0; i < width_; ++i) head.push_back(ToFloat(row[i]));
    }
    return head;
  }

 private:
  static constexpr size_t kCanary = 16;

  template <typename U>
  Strided<U> Of(U* data) const {
    return {data, static_cast<ptrdiff_t>(length_ * time_), static_cast<ptrdiff_t>(time_),
            static_cast<ptrdiff_t>(width_)};
  }

  size_t length_, heads_, width_, time_;
  std::vector<T> x_;
};

// The largest difference relative to the largest value. The terms of all sums are near 1, so values
// far below 1 come from cancellation and are held to an absolute tolerance. For example, with
// `normalize` and no initial state, the gradient of the first query is nearly zero.
class Difference {
 public:
  void Add(const Doubles& got, const Doubles& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      // The negated comparison makes a NaN fail.
      const double off = std::abs(got[i] - want[i]);
      if (!(off <= largest_)) largest_ = off;
      scale_ = std::max(scale_, std::abs(want[i]));
    }
  }
  double relative() const { return largest_ / std::max(scale_, 0.3); }

 private:
  double largest_ = 0, scale_ = 0;
};

Floats RandomStates(size_t n, uint64_t stream, bool positive) {
  Philox rng(8, stream);
  Floats x(n);
  for (float& value : x) value = positive ? std::abs(rng.Normal()) + 1 : rng.Normal();
  return x;
}

Doubles Slice(const Floats& x, size_t place, size_t size) {
  const auto first = x.begin() + static_cast<ptrdiff_t>(place * size);
  return Doubles(first, first + static_cast<ptrdiff_t>(size));
}

// Compares forward and backward with the reference. Tolerances are relative to the largest value of
// each tensor.
template <typename T>
void CheckProblem(const Problem& p) {
  SCOPED_TRACE(Name(p));
  constexpr bool kNarrow = std::is_same_v<T, BFloat16>;
  const double tolerance = kNarrow ? 1e-2 : 1e-4, state_tolerance = kNarrow ? 5e-3 : 2e-5;
  const CausalLinearShape& shape = p.shape;
  const size_t d = shape.dim, m = shape.value_dim, places = shape.batch * shape.heads;
  // With the identity map and inputs of both signs, a denominator may vanish, and the error has no
  // bound.
  const bool positive = p.normalize && p.feature_map == FeatureMap::kIdentity;
  const Tensor<T> q = Tensor<T>(p, d).Fill(1, positive), k = Tensor<T>(p, d).Fill(2, positive);
  const Tensor<T> v = Tensor<T>(p, m).Fill(3, false), grad_out = Tensor<T>(p, m).Fill(4, false);
  Tensor<T> out(p, m), grad_q(p, d), grad_k(p, d), grad_v(p, m);
  const Floats s0 = RandomStates(places * d * m, 1, false), z0 = RandomStates(places * d, 2, true);
  const Floats grad_s = RandomStates(places * d * m, 3, false);
  const Floats grad_z = RandomStates(places * d, 4, false);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Floats s = s0, z = z0, grad_s0(places * d * m, nan), grad_z0(places * d, nan);

  const CausalLinearPlan plan = PlanOf(p);
  ExecutorMachine machine(p.seed);
  Floats kept(plan.kept, nan), scratch(plan.scratch, nan);
  CausalLinearForwardArgsOf<T> forward{.q = q, .k = k, .v = v, .out = out};
  CausalLinearBackwardArgsOf<T> backward{.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = std::as_const(out),
                                         .grad_out = grad_out,
                                         .kept = kept.data(),
                                         .grad_q = grad_q,
                                         .grad_k = grad_k,
                                         .grad_v = grad_v};
  forward.kept = kept.data();
  if (!p.lengths.empty()) forward.lengths = backward.lengths = p.lengths.data();
  if (!p.offsets.empty()) forward.offsets = backward.offsets = p.offsets.data();
  if (p.state) {
    forward.s = s.data();
    backward.s = s0.data(), backward.grad_s = grad_s.data(), backward.grad_s0 = grad_s0.data();
    if (p.normalize) {
      forward.z = z.data();
      backward.z = z0.data(), backward.grad_z = grad_z.data(), backward.grad_z0 = grad_z0.data();
    }
  }
  RunForward(machine, plan, forward, scratch.data());
  std::fill(scratch.begin(), scratch.end(), nan);
  RunBackward(machine, plan, backward, scratch.data());

  Difference in_out, in_q, in_k, in_v, in_s, in_z, in_s0, in_z0;
  for (size_t n = 0; n < shape.batch; ++n) {
    const size_t first = p.offsets.empty() ? 0 : static_cast<size_t>(p.offsets[n]);
    const size_t length =
        p.offsets.empty() ? shape.length : static_cast<size_t>(p.offsets[n + 1]) - first;
    const size_t valid = p.lengths.empty() ? length : static_cast<size_t>(p.lengths[n]);
    const size_t at = p.offsets.empty() ? n : 0;
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t place = n * shape.heads + h;
      const auto rows = [&](const Tensor<T>& x) { return x.Head(at, first, length, h); };
      const CausalLinearRef head(length, d, m, plan.options, rows(q), rows(k), rows(v), valid,
                                 p.state ? Slice(s0, place, d * m) : Doubles(),
                                 p.state && p.normalize ? Slice(z0, place, d) : Doubles());
      const Doubles g = rows(grad_out);
      const Doubles gs = p.state ? Slice(grad_s, place, d * m) : Doubles();
      const Doubles gz = p.state && p.normalize ? Slice(grad_z, place, d) : Doubles();
      Doubles want_out, want_q, want_k, want_v;
      const auto append = [](Doubles& to, const Doubles& row) {
        to.insert(to.end(), row.begin(), row.end());
      };
      for (size_t i = 0; i < length; ++i) {
        append(want_out, head.Out(i));
        append(want_q, head.GradQ(i, g));
        append(want_k, head.GradK(i, g, gs, gz));
        append(want_v, i < valid ? head.GradV(i, g, gs) : Doubles(m));
      }
      in_out.Add(rows(out), want_out);
      in_q.Add(rows(grad_q), want_q);
      in_k.Add(rows(grad_k), want_k);
      in_v.Add(rows(grad_v), want_v);
      if (!p.state) continue;
      in_s.Add(Slice(s, place, d * m), head.S());
      in_s0.Add(Slice(grad_s0, place, d * m), head.GradS0(g, gs));
      if (!p.normalize) continue;
      in_z.Add(Slice(z, place, d), head.Z());
      in_z0.Add(Slice(grad_z0, place, d), head.GradZ0(g, gz));
    }
  }
  EXPECT_LE(in_out.relative(), tolerance) << "out";
  EXPECT_LE(in_q.relative(), tolerance) << "grad_q";
  EXPECT_LE(in_k.relative(), tolerance) << "grad_k";
  EXPECT_LE(in_v.relative(), tolerance) << "grad_v";
  EXPECT_LE(in_s.relative(), state_tolerance) << "s";
  EXPECT_LE(in_z.relative(), state_tolerance) << "z";
  EXPECT_LE(in_s0.relative(), state_tolerance) << "grad_s0";
  EXPECT_LE(in_z0.relative(), state_tolerance) << "grad_z0";
  EXPECT_TRUE(out.canary() && grad_q.canary() && grad_k.canary() && grad_v.canary());
}

template <typename T>
class CausalLinear : public testing::Test {};
using Types = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CausalLinear, Types);

TYPED_TEST(CausalLinear, Sizes) {
  const size_t sizes[] = {16, 32, 64, 128};
  const size_t lengths[] = {65, 1, 130, 15, 63, 64, 16};
  size_t i = 0;
  for (const size_t dim : sizes) {
    for (const size_t value_dim : sizes) {
      Problem p{.shape = {1, lengths[i % 7], 1, dim, value_dim}};
      p.feature_map = i % 2 ? FeatureMap::kIdentity : FeatureMap::kElu;
      p.normalize = i % 3 != 2;
      p.state = i % 4 >= 2;
      CheckProblem<TypeParam>(p);
      ++i;
    }
  }
}

TYPED_TEST(CausalLinear, SizesThatAreNoPowersOfTwo) {
  CheckProblem<TypeParam>({.shape = {1, 70, 2, 8, 24}, .state = true});
  CheckProblem<TypeParam>({.shape = {1, 70, 2, 40, 8}, .state = true});
  CheckProblem<TypeParam>({.shape = {1, 70, 1, 72, 104}, .state = true});
}

TYPED_TEST(CausalLinear, Lengths) {
  for (const size_t length : {1, 15, 16, 63, 64, 65, 130}) {
    for (const bool normalize : {false, true}) {
      for (const FeatureMap map : {FeatureMap::kIdentity, FeatureMap::kElu}) {
        Problem p{.shape = {1, length, 1, 16, 32}, .feature_map = map, .normalize = normalize};
        p.state = length % 2;
        CheckProblem<TypeParam>(p);
      }
    }
  }
}

TYPED_TEST(CausalLinear, LongSequence) {
  CheckProblem<TypeParam>({.shape = {1, 1030, 1, 16, 16}, .state = true});
}

TYPED_TEST(CausalLinear, MaskedKeys) {
  for (const bool normalize : {false, true}) {
    Problem p{.shape = {4, 70, 2, 32, 16}, .normalize = normalize, .state = true};
    p.lengths = {70, 66, 3, 0};
    CheckProblem<TypeParam>(p);
  }
}

TYPED_TEST(CausalLinear, PackedSequences) {
  for (const bool normalize : {false, true}) {
    Problem p{.shape = {5, 202, 2, 16, 32}, .normalize = normalize, .state = true};
    p.offsets = {0, 1, 1, 67, 72, 202};
    CheckProblem<TypeParam>(p);
  }
}

TYPED_TEST(CausalLinear, Segments) {
  for (const bool state : {false, true}) {
    for (const unsigned segments : {2, 3}) {
      Problem p{.shape = {1, 330, 1, 16, 16}, .state = state, .segments = segments};
      CheckProblem<TypeParam>(p);
      p.normalize = false;
      p.shape.dim = 64;
      CheckProblem<TypeParam>(p);
    }
  }
  Problem masked{.shape = {2, 200, 1, 32, 64}, .lengths = {140, 60}, .segments = 2};
  CheckProblem<TypeParam>(masked);
}

TYPED_TEST(CausalLinear, Strides) {
  CheckProblem<TypeParam>({.shape = {2, 66, 2, 16, 16}, .state = true, .padding = 24});
}

// Results must be right in every order of threads.
TYPED_TEST(CausalLinear, OrdersOfThreads) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    CheckProblem<TypeParam>({.shape = {1, 130, 1, 32, 32}, .state = true, .seed = seed});
    CheckProblem<TypeParam>({.shape = {1, 130, 1, 16, 16}, .segments = 2, .seed = seed});
  }
}

}  // namespace
}  // namespace linnet::kernels::cuda
