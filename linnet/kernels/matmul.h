// C = A B (+ bias) through oneDNN, for fp32 or bf16 matrices that change at every call.
//
//   // y = x W^T + b: x [rows, in] and W [out, in] in bf16, b and y in fp32
//   MatMul({.m = rows, .n = out, .k = in}, {x, MatType::kBf16},
//          {weight, MatType::kBf16, /*transposed=*/true}, bias, {y, MatType::kF32});
//
// Accumulates in fp32 for all types. Uses the calling thread's number of OpenMP threads, as set by
// omp_set_num_threads() or libtorch's at::set_num_threads(); within an OpenMP region, uses the
// calling thread alone. The order of summation is up to oneDNN: unlike in the other kernels, the
// last bits may depend on the number of threads. For constant weights and reproducible bits see
// linear.h.
#ifndef LINNET_KERNELS_MATMUL_H_
#define LINNET_KERNELS_MATMUL_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

enum class MatType : uint8_t { kF32, kBf16 };

struct MatMulShape {
  size_t m = 0, n = 0, k = 0;  // C is [m, n], A [m, k], B [k, n]
};

// A row-major matrix. If `transposed`, memory holds the transpose of the operand. `stride` is the
// distance between rows in memory, in elements; 0 means that they are dense. See MatMulStride().
struct MatOperand {
  const void* data = nullptr;
  MatType type = MatType::kF32;
  bool transposed = false;
  size_t stride = 0;
};
struct MatResult {
  void* data = nullptr;
  MatType type = MatType::kF32;
  bool accumulate = false;  // C += A B instead of C = A B; the type must be fp32
  size_t stride = 0;        // between rows, in elements; 0: dense
};

// The stride that suits rows of n elements as an operand of MatMul() or as its result: n, or a
// little more where dense rows would be slow. If rows are a multiple of 512 bytes apart, elements
// below each other share few sets of the first-level cache. With AVX2, oneDNN then multiplies a
// transposed A by B at as little as 0.4 times its usual rate.
size_t MatMulStride(size_t n, MatType type);

// The MatType of a matrix of T (float or BFloat16).
template <typename T>
constexpr MatType MatTypeOf() {
  return sizeof(T) == sizeof(BFloat16) ? MatType::kBf16 : MatType::kF32;
}

// Whether this processor has instructions that multiply matrices of type `operands` into a matrix
// of type `result`.
bool MatMulSupports(MatType operands, MatType result);

// bias is [n] in fp32, or null. A and B have the same type. Dimensions are at least 1. Throws
// RuntimeError if oneDNN cannot multiply these types on this processor, or if memory runs out.
void MatMul(const MatMulShape& shape, const MatOperand& a, const MatOperand& b, const float* bias,
            const MatResult& c);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MATMUL_H_
