// Code that `linnet bench scan` shares between the CPU and a GPU: the options, the inputs, and the
// check against the reference.
#ifndef BENCH_SCAN_H_
#define BENCH_SCAN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/scan_policies.h"
#include "linnet/base/aligned.h"
#include "linnet/kernels/scan.h"

namespace linnet::bench {

struct ScanBench : BenchOptions {
  size_t batch = 0, heads = 8, dim = 32, min_n = 512, max_n = 65536;  // batch: 0 means the default
  std::string layout = "head", device = "cpu";
  std::vector<std::string> policies;
};

// The inputs of a problem for one policy, in the memory of the CPU.
class ScanData {
 public:
  using Buffer = AlignedBuffer<float>;

  ScanData(const ScanBench& options, const ScanPolicy& policy, size_t length);

  template <typename T>
  kernels::Strided<T> View(T* data, size_t width) const {
    if (width == 0) return {};
    return rows_ ? kernels::RowMajor<T>(data, shape.length, shape.heads, width)
                 : kernels::HeadMajor<T>(data, shape.length, shape.heads, width);
  }
  // data(i): tensor i of `in`, or its gradient.
  template <typename T, class Data>
  kernels::ScanTensors<T> Tensors(const Data& data) const {
    const auto view = [&](size_t i, size_t width) { return View<T>(data(i), width); };
    return {view(0, shape.dim),    view(1, shape.dim),    view(2, shape.value_dim),
            view(3, widths.decay), view(4, widths.erase), view(5, widths.write)};
  }

  // Compares the first 4096 outputs of a head with the reference, and with `grad`, the gradients of
  // `in`, also these, if the sequence has at most 512 positions. place: sequence * heads + head.
  // Throws RuntimeError if the results differ.
  void Check(size_t place, const float* out, const float* const* grad) const;

  const kernels::ScanShape shape;
  const kernels::ScanOptions options;
  const kernels::ScanWidths widths;
  Buffer in[6];  // q, k, v, decay, erase, write
  Buffer grad_out;

 private:
  void Prepare();
  void Normalize(Buffer& rows) const;
  std::vector<double> Head(const float* x, size_t width, size_t place, size_t length) const;

  const std::string name_;  // of the policy
  const bool rows_;         // layout (N, H, D); otherwise (H, N, D)
};

// Runs the benchmark on a GPU (scan_cuda.cc). Throws InputError in a build without CUDA.
void RunScanOnGpu(const ScanBench& options);

}  // namespace linnet::bench

#endif  // BENCH_SCAN_H_
