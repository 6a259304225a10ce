// Runs a trained model as an RNN on a GPU, thousands of sequences at once. Does not use libtorch;
// loads cuBLASLt at run time.
//
//   const Checkpoint checkpoint = Checkpoint::Open("models/digits.safetensors");
//   CudaEngine engine(checkpoint, {.batch = 10'000, .precision = Precision::kBf16});
//   engine.Draw(images, /*known=*/1, {.seed = 7});       // [10'000, pixels]
//
// All sequences are at the same position. Steps run as CUDA graphs, and drawn tokens stay on the
// GPU until the last one is drawn. The states have the CPU's layout, so a State can move to the GPU
// or back to the CPU and continue there; outputs then differ only by rounding.
//
// Supported models: images with a mixture of logistics, causal linear attention with feature map
// elu, in f32 or bf16. For other models the constructor throws an InputError that names the
// unsupported part. In bf16, weights and the leading part of the states (kernels/linear_step.h) are
// rounded to bf16. So are inputs and results of matrix products, except in the kernels for few
// sequences (kernels/cuda/few.h). Norms, residuals and the head are fp32.
//
// Errors: InputError if this build has no CUDA, if there is no usable GPU, or if its free memory is
// too small (checked before anything is allocated); std::runtime_error if a GPU operation fails.
#ifndef LINNET_RUNTIME_CUDA_CUDA_ENGINE_H_
#define LINNET_RUNTIME_CUDA_CUDA_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/model/checkpoint.h"
#include "linnet/runtime/generator.h"
#include "linnet/state.h"

namespace linnet {

inline constexpr const char* kNoCuda = "this build has no CUDA (configure with -DLINNET_CUDA=ON)";

struct CudaOptions {
  size_t batch = 64;
  std::optional<Precision> precision = {};  // default: the checkpoint's precision
  // Number of lanes. A lane is a part of the batch with a CUDA stream of its own, so that matrix
  // products of one lane may overlap with memory traffic of another. On an H100, 1 is the fastest.
  size_t lanes = 1;
};

// Bytes of GPU memory that an engine takes.
struct CudaMemory {
  size_t weights = 0, states = 0, work = 0;
  size_t total() const { return weights + states + work; }
};

// Measured limits of the GPU: bytes per second of a large copy (reads plus writes), and operations
// per second of a large matrix product (a multiply and an add are two).
struct CudaLimits {
  double bytes_per_second = 0, operations_per_second = 0;
};
CudaLimits MeasureCudaLimits(Precision precision);

class CudaEngine final : public Generator {
 public:
  CudaEngine(const Checkpoint& checkpoint, const CudaOptions& options);
  ~CudaEngine() override;

  // Whether this build has CUDA.
  static bool Built();
  // The name of the GPU. Throws InputError if there is none that this build can use.
  static std::string FindDevice();

  const Model& model() const override;
  std::shared_ptr<const Model> shared_model() const;
  size_t batch() const override;
  void Draw(std::span<uint8_t> sequences, size_t known, const ImageDraws& draws) override;

  size_t output_size() const;         // floats per position
  const std::string& device() const;  // the GPU's name
  const CudaMemory& memory() const;
  size_t lanes() const;

  // Resets all sequences to before the first token.
  void Reset();
  size_t position() const;
  // Reads one token of each sequence, like Engine::Step(): tokens [batch] -> outputs
  // [batch, output_size].
  void Step(std::span<const int32_t> tokens, std::span<float> outputs);
  // Measures the wall-clock seconds of a step with its draws: the mean over the first `steps`
  // positions. Resets the sequences before and afterwards.
  double SecondsOfStep(size_t steps);
  // Measures the seconds per step of each kind of kernel, by name, for the first lane alone: the
  // mean over the steps from one fold to the next (a fold adds recent keys and values to the sums;
  // see kernels/linear_step.h). Resets the sequences before and afterwards.
  std::vector<std::pair<std::string, double>> ProfileStep();
  // Work of a step, to compare with CudaLimits. Bytes: the size of all weights, plus the bytes of
  // states that a step reads and writes, averaged over the steps from one fold to the next.
  // Operations: those of the step's matrix products.
  double StepBytes() const;
  double StepOperations() const;

  // Replaces all sequences by those of `state`. Throws InputError unless `state` has batch()
  // sequences, all at the same position, and belongs to this model in this precision.
  void SetState(const State& state);
  State GetState();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_CUDA_CUDA_ENGINE_H_
