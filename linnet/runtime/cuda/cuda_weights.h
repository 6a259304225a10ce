// A model's weights in the GPU's memory (private to linnet/runtime/cuda).
#ifndef LINNET_RUNTIME_CUDA_CUDA_WEIGHTS_H_
#define LINNET_RUNTIME_CUDA_CUDA_WEIGHTS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "linnet/kernels/cuda/device.h"
#include "linnet/model.h"
#include "linnet/model/checkpoint.h"

namespace linnet {

// y = x W^T + b, with W [out, in] in the products' type T. `out` is padded with zero rows to a
// multiple of 8.
template <typename T>
struct CudaMatrix {
  size_t in = 0, out = 0;
  kernels::cuda::DeviceBuffer<T> weight, bias;
};

struct CudaNorm {
  kernels::cuda::DeviceBuffer<float> weight, bias;  // empty: no norm
};

template <typename T>
struct CudaLayer {
  size_t heads = 0, dim = 0, value_dim = 0;
  float eps = 0;           // added to the attention's denominator
  size_t state_begin = 0;  // offset of the layer's state in a sequence's state, in floats
  // project: d_model -> queries, keys and values; merge: heads -> d_model; up: d_model -> hidden
  // units; down: hidden units -> d_model.
  CudaMatrix<T> project, merge, up, down;
  CudaNorm norm1, norm2;

  size_t projected() const { return heads * (2 * dim + value_dim); }
};

template <typename T>
struct CudaWeights {
  // Throws InputError if the model does not run on a GPU. The message names the unsupported part.
  static void CheckRuns(const Model& model);
  // Bytes of a model's weights, from its spec alone.
  static size_t Bytes(const ModelSpec& spec);

  CudaWeights(const Checkpoint& checkpoint, const Model& model);

  std::vector<CudaLayer<T>> layers;
  CudaNorm final_norm;
  CudaMatrix<float> head;
  kernels::cuda::DeviceBuffer<float> values, positions, above;  // as in Model::Packed
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_CUDA_CUDA_WEIGHTS_H_
