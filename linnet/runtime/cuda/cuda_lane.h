// Sequences that step together on one stream of the GPU (private to linnet/runtime/cuda).
#ifndef LINNET_RUNTIME_CUDA_CUDA_LANE_H_
#define LINNET_RUNTIME_CUDA_CUDA_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linnet/kernels/cuda/decode.h"
#include "linnet/runtime/cuda/cuda_weights.h"

namespace linnet {

class CudaLane {
 public:
  virtual ~CudaLane() = default;
  virtual size_t batch() const = 0;

  virtual void Reset() = 0;  // clears the states
  virtual void SetControl(const kernels::cuda::DecodeControl& control) = 0;
  // Copy tokens [count, batch()] of `count` positions to and from the GPU. Reads wait for earlier
  // steps.
  virtual void WriteTokens(size_t position, size_t count, const int32_t* tokens) = 0;
  virtual void ReadTokens(size_t position, size_t count, int32_t* tokens) = 0;
  // ReadOutputs() copies the head's outputs of the last step, [batch(), output_stride()].
  virtual size_t output_stride() const = 0;
  virtual void ReadOutputs(float* outputs) = 0;
  // Copy states [batch(), floats of a sequence] to and from the GPU.
  virtual void WriteStates(const float* states) = 0;
  virtual void ReadStates(float* states) = 0;

  // Enqueues `count` steps and returns. Each step reads a token of each sequence and draws the next
  // token, unless the next position is below DecodeControl::known.
  virtual void Start(size_t count) = 0;
  virtual void Wait() = 0;

  // Seconds of each kernel, by name, in order of first use.
  using Profile = std::vector<std::pair<std::string, double>>;
  // Runs a step kernel by kernel and adds each kernel's seconds to its entry. Afterwards the states
  // are meaningless.
  virtual void RunProfiled(Profile& profile) = 0;
};

// Bytes of GPU memory that a lane takes: its states, and its working memory.
struct CudaLaneBytes {
  size_t states = 0, work = 0;
};
template <typename T>
CudaLaneBytes LaneBytes(const Model& model, size_t batch);

// `weights` and `model` must outlive the lane.
template <typename T>
std::unique_ptr<CudaLane> MakeLane(const Model& model, const CudaWeights<T>& weights, size_t batch);

}  // namespace linnet

#endif  // LINNET_RUNTIME_CUDA_CUDA_LANE_H_
