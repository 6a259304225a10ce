// The causal stem of images (StemSpec): two masked convolutions over the image. Their output is
// added to the embedding.
//
//   Stem stem(spec);
//   torch::Tensor x = embedding + stem->forward(tokens);        // [N, L] -> [N, L, width]
//   StemState state;
//   torch::Tensor x_t = stem->step(tokens.select(1, t), t, state);   // [N] -> [N, width]
#ifndef LINNET_NN_STEM_H_
#define LINNET_NN_STEM_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <vector>

#include "linnet/model/spec.h"
#include "linnet/model/stem.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::nn {

// The state of step(), empty at the beginning. A copy is independent and continues the sequence on
// its own.
struct StemState {
  // The last inputs of each convolution, as many as its window may need: at most Reach() + 1
  // (model/stem.h).
  torch::Tensor bytes;     // of the first convolution: [N, <= Reach() + 1, StemValues()]
  torch::Tensor features;  // of the second: [N, <= Reach() + 1, channels]
};

class StemImpl : public torch::nn::Module {
 public:
  // `precision`: of the second convolution in forward().
  explicit StemImpl(const ModelSpec& spec, ops::Precision precision = ops::Precision::kFp32);

  // int64 tokens [N, L] from position 0 on -> [N, L, width], by two convolutions over the image.
  // `width` is the spec's EmbeddingWidth().
  torch::Tensor forward(const torch::Tensor& tokens);
  // int64 tokens [N] at `position` -> [N, width], by products with the inputs in the two windows.
  torch::Tensor step(const torch::Tensor& tokens, int64_t position, StemState& state);

 private:
  using Weights = std::vector<torch::nn::Linear>;  // one for each color

  // The numbers that tokens [N, L] are for the first convolution: [N, L, StemValues()].
  torch::Tensor Values(const torch::Tensor& tokens) const;

  const StemWindow bytes_, second_;  // the windows of the first and of the second convolution
  const int64_t values_, first_;     // StemValues() and StemFirst()
  const ops::Precision precision_;
  Weights features_, output_;  // the weights of the first and of the second convolution
};
TORCH_MODULE(Stem);

}  // namespace linnet::nn

#endif  // LINNET_NN_STEM_H_
