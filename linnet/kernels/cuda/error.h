// An error of a GPU: no device, too little memory, or a kernel that fails.
#ifndef LINNET_KERNELS_CUDA_ERROR_H_
#define LINNET_KERNELS_CUDA_ERROR_H_

#include <stdexcept>
#include <string>

namespace linnet::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_ERROR_H_
