// Compares networks in training (nn) with language models of flash-linear-attention and RWKV-7:
// logits, loss and gradients of whole sequences, and logits of steps.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "linnet/nn/sequence_model.h"
#include "tests/gated_models.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class GatedModelsNn : public testing::TestWithParam<std::string> {
 protected:
  GatedModelsNn() { model_ = LoadModel(golden_.Import()); }
  Tensor Loaded(const std::string& name) const {
    const linnet::Tensor& from = golden_.file.Get(name);
    const auto type = from.dtype == DType::kF32   ? torch::kFloat32
                      : from.dtype == DType::kF64 ? torch::kFloat64
                                                  : torch::kInt64;
    return torch::from_blob(const_cast<std::byte*>(from.data.data()), from.shape, type).clone();
  }
  static void ExpectClose(const Tensor& got, const Tensor& want, const std::string& what) {
    const double size = want.abs().max().item<double>();
    EXPECT_LT((got.to(torch::kFloat64) - want).abs().max().item<double>(), 1e-4 * size) << what;
  }

  const GatedModel golden_{GetParam()};
  SequenceModel model_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Golden, GatedModelsNn, testing::Values("gated_delta_net", "gla", "rwkv7"));

TEST_P(GatedModelsNn, GivesTheSourcesLogitsLossAndGradients) {
  const Tensor tokens = Loaded("input_ids");
  const Tensor logits = model_(tokens);
  ExpectClose(logits, Loaded("logits"), "logits");
  const int64_t length = tokens.size(1), classes = logits.size(2);
  const Tensor loss =
      torch::nn::functional::cross_entropy(logits.narrow(1, 0, length - 1).reshape({-1, classes}),
                                           tokens.narrow(1, 1, length - 1).reshape({-1}));
  EXPECT_NEAR(loss.item<double>(), Loaded("loss").item<double>(), 1e-5);
  loss.backward();
  for (const auto& item : model_->named_parameters()) {
    const Tensor& grad = item.value().grad();
    Tensor want;
    if (golden_.rwkv.empty()) {
      want = Loaded("grad." + FlaPartOf(model_->spec().stack.mixer(), {item.key(), {}}).name);
    } else {
      const RwkvPart part = RwkvPartOf(item.key());
      want = Loaded("grad." + part.name);
      want = part.transposed ? want.t() : want.view_as(grad);
    }
    ExpectClose(grad, want, "gradient of " + item.key());
  }
}

TEST_P(GatedModelsNn, StepsGiveTheSourcesLogits) {
  const torch::NoGradGuard no_grad;
  const Tensor tokens = Loaded("input_ids");
  SequenceState state;
  std::vector<Tensor> out;
  for (int64_t t = 0; t < tokens.size(1); ++t) {
    out.push_back(model_->Step(tokens.select(1, t), t, state));
  }
  ExpectClose(torch::stack(out, 1), Loaded("logits"), "steps");
  if (golden_.rwkv.empty()) return;
  const Tensor states = Loaded("final_state"), shifts = Loaded("final_shift");
  for (int64_t i = 0; i < states.size(1); ++i) {
    const MixerState& layer = state.layers[static_cast<size_t>(i)];
    ExpectClose(layer.tensors[0], states.select(1, i), "state");
    ExpectClose(layer.mixed_last, shifts.select(1, i).select(1, 0), "last input of the mixer");
    ExpectClose(layer.fed_last, shifts.select(1, i).select(1, 1), "last input of the block");
  }
}

}  // namespace
}  // namespace linnet::nn
