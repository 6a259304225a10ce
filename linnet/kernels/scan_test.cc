#include "linnet/kernels/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "linnet/kernels/scan_test_util.h"

namespace linnet::kernels {
namespace {

// Verifies the reference's own gradients against central differences of its forward, with an
// initial state, a gradient of the final state, and a masked position.
TEST(ScanRef, GradientsMatchCentralDifferences) {
  const size_t length = 6, d = 3, m = 2;
  ForScanPolicies([&](const ScanOptions& options) {
    const ScanWidths width(options, d, m);
    ScanSequence x{.length = length, .dim = d, .value_dim = m, .valid = 5};
    x.options = options;
    x.q = ToDoubles(Random(length * d, 1)), x.k = ToDoubles(Random(length * d, 2));
    x.v = ToDoubles(Random(length * m, 3)), x.decay = ToDoubles(Random(length * width.decay, 4));
    x.erase = ToDoubles(Random(length * width.erase, 5));
    x.write = ToDoubles(Random(length * width.write, 6));
    x.s0 = ToDoubles(Random(d * m, 7)), x.z0 = ToDoubles(Random(d, 8));
    for (double& g : x.decay) g = -std::abs(g);
    if (options.normalize) {  // otherwise a denominator may vanish
      for (Doubles* y : {&x.q, &x.k, &x.z0}) {
        for (double& value : *y) value = std::abs(value) + 0.1;
      }
    }
    const Doubles grad_out = ToDoubles(Random(length * m, 9));
    const Doubles grad_s = ToDoubles(Random(d * m, 10));
    const Doubles grad_z = options.normalize ? ToDoubles(Random(d, 11)) : Doubles();
    const auto loss = [&] {
      const ScanRef ref(x);
      double sum = 0;
      for (size_t i = 0; i < length * m; ++i) sum += ref.out()[i] * grad_out[i];
      for (size_t i = 0; i < d * m; ++i) sum += ref.s()[i] * grad_s[i];
      for (size_t i = 0; i < grad_z.size(); ++i) sum += ref.z()[i] * grad_z[i];
      return sum;
    };
    const ScanSequence grad = ScanRef(x).Gradients(grad_out, grad_s, grad_z);
    const auto check = [&](const char* name, Doubles& values, const Doubles& gradient) {
      ASSERT_EQ(values.size(), gradient.size()) << name;
      for (size_t i = 0; i < values.size(); ++i) {
        const double at = values[i], h = 1e-5;
        values[i] = at + h;
        const double up = loss();
        values[i] = at - h;
        const double down = loss();
        values[i] = at;
        EXPECT_NEAR(gradient[i], (up - down) / (2 * h), 1e-7) << name << " " << i;
      }
    };
    check("q", x.q, grad.q);
    check("k", x.k, grad.k);
    check("v", x.v, grad.v);
    check("decay", x.decay, grad.decay);
    check("erase", x.erase, grad.erase);
    check("write", x.write, grad.write);
    check("s0", x.s0, grad.s0);
    if (options.normalize) check("z0", x.z0, grad.z0);
  });
}

LINNET_SUITE_ON_EACH_ISA(Scan);

struct Size {
  size_t length, dim, value_dim;
};
constexpr Size kSizes[] = {{0, 3, 3},     {1, 1, 1},     {15, 16, 3},  {16, 3, 16},
                           {17, 32, 33},  {63, 1, 64},   {64, 64, 1},  {65, 33, 32},
                           {130, 16, 16}, {257, 32, 32}, {257, 64, 33}};

TEST_P(Scan, ForwardMatchesReference) {
  ForScanPolicies([&](const ScanOptions& options) {
    size_t offset = 0;
    for (const Size& size : kSizes) {
      for (ScanStrength strength : {ScanStrength::kMild, ScanStrength::kStrong}) {
        const ScanShape shape{size.length < 100 ? 2u : 1u, size.length, 2, size.dim,
                              size.value_dim};
        SCOPED_TRACE(testing::Message() << "L " << size.length << " D " << size.dim << " M "
                                        << size.value_dim << " strength " << int(strength));
        ScanProblem x = MakeScan(shape, options, strength);
        if (offset % 3 == 2) x.lengths = {static_cast<int64_t>(size.length) - 7, 5};
        const ScanResults got = RunScan(x, 1, SerialFor, /*backward=*/false, offset++ % 4);
        const ScanRefResults want = RunScanRef(x, /*backward=*/false);
        EXPECT_LT(ScanDifference(got.out, want.out), 1e-5);
        EXPECT_LT(ScanDifference(got.s, want.s), 1e-5);
        EXPECT_LT(ScanDifference(got.z, options.normalize ? want.z : ToDoubles(x.in.z0)), 1e-5);
      }
    }
  });
}

TEST_P(Scan, BackwardMatchesReference) {
  ForScanPolicies([&](const ScanOptions& options) {
    size_t offset = 0;
    for (const Size& size : kSizes) {
      for (ScanStrength strength : {ScanStrength::kMild, ScanStrength::kStrong}) {
        const ScanShape shape{size.length < 100 ? 2u : 1u, size.length, 2, size.dim,
                              size.value_dim};
        SCOPED_TRACE(testing::Message() << "L " << size.length << " D " << size.dim << " M "
                                        << size.value_dim << " strength " << int(strength));
        ScanProblem x = MakeScan(shape, options, strength);
        if (offset % 3 == 2) x.lengths = {static_cast<int64_t>(size.length) - 7, 5};
        const ScanValues<float> got =
            RunScan(x, 1, SerialFor, /*backward=*/true, offset++ % 4).grad;
        const ScanValues<double> want = RunScanRef(x).grad;
        // With one key channel, q cancels in the quotient: its gradient is only rounding errors.
        const bool cancels = options.normalize && size.dim == 1;
        EXPECT_LT(ScanDifference(got.q, want.q), cancels ? 1e-3 : 1e-5);
        EXPECT_LT(ScanDifference(got.k, want.k), 1e-5);
        EXPECT_LT(ScanDifference(got.v, want.v), 1e-5);
        EXPECT_LT(ScanDifference(got.decay, want.decay), 1e-5);
        EXPECT_LT(ScanDifference(got.erase, want.erase), 1e-5);
        EXPECT_LT(ScanDifference(got.write, want.write), 1e-5);
        EXPECT_LT(ScanDifference(got.s0, want.s0), 1e-5);
        if (!options.normalize) continue;
        EXPECT_LT(ScanDifference(got.z0, want.z0), 1e-5);
      }
    }
  });
}

}  // namespace
}  // namespace linnet::kernels
