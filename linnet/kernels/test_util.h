// For tests of kernels: a suite that runs on each available instruction set, and random numbers.
#ifndef LINNET_KERNELS_TEST_UTIL_H_
#define LINNET_KERNELS_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "linnet/kernels/isa.h"
#include "linnet/rng.h"

namespace linnet::kernels {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// Normally distributed numbers, the same in every run.
inline Floats Random(size_t n, uint64_t stream, float deviation = 1, float mean = 0) {
  Philox rng(11, stream);
  Floats x(n);
  for (float& value : x) value = mean + deviation * rng.Normal();
  return x;
}

inline Doubles Wide(const Floats& x) { return {x.begin(), x.end()}; }

// A name that GoogleTest accepts: "AVX512" for "AVX-512".
inline std::string TestName(std::string name) {
  std::erase(name, '-');
  return name;
}

// A test's parameter is the name of the instruction set on which it runs.
class OnEachIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ForceIsa(GetParam()); }
  void TearDown() override { ForceIsa(""); }
};

}  // namespace linnet::kernels

// Defines the fixture of TEST_P(Suite, ...), which runs on each available instruction set.
#define LINNET_SUITE_ON_EACH_ISA(Suite)                                    \
  class Suite : public OnEachIsa {};                                       \
  INSTANTIATE_TEST_SUITE_P(Isa, Suite, testing::ValuesIn(AvailableIsas()), \
                           [](const auto& info) { return TestName(info.param); })

#endif  // LINNET_KERNELS_TEST_UTIL_H_
