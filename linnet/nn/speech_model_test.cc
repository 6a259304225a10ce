#include "linnet/nn/speech_model.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>

#include "linnet/error.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

ModelSpec SmallSpeech(const std::string& attention, int convolution = 0) {
  ModelSpec spec;
  spec.task = "speech";
  spec.stack = {.pattern = {{.kind = attention,
                             .lsh_buckets = 4,
                             .lsh_chunk = 4,
                             .heads = 2,
                             .query_dim = 4,
                             .value_dim = 4}},
                .repeat = 2,
                .d_model = 16,
                .d_ff = 24,
                .convolution = convolution};
  spec.input = {.vocabulary = 4, .max_length = 20, .value_embedding = 12};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 4};
  spec.part = SpeechSpec{.bands = 5, .stack = 4, .stride = 2, .lookahead = 1, .phones = "A B C"};
  return spec;
}

ModelSpec SmallLstm() {
  ModelSpec spec = SmallSpeech("linear");
  spec.network = NetworkKind::kLstm;
  return spec;
}

std::vector<ModelSpec> Kinds() {
  std::vector<ModelSpec> kinds = {SmallLstm()};
  for (const char* kind : {"linear", "full", "reformer", "causal-linear"}) {
    kinds.push_back(SmallSpeech(kind));
    kinds.push_back(SmallSpeech(kind, 3));
  }
  return kinds;
}

// The outputs of an utterance depend neither on longer utterances in its batch nor on its padding.
TEST(SpeechModel, UtterancesDoNotDependOnBatchOrPadding) {
  for (const ModelSpec& spec : Kinds()) {
    torch::manual_seed(3);
    SpeechModel model(spec);
    model->eval();
    torch::NoGradGuard no_grad;
    const Tensor frames = torch::randn({3, 12, 20});
    const Tensor lengths = torch::tensor({int64_t{12}, int64_t{7}, int64_t{1}});
    const Tensor all = model->forward(frames, lengths);
    EXPECT_EQ(all.sizes(), (std::vector<int64_t>{3, 12, 4}));
    for (int64_t n = 0; n < 3; ++n) {
      const int64_t length = lengths[n].item<int64_t>();
      const Tensor alone =
          model->forward(frames.narrow(0, n, 1).narrow(1, 0, length), lengths.narrow(0, n, 1));
      EXPECT_LT((all[n].narrow(0, 0, length) - alone[0]).abs().max().item<double>(), 1e-5)
          << ToJson(spec);
    }
  }
}

TEST(SpeechModel, CausalModelsIgnoreTheFuture) {
  for (const ModelSpec& spec : Kinds()) {
    torch::manual_seed(5);
    SpeechModel model(spec);
    model->eval();
    torch::NoGradGuard no_grad;
    const Tensor frames = torch::randn({1, 12, 20});
    const Tensor lengths = torch::tensor({int64_t{12}});
    const Tensor before = model->forward(frames, lengths).narrow(1, 0, 6);
    frames.narrow(1, 6, 6).normal_();
    const Tensor after = model->forward(frames, lengths).narrow(1, 0, 6);
    EXPECT_EQ(torch::equal(before, after), spec.Causal()) << ToJson(spec);
  }
}

TEST(SpeechModel, SavesAndLoads) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("speech_model_" + std::to_string(getpid()));
  for (ModelSpec spec : Kinds()) {
    spec.speech()->normalization =
        spec.stack.convolution > 0 ? BandNorm::kCorpus : BandNorm::kUtterance;
    SpeechModel model(spec);
    model->eval();
    if (spec.stack.convolution > 0) model->input_norm->mean.fill_(3);
    SaveModel(path, *model, "");
    const auto loaded = std::dynamic_pointer_cast<SpeechModelImpl>(LoadNetwork(path));
    ASSERT_TRUE(loaded != nullptr);
    loaded->eval();
    EXPECT_EQ(loaded->spec(), spec);
    torch::NoGradGuard no_grad;
    const Tensor frames = torch::randn({2, 9, 20});
    const Tensor lengths = torch::tensor({int64_t{9}, int64_t{4}});
    EXPECT_TRUE(torch::equal(loaded->forward(frames, lengths), model->forward(frames, lengths)));
    if (spec.stack.convolution > 0) {
      EXPECT_EQ(loaded->input_norm->mean[0].item<float>(), 3);
    }
  }
  std::filesystem::remove(path);
}

TEST(SpeechModel, EveryParameterGetsAGradient) {
  for (const ModelSpec& spec : Kinds()) {
    SpeechModel model(spec, TrainingOptions{.dropout = 0.1});
    const Tensor lengths = torch::tensor({int64_t{9}, int64_t{4}});
    const Tensor out = model->forward(torch::randn({2, 9, 20}), lengths);
    torch::log_softmax(out, 2).select(2, 1).sum().backward();
    for (const auto& item : model->named_parameters()) {
      // The reformer's queries are its keys: the key projection gets no gradient.
      if (spec.stack.mixer().kind == "reformer" &&
          item.key().find("key_projection") != std::string::npos) {
        continue;
      }
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  }
}

// With the same weights, the model's LSTM and libtorch's LSTM give the same outputs.
TEST(SpeechModel, LstmMatchesLibtorch) {
  torch::manual_seed(6);
  const ModelSpec spec = SmallLstm();
  SpeechModel model(spec);
  const auto named = model->named_parameters();
  const auto options = torch::nn::LSTMOptions(spec.speech()->Inputs(), spec.stack.d_model)
                           .num_layers(spec.stack.layers())
                           .bidirectional(true)
                           .batch_first(true);
  torch::nn::LSTM theirs(options);
  torch::nn::Linear head(2 * spec.stack.d_model, spec.head.classes);
  torch::NoGradGuard no_grad;
  for (const auto& item : theirs->named_parameters())
    item.value().copy_(named["lstm." + item.key()]);
  head->weight.copy_(named["predictor.weight"]), head->bias.copy_(named["predictor.bias"]);
  const Tensor frames = torch::randn({2, 9, spec.speech()->Inputs()});
  const Tensor lengths = torch::tensor({int64_t{9}, int64_t{5}});
  const auto packed = torch::nn::utils::rnn::pack_padded_sequence(frames, lengths, true);
  const Tensor want = head(std::get<0>(torch::nn::utils::rnn::pad_packed_sequence(
      std::get<0>(theirs->forward_with_packed_input(packed)), true)));
  const Tensor got = model->forward(frames, lengths);
  EXPECT_LT((got[0] - want[0]).abs().max().item<double>(), 1e-5);
  EXPECT_LT((got[1] - want[1]).narrow(0, 0, 5).abs().max().item<double>(), 1e-5);
}

TEST(SpeechModel, RefusesInvalidArguments) {
  SpeechModel model(SmallSpeech("linear"));
  const Tensor lengths = torch::tensor({int64_t{9}});
  EXPECT_THROW(model->forward(torch::randn({1, 9, 19}), lengths), Error);
  EXPECT_THROW(model->forward(torch::randn({1, 21, 20}), torch::tensor({int64_t{21}})), Error);
  EXPECT_THROW(model->forward(torch::randn({2, 9, 20}), lengths), Error);
  EXPECT_THROW(SpeechModel(SmallSpeech("linear", 4)), Error);
  EXPECT_NO_THROW(SpeechModel(SmallSpeech("causal-linear", 4)));
}

}  // namespace
}  // namespace linnet::nn
