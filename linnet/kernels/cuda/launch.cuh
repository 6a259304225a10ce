// Error checks and launches of kernels (private to kernels/cuda).
#ifndef LINNET_KERNELS_CUDA_LAUNCH_CUH_
#define LINNET_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include "linnet/kernels/cuda/error.h"

namespace linnet::kernels::cuda {

// Throws CudaError unless `error` is cudaSuccess. `what` names the failed operation or kernel.
inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw CudaError(std::string("CUDA error in ") + what + ": " + cudaGetErrorString(error));
  }
}

// Launches a kernel, unless the grid is empty. If the kernel needs more than 48 kB of dynamic
// shared memory, raises its limit first.
template <typename... Parameters, typename... Args>
void Launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
            size_t shared, cudaStream_t stream, const Args&... args) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  if (shared > 48 * 1024) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          name);
  }
  kernel<<<blocks, threads, shared, stream>>>(args...);
  Check(cudaGetLastError(), name);
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_LAUNCH_CUH_
