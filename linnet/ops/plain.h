// Every operation here has two forms: a fused one over kernels/, for fp32 (linear attention: also
// bf16) on the CPU, and a plain one composed of libtorch's own operations, for any device and type.
// Causal linear attention has a third one over kernels/cuda, for fp32 and bf16 on a GPU; the rows
// of layer_rows.h in bf16 use kernels/cuda for norms and sums there. Device and type of the tensors
// decide which form runs; tests and benchmarks can request the plain one.
//
//   const Tensor fused = Linear(x, weight, bias, Precision::kFp32);
//   PlainGuard plain;
//   const Tensor same = Linear(x, weight, bias, Precision::kFp32);
#ifndef LINNET_OPS_PLAIN_H_
#define LINNET_OPS_PLAIN_H_

#include <torch/types.h>

namespace linnet::ops {

// While a PlainGuard lives, this thread's operations run in their plain form.
class PlainGuard {
 public:
  PlainGuard() : before_(asked_) { asked_ = true; }
  ~PlainGuard() { asked_ = before_; }
  PlainGuard(const PlainGuard&) = delete;
  PlainGuard& operator=(const PlainGuard&) = delete;

  static bool asked() { return asked_; }

 private:
  static thread_local inline bool asked_ = false;
  bool before_;
};

// A build that has only libtorch (docs/gpu.md) contains the plain forms alone.
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

// The same for (causal) linear attention over x, whose kernels also take bf16.
inline bool FusedAttention(const torch::Tensor& x) {
  return Fused(x) || (kHasFused && x.device().is_cpu() && x.scalar_type() == torch::kBFloat16 &&
                      x.numel() > 0 && !PlainGuard::asked());
}

// A build with kernels/cuda (option LINNET_CUDA).
#ifdef LINNET_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// Whether an operation on x can run its kernel of kernels/cuda.
inline bool CudaAttention(const torch::Tensor& x) {
  return kHasCuda && x.is_cuda() && x.numel() > 0 && !PlainGuard::asked() &&
         (x.scalar_type() == torch::kFloat32 || x.scalar_type() == torch::kBFloat16);
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_PLAIN_H_
