// Compares gated recurrences in training, on whole sequences, in pieces and in steps, with layers
// of flash-linear-attention and RWKV-7: outputs and gradients.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "linnet/nn/transformer.h"
#include "tests/gated_layers.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

Tensor Loaded(const GatedLayer& layer, const std::string& name, const std::string& prefix = "") {
  const linnet::Tensor from = layer.Get(name, prefix);
  const auto type = from.dtype == DType::kF32 ? torch::kFloat32 : torch::kFloat64;
  return torch::from_blob(const_cast<std::byte*>(from.data.data()), from.shape, type).clone();
}

class GatedLayersNn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Golden, GatedLayersNn, testing::ValuesIn(GatedLayerNames()));

TEST_P(GatedLayersNn, WholePiecesAndStepsGiveTheSourcesOutputsAndGradients) {
  const GatedLayer layer(GetParam());
  AttentionLayer attention(TransformerOptions{.pattern = {layer.spec}, .d_model = layer.width},
                           layer.spec);
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : attention->named_parameters()) {
      item.value().copy_(Loaded(layer, item.key()).view_as(item.value()));
    }
  }
  const Tensor x = Loaded(layer, "hidden_states").requires_grad_(), want = Loaded(layer, "out");
  const Tensor loss_w = Loaded(layer, "loss_w");
  // The first layer's values, which later layers of RWKV-7 read; undefined for other kinds.
  Tensor carried;
  if (layer.file.Find("v_first")) carried = Loaded(layer, "v_first").requires_grad_();
  const int64_t length = x.size(1);
  const auto close = [](const Tensor& got, const Tensor& to, const std::string& what) {
    const double size = to.abs().max().item<double>();
    EXPECT_LT((got.to(torch::kFloat64) - to).abs().max().item<double>(), 1e-4 * size) << what;
  };
  const auto check = [&](const Tensor& mixed, const std::string& form) {
    const Tensor out = torch::matmul(mixed, attention->out_projection()->weight.t());
    close(out, want, form);
    attention->zero_grad();
    x.mutable_grad() = Tensor();
    if (carried.defined()) carried.mutable_grad() = Tensor();
    (out * loss_w).sum().backward();
    close(x.grad(), Loaded(layer, "grad.hidden_states"), form + ", gradient of the input");
    if (carried.defined()) {
      close(carried.grad(), Loaded(layer, "grad.v_first"), form + ", gradient of v_first");
    }
    for (const auto& item : attention->named_parameters()) {
      const Tensor& grad = item.value().grad();
      close(grad, Loaded(layer, item.key(), "grad.").view_as(grad),
            form + ", gradient of " + item.key());
    }
  };
  check(attention->Attend(x, {}, Mask{.causal = true}, &carried), "whole");
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{length}, {1, 2, 4, length}, {5, length}}) {
    MixerState state;
    std::vector<Tensor> out;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const auto cut = [&](const Tensor& rows) { return rows.narrow(1, begin, end - begin); };
      Tensor own = carried.defined() ? cut(carried) : Tensor();
      out.push_back(attention->AttendPiece(cut(x), {}, state, &own));
      begin = end;
    }
    check(torch::cat(out, 1), "pieces");
    close(state.tensors[0],
          torch::tensor(layer.FinalState(), torch::kFloat64).view_as(state.tensors[0]),
          "final state");
  }
  MixerState state;
  std::vector<Tensor> out;
  for (int64_t t = 0; t < length; ++t) {
    Tensor own = carried.defined() ? carried.narrow(1, t, 1) : Tensor();
    out.push_back(attention->AttendStep(x.select(1, t), {}, state, &own));
  }
  check(torch::stack(out, 1), "steps");
}

}  // namespace
}  // namespace linnet::nn
