// Gated recurrences by the kernels of kernels/cuda.
#include <c10/cuda/CUDAGuard.h>

#include "linnet/kernels/cuda/scan.h"
#include "linnet/ops/cuda.h"
#include "linnet/ops/cuda_view.h"
#include "linnet/ops/scan_function.h"

namespace linnet::ops {
namespace {

using kernels::ScanOptions;
using kernels::ScanShape;
using torch::Tensor;

// The kernels of a GPU (scan_function.h).
class GpuScan {
 public:
  explicit GpuScan(const Tensor& like)
      : guard_(like.device()), stream_(StreamOf(like)), floats_(like.options()) {}

  // Rows of one element need no alignment.
  static Tensor Rows(const Tensor& x) { return x.size(-1) == 1 ? DenseRows(x) : AlignedRows(x); }
  static size_t Kept(const ScanShape& shape, const ScanOptions& options) {
    return kernels::cuda::PlanScan(shape, options).kept;
  }
  void Forward(const ScanShape& shape, const ScanOptions& options,
               const kernels::ScanForwardArgs& args) const {
    kernels::cuda::ScanForward(kernels::cuda::PlanScan(shape, options), args, stream_);
  }
  void Backward(const ScanShape& shape, const ScanOptions& options,
                const kernels::ScanBackwardArgs& args) const {
    const kernels::cuda::ScanPlan plan = kernels::cuda::PlanScan(shape, options);
    const Tensor scratch = torch::empty({static_cast<int64_t>(plan.scratch)}, floats_);
    kernels::cuda::ScanBackward(plan, args, scratch.data_ptr<float>(), stream_);
  }
  void Forward(const kernels::ChannelScanShape& shape, const kernels::ChannelScanArgs& args) const {
    kernels::cuda::ChannelScanForward(shape, args, stream_);
  }
  void Backward(const kernels::ChannelScanShape& shape,
                const kernels::ChannelScanBackwardArgs& args) const {
    kernels::cuda::ChannelScanBackward(shape, args, stream_);
  }

 private:
  const c10::cuda::CUDAGuard guard_;
  const kernels::cuda::Stream stream_;
  const c10::TensorOptions floats_;
};

}  // namespace

bool CudaScanTakes(const ScanInputs& in, const ScanOptions& options) {
  const auto size = [](const Tensor& x, int64_t axis) { return static_cast<size_t>(x.size(axis)); };
  return kernels::cuda::SupportsScan({.dim = size(in.q, 3), .value_dim = size(in.v, 3)}, options);
}

Tensor CudaScan(const ScanInputs& in, const ScanOptions& options, const Tensor& lengths,
                Tensor* state) {
  return ApplyScan<GpuScan>(in, options, lengths, state);
}

Tensor CudaChannelScan(const Tensor& x, const Tensor& g, const Tensor& lengths, Tensor* state) {
  return ApplyChannelScan<GpuScan>(x, g, lengths, state);
}

}  // namespace linnet::ops
