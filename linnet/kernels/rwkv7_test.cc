#include "linnet/kernels/rwkv7.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(Rwkv7KernelTest);

constexpr size_t kHeads = 3, kGap = 2;  // heads of strided arrays are kGap floats further apart
constexpr float kUntouched = 7;

void ExpectNear(const Floats& got, const Doubles& want, size_t n) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 3e-6 * (1 + std::abs(want[i]))) << i << " of " << n;
  }
  ASSERT_EQ(got.size(), want.size() + 1);
  ASSERT_EQ(got.back(), kUntouched) << n;
}

// An array with one more number, which kernels must not touch.
Floats Guarded(Floats x) {
  x.push_back(kUntouched);
  return x;
}

TEST_P(Rwkv7KernelTest, KeysMatchTheirFormula) {
  for (size_t dim = 1; dim <= 67; dim += dim < 20 ? 1 : 11) {
    const size_t size = kHeads * dim, stride = dim + kGap;
    Floats key = Random(kHeads * stride, 1);
    for (size_t i = 0; i < dim; ++i) key[stride + i] = 0;  // no length to divide by
    const Floats removal = Random(size, 2), key_rate = Random(size, 3), rate = Random(size, 4);
    Floats k = Guarded(Floats(size)), erase = k, write = Guarded(rate);
    Rwkv7Keys({kHeads, dim, key.data(), stride, removal.data(), key_rate.data(), 1e-12f, k.data(),
               erase.data(), write.data()});
    Doubles want_k, want_erase, want_write;
    for (size_t h = 0; h < kHeads; ++h) {
      double squares = 0;
      const auto removed = [&](size_t i) {
        return static_cast<double>(key[h * stride + i]) * removal[h * dim + i];
      };
      for (size_t i = 0; i < dim; ++i) squares += removed(i) * removed(i);
      for (size_t i = 0; i < dim; ++i) {
        const double u = removed(i) / std::max(std::sqrt(squares), 1e-12), a = rate[h * dim + i];
        want_k.push_back(key[h * stride + i] * (1 + (a - 1) * key_rate[h * dim + i]));
        want_erase.push_back(-u);
        want_write.push_back(u * a);
      }
    }
    ExpectNear(k, want_k, dim);
    ExpectNear(erase, want_erase, dim);
    ExpectNear(write, want_write, dim);
  }
}

TEST_P(Rwkv7KernelTest, OutputsMatchTheirFormula) {
  for (size_t dim = 1; dim <= 67; dim += dim < 20 ? 1 : 11) {
    const size_t value_dim = dim % 5 == 0 ? dim : dim + 3, stride = dim + kGap;
    const size_t keys = kHeads * dim, values = kHeads * value_dim;
    const Floats r = Random(kHeads * stride, 1), k = Random(keys, 2), bonus = Random(keys, 3);
    const Floats v = Random(values, 4), gate = Random(values, 5), weight = Random(values, 6);
    const Floats bias = Random(values, 7), x = Random(values, 8, 2, 1);
    Floats out = Guarded(x);
    Rwkv7Output({kHeads, dim, value_dim, r.data(), stride, k.data(), bonus.data(), v.data(),
                 gate.data(), weight.data(), bias.data(), 64e-5f, out.data()});
    Doubles want;
    for (size_t h = 0; h < kHeads; ++h) {
      double product = 0, mean = 0, variance = 64e-5;
      for (size_t i = 0; i < dim; ++i) {
        product += static_cast<double>(r[h * stride + i]) * k[h * dim + i] * bonus[h * dim + i];
      }
      const auto width = static_cast<double>(value_dim);
      for (size_t m = 0; m < value_dim; ++m) mean += x[h * value_dim + m] / width;
      for (size_t m = 0; m < value_dim; ++m) {
        variance += (x[h * value_dim + m] - mean) * (x[h * value_dim + m] - mean) / width;
      }
      for (size_t at = h * value_dim; at < (h + 1) * value_dim; ++at) {
        const double y = (x[at] - mean) / std::sqrt(variance) * weight[at] + bias[at];
        want.push_back((y + product * v[at]) * gate[at]);
      }
    }
    ExpectNear(out, want, dim);
  }
}

}  // namespace
}  // namespace linnet::kernels
