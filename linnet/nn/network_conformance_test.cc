// Tests every registered mixer inside the networks of specs: whole sequences, single steps and
// batches agree, and a saved network is restored bit for bit. Unsupported combinations throw the
// right error.
//
// layer_conformance_test.cc compares the values with an oracle.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "linnet/nn/encoder_decoder.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/nn/speech_model.h"
#include "linnet/nn/test_oracle.h"
#include "linnet/nn/test_util.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

ModelSpec Network(const MixerSpec& mixer) {
  ModelSpec spec;
  spec.stack = {.pattern = TwoLayers(mixer), .repeat = 1, .d_model = 16, .d_ff = 24};
  for (MixerSpec& sizes : spec.stack.pattern) {
    sizes.heads = 2, sizes.query_dim = 4, sizes.value_dim = 3;
  }
  return spec;
}
ModelSpec Images(const MixerSpec& mixer) {
  ModelSpec spec = Network(mixer);
  spec.input.value_embedding = 8, spec.input.max_length = 23;
  spec.input.positions = Positions::kGrid, spec.input.pixel_above = true;
  spec.input.stem = {.channels = 3};
  spec.part = ImageSpec{.width = 6, .height = 4};
  return spec;
}
ModelSpec Pixels(const MixerSpec& mixer) {
  ModelSpec spec = Network(mixer);
  spec.input = {.vocabulary = kBeginPixel + 1,
                .max_length = 23,
                .value_embedding = 8,
                .pixel_above = true,
                .whole_pixels = true};
  spec.part = ImageSpec{.width = 1, .height = 23, .channels = 3};
  return spec;
}
ModelSpec Pairs(const MixerSpec& mixer, bool tied) {
  ModelSpec spec = Network(mixer);
  spec.task = "couplet", spec.network = NetworkKind::kEncoderDecoder;
  spec.input = {
      .vocabulary = 11, .max_length = 9, .value_embedding = 16, .positions = Positions::kAdded};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 11, .tied = tied};
  spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefgh"};
  return spec;
}
ModelSpec Speech(const MixerSpec& mixer) {
  ModelSpec spec = Network(mixer);
  spec.task = "speech";
  spec.input = {.vocabulary = 4, .max_length = 20, .value_embedding = 12};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 4};
  spec.part = SpeechSpec{.bands = 5, .stack = 4, .stride = 2, .lookahead = 1, .phones = "A B C"};
  return spec;
}

class Networks : public testing::TestWithParam<MixerCase> {
 protected:
  const MixerInfo& info() const { return GetParam().info; }

  // Saves and loads the network; expects the same spec and tensors.
  template <class Holder>
  Holder Restored(const Holder& model) {
    const std::string path = TemporaryPath("conformance");
    SaveModel(path, *model, "");
    const auto loaded =
        std::dynamic_pointer_cast<typename Holder::ContainedType>(LoadNetwork(path));
    std::filesystem::remove(path);
    EXPECT_TRUE(loaded != nullptr);
    loaded->eval();
    EXPECT_EQ(loaded->spec(), model->spec());
    const auto want = ModelTensors(*model), got = ModelTensors(*loaded);
    EXPECT_EQ(want.size(), TensorTable(model->spec()).size());
    for (const TensorInfo& tensor : TensorTable(model->spec())) {
      EXPECT_TRUE(torch::equal(got.at(tensor.name), want.at(tensor.name))) << tensor.name;
    }
    return Holder(loaded);
  }
};
INSTANTIATE_TEST_SUITE_P(Mixers, Networks, testing::ValuesIn(MixerCases()),
                         [](const auto& info) { return info.param.name; });

