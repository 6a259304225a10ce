#include "linnet/kernels/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest even
}
float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// A random matrix in fp32 or bf16; [rows, columns] is its logical shape.
struct TestMatrix {
  TestMatrix(size_t rows, size_t columns, MatType type, bool transposed, uint64_t stream,
             size_t padding)
      : rows(rows),
        columns(columns),
        type(type),
        transposed(transposed),
        stride((transposed ? rows : columns) + padding) {
    Philox rng(3, stream);
    for (size_t i = 0; i < stride * (transposed ? columns : rows); ++i) {
      const float value = rng.Normal();
      wide.push_back(value);
      narrow.push_back(ToBf16(value));
    }
  }
  double At(size_t r, size_t c) const {
    const size_t i = transposed ? c * stride + r : r * stride + c;
    return type == MatType::kBf16 ? FromBf16(narrow[i]) : wide[i];
  }
  MatOperand operand() const {
    const void* data = type == MatType::kBf16 ? static_cast<const void*>(narrow.data())
                                              : static_cast<const void*>(wide.data());
    const size_t dense = transposed ? rows : columns;
    return {data, type, transposed, stride == dense ? 0 : stride};
  }
  size_t rows, columns;
  MatType type;
  bool transposed;
  size_t stride;
  std::vector<float> wide;       // the elements in fp32
  std::vector<uint16_t> narrow;  // the elements in bf16
};

void Compare(const MatMulShape& shape, MatType operands, MatType result, bool a_transposed,
             bool b_transposed, bool with_bias, size_t padding) {
  const TestMatrix a(shape.m, shape.k, operands, a_transposed, 0, padding);
  const TestMatrix b(shape.k, shape.n, operands, b_transposed, 1, 2 * padding);
  const TestMatrix bias(1, shape.n, MatType::kF32, false, 2, 0);
  const size_t stride = shape.n + padding;
  std::vector<float> wide(shape.m * stride, 7.0f);
  std::vector<uint16_t> narrow(shape.m * stride, 7);
  const bool is_narrow = result == MatType::kBf16;
  MatMul(shape, a.operand(), b.operand(), with_bias ? bias.wide.data() : nullptr,
         {is_narrow ? static_cast<void*>(narrow.data()) : wide.data(), result,
          /*accumulate=*/false, padding == 0 ? 0 : stride});
  const double sums = std::sqrt(static_cast<double>(shape.k));
  for (size_t i = 0; i < shape.m; ++i) {
    for (size_t j = 0; j < shape.n; ++j) {
      double want = with_bias ? bias.At(0, j) : 0;
      for (size_t p = 0; p < shape.k; ++p) want += a.At(i, p) * b.At(p, j);
      const double got = is_narrow ? FromBf16(narrow[i * stride + j]) : wide[i * stride + j];
      ASSERT_NEAR(got, want, is_narrow ? 0.005 * (std::abs(want) + 0.1) : 2e-6 * (sums + 1) * 4)
          << i << ", " << j << " of " << shape.m << " x " << shape.k << " x " << shape.n;
    }
    for (size_t j = shape.n; j < stride; ++j) {  // memory between rows stays unchanged
      ASSERT_EQ(is_narrow ? narrow[i * stride + j] : wide[i * stride + j], 7);
    }
  }
}

void CompareAll(MatType operands, MatType result) {
  const MatMulShape shapes[] = {{1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {64, 16, 32}, {130, 30, 128}};
  for (const MatMulShape& shape : shapes) {
    for (const int how : {0, 1, 2, 3, 4, 5, 6, 7}) {
      Compare(shape, operands, result, how & 1, how & 2, how & 4, /*padding=*/0);
      Compare(shape, operands, result, how & 1, how & 2, how & 4, /*padding=*/5);
    }
  }
}

TEST(MatMul, MatchesTheDefinition) { CompareAll(MatType::kF32, MatType::kF32); }

TEST(MatMul, MatchesTheDefinitionFromBf16) {
  if (!MatMulSupports(MatType::kBf16, MatType::kF32)) {
    GTEST_SKIP() << "this processor has no bf16 instructions";
  }
  CompareAll(MatType::kBf16, MatType::kF32);
  CompareAll(MatType::kBf16, MatType::kBf16);
}

}  // namespace
}  // namespace linnet::kernels
