#include "linnet/kernels/matmul.h"

#include <omp.h>

#include <dnnl.hpp>
#include <map>
#include <tuple>

#include "linnet/error.h"

namespace linnet::kernels {
namespace {

// Each thread keeps up to this many oneDNN primitives for reuse: creating a primitive compiles code
// for its shape.
constexpr size_t kMaxKept = 256;

dnnl::engine& Cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type TypeOf(MatType type) {
  return type == MatType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// stride: distance between rows in memory (of the transpose, if transposed); 0: dense
dnnl::memory::desc Matrix(size_t rows, size_t columns, MatType type, bool transposed,
                          size_t stride) {
  using Dim = dnnl::memory::dim;
  const auto r = static_cast<Dim>(rows), c = static_cast<Dim>(columns);
  const Dim apart = stride != 0 ? static_cast<Dim>(stride) : transposed ? r : c;
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, apart} : dnnl::memory::dims{apart, 1};
  return {{r, c}, TypeOf(type), strides};
}

struct Primitive {
  dnnl::memory::desc a, b, bias, c;
  dnnl::matmul matmul;
};

struct Variant {
  MatType operands = MatType::kF32, result = MatType::kF32;
  bool a_transposed = false, b_transposed = false, with_bias = false, accumulate = false;
  size_t a_stride = 0, b_stride = 0, c_stride = 0;
  int threads = 1;  // number of threads oneDNN splits the work for

  auto operator<=>(const Variant&) const = default;
};
using Key = std::tuple<size_t, size_t, size_t, Variant>;

Primitive Make(const MatMulShape& shape, const Variant& variant) {
  Primitive made;
  made.a = Matrix(shape.m, shape.k, variant.operands, variant.a_transposed, variant.a_stride);
  made.b = Matrix(shape.k, shape.n, variant.operands, variant.b_transposed, variant.b_stride);
  made.bias = Matrix(1, shape.n, MatType::kF32, false, 0);
  made.c = Matrix(shape.m, shape.n, variant.result, false, variant.c_stride);
  const auto description = variant.with_bias ? dnnl::matmul::desc(made.a, made.b, made.bias, made.c)
                                             : dnnl::matmul::desc(made.a, made.b, made.c);
  dnnl::primitive_attr attributes;
  if (variant.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  made.matmul = dnnl::matmul(dnnl::matmul::primitive_desc(description, attributes, Cpu()));
  return made;
}

// The number of threads for a product. In a parallel region, the product runs on the calling thread
// alone, but oneDNN would still split the work for as many threads as outside the region. So this
// function sets the OpenMP thread count to 1; the setting lasts until the region ends.
int ThreadsHere() {
  if (!omp_in_parallel()) return omp_get_max_threads();
  if (omp_get_max_threads() != 1) omp_set_num_threads(1);
  return 1;
}

// Whether oneDNN uses the instructions of `isa`.
bool HasIsa(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

}  // namespace

size_t MatMulStride(size_t n, MatType type) {
  constexpr size_t kLine = 64, kAliased = 512;  // bytes
  const size_t size = type == MatType::kBf16 ? 2 : 4;
  if (n * size % kAliased != 0) return n;
  // Other code of oneDNN may require dense matrices.
  const bool avx2 = HasIsa(dnnl::cpu_isa::avx2) && !HasIsa(dnnl::cpu_isa::avx512_core);
  return avx2 ? n + kLine / size : n;
}

bool MatMulSupports(MatType operands, MatType result) {
  // Without native bf16 instructions, oneDNN falls back to converting the operands, which is slower
  // than multiplying matrices in fp32.
  if (operands == MatType::kBf16 && !HasIsa(dnnl::cpu_isa::avx512_core_bf16)) return false;
  try {
    Make({16, 16, 16}, {.operands = operands, .result = result});
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

void MatMul(const MatMulShape& shape, const MatOperand& a, const MatOperand& b, const float* bias,
            const MatResult& c) {
  thread_local std::map<Key, Primitive> kept;
  const Variant variant{.operands = a.type,
                        .result = c.type,
                        .a_transposed = a.transposed,
                        .b_transposed = b.transposed,
                        .with_bias = bias != nullptr,
                        .accumulate = c.accumulate,
                        .a_stride = a.stride,
                        .b_stride = b.stride,
                        .c_stride = c.stride,
                        .threads = ThreadsHere()};
  const Key key{shape.m, shape.n, shape.k, variant};
  try {
    auto found = kept.find(key);
    if (found == kept.end()) {
      if (kept.size() >= kMaxKept) kept.clear();
      found = kept.emplace(key, Make(shape, variant)).first;
    }
    Primitive& primitive = found->second;
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, Cpu(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(primitive.a, a.data)},
        {DNNL_ARG_WEIGHTS, memory(primitive.b, b.data)},
        {DNNL_ARG_DST, memory(primitive.c, c.data)}};
    if (bias != nullptr) arguments[DNNL_ARG_BIAS] = memory(primitive.bias, bias);
    thread_local dnnl::stream stream(Cpu());
    primitive.matmul.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw RuntimeError("a matrix product of ", shape.m, " x ", shape.k, " x ", shape.n,
                       " failed in oneDNN (", error.message, ")");
  }
}

}  // namespace linnet::kernels
