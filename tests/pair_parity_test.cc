// All forms of a network agree, for encoder-decoders and for networks with convolutions: nn in
// batch form, nn step by step (convolutions only), and the runtime with every split of the sequence
// into a prefix and steps.
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "linnet/engine.h"
#include "linnet/nn/encoder_decoder.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/vocabulary.h"

namespace linnet::parity {
namespace {

using torch::Tensor;

// Odd sizes on purpose: none is a multiple of the vector width.
ModelSpec RaggedText() {
  ModelSpec spec;
  spec.task = "couplet";
  spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefgh"};
  spec.stack = {.repeat = 2, .d_model = 22, .d_ff = 37, .activation = Activation::kGelu};
  spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 5, spec.stack.mixer().value_dim = 7;
  spec.input = {
      .vocabulary = 11, .max_length = 30, .value_embedding = 22, .positions = Positions::kAdded};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 11, .tied = true};
  return spec;
}

std::shared_ptr<const Model> Saved(const nn::Network& network) {
  const std::string path =
      (std::filesystem::temp_directory_path() /
       ("linnet_pair_parity_test." + std::to_string(getpid()) + ".safetensors"))
          .string();
  nn::SaveModel(path, network, "");
  auto model = Model::Open(path);
  std::filesystem::remove(path);
  return model;
}

// The runtime's outputs [length, width] for one sequence: the first `cut` tokens are read at once,
// the others step by step.
Tensor Read(const std::shared_ptr<const Model>& model, const Tensor& tokens, int64_t cut) {
  Engine engine(model);
  State state = engine.NewState(1);
  const auto width = static_cast<int64_t>(engine.output_size());
  const Tensor own = tokens.to(torch::kInt32).contiguous(),
               out = torch::empty({own.size(0), width});
  const auto* read = own.data_ptr<int32_t>();
  const auto rows = [&](int64_t begin, int64_t count) {
    return std::span(out.data_ptr<float>() + begin * width, static_cast<size_t>(count * width));
  };
  const auto first = static_cast<size_t>(cut);
  if (cut > 0) engine.Prefix(state, {read, first}, first, rows(0, cut));
  for (int64_t t = cut; t < own.size(0); ++t) engine.Step(state, {read + t, 1}, rows(t, 1));
  return out;
}

void ExpectClose(const Tensor& got, const Tensor& want, const std::string& what) {
  const double scale = want.abs().max().item<double>();
  EXPECT_LT((got - want).abs().max().item<double>() / scale, 1e-4) << what;
}

TEST(PairParity, AnEncoderDecoderReadsOneSequence) {
  const torch::NoGradGuard no_grad;
  for (const char* kind : {"causal-linear", "full", "kernel"}) {
    for (const bool norm_first : {false, true}) {
      torch::manual_seed(7);
      ModelSpec spec = RaggedText();
      spec.network = NetworkKind::kEncoderDecoder;
      spec.stack.mixer().kind = kind, spec.stack.norm_first = norm_first;
      nn::EncoderDecoder network(spec);
      network->eval();
      const auto model = Saved(*network);
      for (const int64_t source : {int64_t{1}, int64_t{7}}) {
        const int64_t target = 9;
        const Tensor first = torch::randint(3, 11, {1, source}, torch::kInt64);
        Tensor second = torch::randint(3, 11, {1, target}, torch::kInt64);
        second[0][0] = Vocabulary::kSeparator;
        const Tensor want =
            network->forward(first, torch::full({1}, source, torch::kInt64), second)[0];
        const Tensor tokens = torch::cat({first[0], second[0]});
        for (int64_t cut = 0; cut <= tokens.size(0); ++cut) {
          const Tensor got = Read(model, tokens, cut);
          const std::string what = std::string(kind) + ", cut at " + std::to_string(cut);
          ExpectClose(got.narrow(0, source, target), want, what);
          EXPECT_EQ(got.narrow(0, 0, source).abs().max().item<float>(), 0) << what;
        }
      }
    }
  }
}

TEST(PairParity, ConvolutionsContinueInSteps) {
  const torch::NoGradGuard no_grad;
  for (const int width : {1, 4}) {
    for (const bool norm_first : {false, true}) {
      torch::manual_seed(7);
      ModelSpec spec = RaggedText();
      spec.stack.convolution = width, spec.stack.norm_first = norm_first;
      nn::SequenceModel network(spec);
      network->eval();
      const Tensor tokens = torch::randint(11, {1, 13}, torch::kInt64);
      const Tensor want = network->forward(tokens)[0];
      nn::SequenceState state;
      for (int64_t t = 0; t < tokens.size(1); ++t) {
        ExpectClose(network->Step(tokens.select(1, t), t, state)[0], want[t],
                    "nn step " + std::to_string(t));
      }
      const auto model = Saved(*network);
      for (int64_t cut = 0; cut <= tokens.size(1); ++cut) {
        ExpectClose(Read(model, tokens[0], cut), want, "cut at " + std::to_string(cut));
      }
    }
  }
}

}  // namespace
}  // namespace linnet::parity
