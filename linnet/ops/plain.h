// Every operation in ops/ has two forms. The fused form runs a kernel of kernels/, for fp32 (linear
// attention: also bf16) on the CPU. The plain form is composed of unfused libtorch operations, for
// any device and type. Some operations have a third form over kernels/cuda, on a GPU: causal linear
// attention in fp32 and bf16, scans in fp32; the plain form of layer_rows.h in bf16 uses
// kernels/cuda for norms and sums. The device and type of the tensors select the form; tests and
// benchmarks can request the plain form.
//
//   const Tensor fused = Linear(x, weight, bias, Precision::kFp32);
//   PlainGuard plain;
//   const Tensor same = Linear(x, weight, bias, Precision::kFp32);
#ifndef LINNET_OPS_PLAIN_H_
#define LINNET_OPS_PLAIN_H_

#include <torch/types.h>

namespace linnet::ops {

// While a PlainGuard exists, the operations of its thread run in their plain form.
class PlainGuard {
 public:
  PlainGuard() : before_(asked_) { asked_ = true; }
  ~PlainGuard() { asked_ = before_; }
  PlainGuard(const PlainGuard&) = delete;
  PlainGuard& operator=(const PlainGuard&) = delete;

  // Whether a PlainGuard exists in this thread.
  static bool asked() { return asked_; }

 private:
  static thread_local inline bool asked_ = false;
  bool before_;
};

// A plain-only build (docs/gpu.md) needs only libtorch and has no fused forms.
#ifdef LINNET_PLAIN
inline constexpr bool kHasFused = false;
#else
inline constexpr bool kHasFused = true;
#endif

// Whether an operation on x runs in its fused form.
inline bool Fused(const torch::Tensor& x) {
  return kHasFused && x.device().is_cpu() && x.scalar_type() == torch::kFloat32 && x.numel() > 0 &&
         !PlainGuard::asked();
}

// The same for linear and causal linear attention, whose kernels also take bf16.
inline bool FusedAttention(const torch::Tensor& x) {
  return Fused(x) || (kHasFused && x.device().is_cpu() && x.scalar_type() == torch::kBFloat16 &&
                      x.numel() > 0 && !PlainGuard::asked());
}

// Whether the build has kernels/cuda (option LINNET_CUDA).
#ifdef LINNET_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// Whether an operation that has a kernel in kernels/cuda can run it on x.
inline bool CudaAttention(const torch::Tensor& x) {
  return kHasCuda && x.is_cuda() && x.numel() > 0 && !PlainGuard::asked() &&
         (x.scalar_type() == torch::kFloat32 || x.scalar_type() == torch::kBFloat16);
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_PLAIN_H_
