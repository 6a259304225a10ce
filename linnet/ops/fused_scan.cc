#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/scan_function.h"

namespace linnet::ops {
namespace {

using kernels::ScanOptions;
using kernels::ScanShape;
using torch::Tensor;

// The kernels of the CPU (scan_function.h).
class CpuScan {
 public:
  explicit CpuScan(const Tensor&) {}

  static Tensor Rows(const Tensor& x) { return DenseRows(x); }
  static size_t Kept(const ScanShape& shape, const ScanOptions& options) {
    return kernels::ScanKept(shape, options);
  }
  void Forward(const ScanShape& shape, const ScanOptions& options,
               const kernels::ScanForwardArgs& args) const {
    const ThreadScratch scratch(kernels::ScanForwardScratch(shape, options));
    kernels::ScanForward(shape, options, args, scratch, AtParallelFor);
  }
  void Backward(const ScanShape& shape, const ScanOptions& options,
                const kernels::ScanBackwardArgs& args) const {
    const ThreadScratch scratch(kernels::ScanBackwardScratch(shape, options));
    kernels::ScanBackward(shape, options, args, scratch, AtParallelFor);
  }
  void Forward(const kernels::ChannelScanShape& shape, const kernels::ChannelScanArgs& args) const {
    kernels::ChannelScanForward(shape, args, AtParallelFor);
  }
  void Backward(const kernels::ChannelScanShape& shape,
                const kernels::ChannelScanBackwardArgs& args) const {
    kernels::ChannelScanBackward(shape, args, AtParallelFor);
  }
};

}  // namespace

Tensor FusedScan(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
                 Tensor* state) {
  return ApplyScan<CpuScan>(in, options, lengths, state);
}

Tensor FusedChannelScan(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor* state) {
  return ApplyChannelScan<CpuScan>(x, g, lengths, state);
}

}  // namespace linnet::ops
