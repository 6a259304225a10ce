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

dnnl::memory::desc Matrix(size_t rows, size_t columns, MatType type, bool transposed) {
  const auto r = static_cast<dnnl::memory::dim>(rows), c = static_cast<dnnl::memory::dim>(columns);
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, r} : dnnl::memory::dims{c, 1};
  return {{r, c}, TypeOf(type), strides};
}

struct Primitive {
  dnnl::memory::desc a, b, bias, c;
  dnnl::matmul matmul;
};

struct Variant {
  MatType operands = MatType::kF32, result = MatType::kF32;
  bool a_transposed = false, b_transposed = false, with_bias = false, accumulate = false;
  int threads = 1;  // number of threads oneDNN splits the work for

  auto operator<=>(const Variant&) const = default;
};
using Key = std::tuple<size_t, size_t, size_t, Variant>;

Primitive Make(const MatMulShape& shape, const Variant& variant) {
  Primitive made;
  made.a = Matrix(shape.m, shape.k, variant.operands, variant.a_transposed);
  made.b = Matrix(shape.k, shape.n, variant.operands, variant.b_transposed);
  made.bias = Matrix(1, shape.n, MatType::kF32, false);
  made.c = Matrix(shape.m, shape.n, variant.result, false);
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

}  // namespace

bool MatMulSupports(MatType operands, MatType result) {
  // Without native bf16 instructions, oneDNN falls back to converting the operands, which is slower
  // than multiplying matrices in fp32.
  constexpr auto kBf16Isa = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  if (operands == MatType::kBf16 &&
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kBf16Isa) != kBf16Isa) {
    return false;
  }
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
