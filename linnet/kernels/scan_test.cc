#include "linnet/kernels/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "linnet/kernels/scan_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

constexpr ScanDecay kDecays[] = {ScanDecay::kNone, ScanDecay::kHead, ScanDecay::kKey};
constexpr ScanWrite kWrites[] = {ScanWrite::kAdd, ScanWrite::kDelta, ScanWrite::kTwoSided,
                                 ScanWrite::kRwkv7};

// Calls body(options) for each combination of policies.
template <class Body>
void ForPolicies(const Body& body) {
  for (ScanDecay decay : kDecays) {
    for (ScanWrite write : kWrites) {
      for (bool normalize : {false, true}) {
        if (normalize && write != ScanWrite::kAdd) continue;
        SCOPED_TRACE(testing::Message()
                     << "decay " << int{static_cast<uint8_t>(decay)} << " write "
                     << int{static_cast<uint8_t>(write)} << (normalize ? " normalized" : ""));
        body(ScanOptions{decay, write, normalize, 0.5f, 1e-6f});
      }
    }
  }
}

Doubles ToDoubles(const Floats& x) { return Doubles(x.begin(), x.end()); }

// Verifies the reference's own gradients against central differences of its forward, with an
// initial state, a gradient of the final one, and a masked position.
TEST(ScanRef, GradientsMatchCentralDifferences) {
  const size_t length = 6, d = 3, m = 2;
  ForPolicies([&](const ScanOptions& options) {
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

}  // namespace
}  // namespace linnet::kernels