// Images as bytes and as whole pixels: whole batches, single sequences and steps of a restored
// model agree, and outputs are causal.
class ImageNetworks : public Networks {
 protected:
  void Check(const ModelSpec& spec, const Tensor& tokens);
};
INSTANTIATE_TEST_SUITE_P(Mixers, ImageNetworks, testing::ValuesIn(MixerCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ImageNetworks, ImagesMatchTheReferenceInEveryForm) {
  const ModelSpec spec = Images(GetParam().spec);
  if (!info().causal) {
    const std::string error = ErrorOf([&] { SequenceModel{spec}; });
    EXPECT_TRUE(Contains(error, "needs causal attention, which '" + info().name + "'")) << error;
    return;
  }
  const Tensor tokens = torch::randint(256, {3, 23}, torch::kInt64);
  Check(spec, tokens);
  ModelSpec patches = spec;
  patches.input.patch = {.tokens = 3, .width = 24, .d_ff = 10, .convolution = 2};
  Check(patches, tokens);
}

TEST_P(ImageNetworks, WholePixelsMatchTheReferenceInEveryForm) {
  if (!info().causal) return;
  Tensor tokens = torch::randint(1 << 24, {3, 23}, torch::kInt64);
  tokens.select(1, 0).fill_(kBeginPixel);
  ModelSpec spec = Pixels(GetParam().spec);
  Check(spec, tokens);
  spec.part = ImageSpec{.width = 23, .height = 1, .channels = 3};
  spec.input.stem = {.channels = 3};
  Check(spec, tokens);
  spec.part = ImageSpec{.width = 23, .height = 1, .channels = 3};
  spec.input.patch = {.tokens = 23, .width = 12, .d_ff = 10, .convolution = 23};
  Check(spec, tokens);
}

void ImageNetworks::Check(const ModelSpec& spec, const Tensor& tokens) {
  torch::manual_seed(3);
  SequenceModel model(spec);
  model->eval();
  const torch::NoGradGuard no_grad;
  if (!spec.input.whole_pixels) {
    model->first_value.copy_(torch::softmax(torch::randn({256}), 0));
  }
  SequenceModel again = Restored(model);
  const Tensor want = model->forward(tokens);
  EXPECT_TRUE(torch::equal(again->forward(tokens), want));
  EXPECT_LT(Off(model->forward(tokens.narrow(0, 1, 1))[0], want[1]), 1e-5);
  SequenceState state, fork;
  if (!info().recurrent) {
    const std::string error = ErrorOf([&] { model->Step(tokens.select(1, 0), 0, state); });
    EXPECT_TRUE(Contains(error, "recurrent form")) << error;
    return;  // skips the causality test: hash buckets depend on the whole sequence
  }
  Tensor other = tokens.clone();
  other.slice(1, 12).fill_(0);
  EXPECT_LT(Off(model->forward(other).slice(1, 0, 12), want.slice(1, 0, 12)), 1e-5);
  for (int64_t t = 0; t < 23; ++t) {
    if (t == 11) fork = state;
    EXPECT_LT(Off(again->Step(tokens.select(1, t), t, state), want.select(1, t)), 1e-4) << t;
  }
  EXPECT_LT(Off(again->Step(tokens.select(1, 11), 11, fork), want.select(1, 11)), 1e-4);
}

// Outputs depend on the whole first line, but neither on its padding nor on later tokens of the
// second line.
TEST_P(Networks, PairsMatchTheReferenceInEveryForm) {
  if (!info().causal || info().cross.empty()) {
    const ModelSpec spec = Pairs(GetParam().spec, false);
    EXPECT_TRUE(Contains(ErrorOf([&] { EncoderDecoder{spec}; }), "'" + info().name + "'"));
    return;
  }
  for (const bool tied : {false, true}) {
    torch::manual_seed(4);
    EncoderDecoder model(Pairs(GetParam().spec, tied));
    model->eval();
    const torch::NoGradGuard no_grad;
    EncoderDecoder again = Restored(model);
    const Tensor first = torch::randint(3, 11, {3, 7}, torch::kInt64);
    const Tensor second = torch::randint(3, 11, {3, 6}, torch::kInt64);
    const Tensor lengths = Lengths({7, 4, 1});
    const Tensor want = model->forward(first, lengths, second);
    EXPECT_EQ(want.sizes(), torch::IntArrayRef({3, 6, 11}));
    EXPECT_TRUE(torch::equal(again->forward(first, lengths, second), want));
    const Tensor rows = Lengths({0, 5, 13});
    EXPECT_LT(
        Off(model->At(first, lengths, second, rows), want.flatten(0, 1).index_select(0, rows)),
        1e-6);
    for (int64_t n = 0; n < 3; ++n) {
      const int64_t length = lengths[n].item<int64_t>();
      const Tensor alone = model->forward(first.narrow(0, n, 1).narrow(1, 0, length),
                                          Lengths({length}), second.narrow(0, n, 1));
      EXPECT_LT(Off(alone[0], want[n]), 1e-5) << n;
    }
    Tensor padded = first.clone(), early = first.clone(), later = second.clone();
    padded[1].slice(0, 4).fill_(0);
    EXPECT_LT(Off(model->forward(padded, lengths, second), want), 1e-6);
    early[1][0] = 3 + (early[1][0] - 2) % 8;  // another token
    EXPECT_GT(Off(model->forward(early, lengths, second)[1][0], want[1][0]), 1e-6);
    later.slice(1, 3).fill_(4);
    EXPECT_LT(Off(model->forward(first, lengths, later).slice(1, 0, 3), want.slice(1, 0, 3)), 1e-6);
  }
}

TEST_P(Networks, SpeechMatchesTheReferenceInEveryForm) {
  torch::manual_seed(5);
  SpeechModel model(Speech(GetParam().spec));
  model->eval();
  const torch::NoGradGuard no_grad;
  SpeechModel again = Restored(model);
  const Tensor frames = torch::randn({3, 12, 20}), lengths = Lengths({12, 7, 1});
  const Tensor want = model->forward(frames, lengths);
  EXPECT_TRUE(torch::equal(again->forward(frames, lengths), want));
  for (int64_t n = 0; n < 3; ++n) {
    const int64_t length = lengths[n].item<int64_t>();
    const Tensor alone =
        model->forward(frames.narrow(0, n, 1).narrow(1, 0, length), Lengths({length}));
    EXPECT_LT(Off(alone[0], want[n].narrow(0, 0, length)), 1e-5) << n;
  }
  // Outputs depend on later frames unless the mixer is always causal. A scan scales decays within
  // blocks, so that later decays may change the rounding of earlier outputs.
  Tensor other = frames.clone();
  other.narrow(1, 6, 6).normal_();
  const double off = Off(model->forward(other, Lengths({12, 12, 12})).narrow(1, 0, 6),
                         model->forward(frames, Lengths({12, 12, 12})).narrow(1, 0, 6));
  EXPECT_EQ(off <= (info().projections ? 1e-5 : 0.0), info().always_causal) << off;
}

}  // namespace
}  // namespace linnet::nn
