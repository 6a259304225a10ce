// Runs a trained model as an RNN on a GPU, thousands of sequences at once. No libtorch; cuBLASLt is
// loaded at run time.
//
//   const Checkpoint checkpoint = Checkpoint::Open("models/digits.safetensors");
//   CudaEngine engine(checkpoint, {.batch = 10'000, .precision = Precision::kBf16});
//   engine.Draw(images, /*known=*/1, {.seed = 7});       // [10'000, pixels]
//
// All sequences stand at the same position. A step of all of them is one graph of kernels; drawn
// tokens stay on the GPU until the last one. The states have the CPU's layout bit for bit, so a
// State moves between both and continues, within rounding.
//
// Models: images with a mixture of logistics, causal linear attention with feature map elu, in f32
// or bf16. The constructor refuses others by name. In bf16, weights and the products' inputs and
// results are rounded; sums, norms, residuals and the head are fp32.
//
// Errors: InputError if this build has no CUDA, if there is no usable GPU or too little of its
// memory (checked before anything is reserved); std::runtime_error if the GPU fails at work.
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
#include "linnet/runtime/state.h"

namespace linnet {

inline constexpr const char* kNoCuda = "this build has no CUDA (configure with -DLINNET_CUDA=ON)";

struct CudaOptions {
  size_t batch = 64;
  std::optional<Precision> precision = {};  // default: the file's
  // Parts of the batch that step on streams of their own, so that one part's matrix products
  // may overlap with another's memory traffic. On an H100, one is the fastest.
  size_t lanes = 1;
};

// Bytes of the GPU's memory that an engine takes.
struct CudaMemory {
  size_t weights = 0, states = 0, work = 0;
  size_t total() const { return weights + states + work; }
};

// What the GPU can do, measured: bytes a second of a copy (reads and writes), and operations a second
// of a large product.
struct CudaLimits {
  double bytes_per_second = 0, operations_per_second = 0;
};
CudaLimits MeasureCudaLimits(Precision precision);

class CudaEngine final : public Generator {
 public:
  CudaEngine(const Checkpoint& checkpoint, const CudaOptions& options);
  ~CudaEngine() override;

  // Whether this build has CUDA at all.
  static bool Built();
  // The name of the GPU. Throws InputError if there is none that this build can use.
  static std::string FindDevice();

  const Model& model() const override;
  std::shared_ptr<const Model> shared_model() const;
  size_t batch() const override;
  void Draw(std::span<uint8_t> sequences, size_t known, const LogisticsDraws& draws) override;

  size_t output_size() const;         // floats per position
  const std::string& device() const;  // the GPU's name
  const CudaMemory& memory() const;
  size_t lanes() const;

  // All sequences, to before the first token.
  void Reset();
  size_t position() const;
  // Reads one token of each sequence: tokens [batch] -> outputs [batch, output_size], as
  // Engine::Step().
  void Step(std::span<const int32_t> tokens, std::span<float> outputs);
  // Seconds of a step by the GPU's clock, draws included: the mean of `steps` from the first
  // position on. The sequences are reset before and afterwards.
  double SecondsOfStep(size_t steps);
  // Seconds of each kind of kernel in a step, mean over the steps from one fold to the next, of the
  // first lane alone.
  std::vector<std::pair<std::string, double>> ProfileStep();
  // What every step has to do, at least: bytes of weights and states that it moves, mean from one
  // fold to the next, and operations of its products.
  double StepBytes() const;
  double StepOperations() const;

  // Replaces all sequences by those of `state`. Throws InputError unless it has batch() sequences,
  // at one position, of this model in this precision.
  void SetState(const State& state);
  State GetState();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_CUDA_CUDA_ENGINE_H_
