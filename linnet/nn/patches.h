// Patches of images (PatchSpec): the way from embedded tokens to the layers, which read a patch at
// a time, and back from the layers' outputs to the tokens.
//
//   Patches patches(spec, precision);
//   torch::Tensor y = layers(patches->Join(u));       // u [N, L, width]; y [N, patches, d_model]
//   torch::Tensor x = patches->Split(u, y);           // [N, L, width], the head's input
//
// or one position at a time:
//
//   PatchState state;
//   if (auto x = patches->JoinStep(u_t, t, state)) patches->SplitStep(layers_step(*x), state);
//   torch::Tensor x_t = patches->HeadStep(u_t, t, state);
#ifndef LINNET_NN_PATCHES_H_
#define LINNET_NN_PATCHES_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <optional>

#include "linnet/model/spec.h"
#include "linnet/nn/norm.h"
#include "linnet/nn/transformer.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::nn {

// The state of the functions that take one position at a time, empty at the beginning. A copy is
// independent and continues the sequence on its own.
struct PatchState {
  torch::Tensor recent;  // the last P embeddings, [N, P, width]
  torch::Tensor rows;    // what the layers' last output adds to the P embeddings, [N, P, width]
};

class PatchesImpl : public torch::nn::Module {
 public:
  PatchesImpl(const ModelSpec& spec, ops::Precision precision);

  // Embeddings [N, L, width] from position 0 on -> the layers' inputs [N, R, d_model], with
  // R = PatchesBefore(spec, L).
  torch::Tensor Join(const torch::Tensor& u);
  // Embeddings and the layers' outputs [N, R, d_model] -> [N, L, width].
  torch::Tensor Split(const torch::Tensor& u, const torch::Tensor& y);

  // u [N, width] at `position` -> the layers' input [N, d_model], if a patch begins there.
  std::optional<torch::Tensor> JoinStep(const torch::Tensor& u, int64_t position,
                                        PatchState& state);
  void SplitStep(const torch::Tensor& y, PatchState& state);
  // The head's input [N, width].
  torch::Tensor HeadStep(const torch::Tensor& u, int64_t position, const PatchState& state);

 private:
  // The small network that predicts a token, without the head.
  torch::Tensor Token(const torch::Tensor& z);

  const ModelSpec spec_;
  const int64_t tokens_, width_;
  const int64_t first_;  // FirstPredicted()
  const ops::Precision precision_;
  torch::nn::Linear in_, out_, linear1_, linear2_;
  Depthwise convolution_ = nullptr;  // null without one
  Norm norm1_, norm2_;
};
TORCH_MODULE(Patches);

}  // namespace linnet::nn

#endif  // LINNET_NN_PATCHES_H_
