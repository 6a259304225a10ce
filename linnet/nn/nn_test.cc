// Tests networks, optimizers and losses. network_conformance_test.cc tests networks with every
// mixer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "linnet/nn/decoder.h"
#include "linnet/nn/encoder_decoder.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/recompute.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/nn/test_util.h"
#include "linnet/nn/transformer.h"
#include "linnet/ops/orthogonalize.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

ModelSpec SmallImages(const std::string& kind) {
  ModelSpec spec;
  spec.stack = {.pattern = {{.kind = kind, .heads = 3, .query_dim = 4, .value_dim = 5}},
                .repeat = 2,
                .d_model = 16,
                .d_ff = 24};
  spec.input.value_embedding = 10, spec.input.max_length = 23;
  spec.part = ImageSpec{.width = 6, .height = 4};
  return spec;
}

TEST(SequenceModel, RefusesPositionsOutsideItsTable) {
  SequenceModel model(SmallImages("full"));
  const Tensor tokens = torch::randint(256, {1, 24}, torch::kInt64);
  SequenceState state;
  EXPECT_THROW(model->Step(tokens.select(1, 0), 23, state), Error);
  EXPECT_THROW(model->Step(tokens.select(1, 0), -1, state), Error);
  EXPECT_THROW(model->forward(tokens), Error);
}

TEST(EncoderDecoder, RefusesInvalidArguments) {
  ModelSpec spec = SmallImages("full");
  spec.task = "couplet", spec.network = NetworkKind::kEncoderDecoder;
  spec.input = {.vocabulary = 11, .max_length = 9, .value_embedding = 16};
  spec.head = {.kind = HeadKind::kCategorical, .classes = 11};
  spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefgh"};
  EncoderDecoder model(spec);
  const Tensor longer = torch::zeros({1, 10}, torch::kInt64);
  EXPECT_THROW(model->forward(longer, Lengths({10}), longer.narrow(1, 0, 6)), Error);
  const std::string path = TemporaryPath("pair");
  SaveModel(path, *model, "{}");
  EXPECT_THROW(LoadModel(path), Error);
  std::filesystem::remove(path);
}

// A network with linear attention can use the weights of a network with softmax attention.
TEST(SequenceModel, WeightsLoadIntoAnotherMixer) {
  const std::string path = TemporaryPath("weights");
  SequenceModel full(SmallImages("full"));
  SaveModel(path, *full, "{}");
  ModelSpec spec = SmallImages("causal-linear");
  spec.stack.mixer().feature_map = "favor";
  spec.stack.mixer().features = 4096;
  SequenceModel linear(spec);
  const std::vector<std::string> kept = CopyWeights(path, *linear);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_NE(kept[0].find("omega"), std::string::npos);
  full->eval(), linear->eval();
  const Tensor tokens = torch::randint(256, {2, 23}, torch::kInt64);
  EXPECT_LT(Off(linear->forward(tokens), full->forward(tokens)), 0.05);

  // With another length, the model keeps its own table of positions and copies everything else.
  spec = SmallImages("full");
  spec.image()->height = 2, spec.input.max_length = 11;
  SequenceModel shorter(spec);
  EXPECT_EQ(CopyWeights(path, *shorter), std::vector<std::string>{"pos_embedding.pe"});
  EXPECT_EQ(
      Off(ModelTensors(*shorter)["predictor.weight"], ModelTensors(*full)["predictor.weight"]), 0);

  // Errors name the field that differs, even if the shapes are equal. No weight changes.
  const auto refuses = [&](const std::string& field, const auto& change) {
    ModelSpec changed = SmallImages("full");
    change(changed);
    SequenceModel other(changed);
    const Tensor before = ModelTensors(*other)["transformer.norm.weight"].clone();
    try {
      CopyWeights(path, *other);
      ADD_FAILURE() << "accepted the weights of another network: " << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(": " + field + " is "), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(Off(ModelTensors(*other)["transformer.norm.weight"], before), 0);
  };
  refuses("d_ff", [](ModelSpec& s) { s.stack.d_ff = 25; });
  refuses("layers", [](ModelSpec& s) { s.stack.repeat = 1; });
  refuses("heads", [](ModelSpec& s) {
    MixerSpec& mixer = s.stack.mixer();
    mixer.heads = 1, mixer.query_dim = 12, mixer.value_dim = 15;
  });
  refuses("activation", [](ModelSpec& s) { s.stack.activation = Activation::kGelu; });
  refuses("norm_first", [](ModelSpec& s) { s.stack.norm_first = true; });
  refuses("pixel_above", [](ModelSpec& s) { s.input.pixel_above = true; });
  refuses("stem_channels", [](ModelSpec& s) { s.input.stem.channels = 2; });
  refuses("value_embedding",
          [](ModelSpec& s) { s.input.value_embedding = 8, s.input.positions = Positions::kGrid; });

  torch::NoGradGuard no_grad;
  ModelTensors(*full)["transformer.layers.1.linear1.bias"][3] = NAN;
  SaveModel(path, *full, "{}");
  SequenceModel same(SmallImages("full"));
  const Tensor before = ModelTensors(*same)["predictor.weight"].clone();
  try {
    CopyWeights(path, *same);
    ADD_FAILURE() << "accepted weights that are not finite";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'transformer.layers.1.linear1.bias' holds"),
              std::string::npos);
  }
  EXPECT_EQ(Off(ModelTensors(*same)["predictor.weight"], before), 0);
  std::filesystem::remove(path);
}

// Layers of a pattern may differ in kind and sizes; the network is recurrent if all its layers are.
TEST(SequenceModel, LayersMayDiffer) {
  const std::string path = TemporaryPath("pattern");
  torch::manual_seed(13);
  const torch::NoGradGuard no_grad;
  ModelSpec spec = SmallImages("causal-linear");
  spec.stack.pattern.push_back(
      {.kind = "full", .scale = 0.75f, .heads = 2, .query_dim = 6, .value_dim = 3});
  SequenceModel model(spec);
  model->eval();
  const auto tensors = ModelTensors(*model);
  EXPECT_EQ(tensors.size(), TensorTable(spec).size());
  for (const TensorInfo& info : TensorTable(spec)) {
    EXPECT_EQ(tensors.at(info.name).sizes(), torch::IntArrayRef(info.shape)) << info.name;
  }
  const Tensor tokens = torch::randint(256, {3, 23}, torch::kInt64);
  const Tensor batch = model->forward(tokens);
  SequenceState state;
  for (int64_t t = 0; t < 23; ++t) {
    EXPECT_LT(Off(model->Step(tokens.select(1, t), t, state), batch.select(1, t)), 1e-4) << t;
  }
  SaveModel(path, *model, "{}");
  SequenceModel loaded = LoadModel(path);
  loaded->eval();
  EXPECT_EQ(loaded->spec(), spec);
  EXPECT_EQ(Off(loaded->forward(tokens), batch), 0);

  // Weights can be copied between layers of different mixers, but not of different sizes.
  ModelSpec linear = spec;
  linear.stack.pattern[1].kind = "causal-linear", linear.stack.pattern[1].scale = 0;
  EXPECT_FALSE(NetworkDifference(spec, linear));
  EXPECT_EQ(CopyWeights(path, *MakeNetwork(linear)), std::vector<std::string>{});
  ModelSpec swapped = spec;
  std::swap(swapped.stack.pattern[0], swapped.stack.pattern[1]);
  EXPECT_EQ(NetworkDifference(spec, swapped)->field, "heads");
  EXPECT_THROW(CopyWeights(path, *MakeNetwork(swapped)), Error);
  ModelSpec repeated = spec;
  repeated.stack.repeat = 1;
  EXPECT_EQ(NetworkDifference(spec, repeated)->field, "layers");
  std::filesystem::remove(path);

  spec.stack.pattern[1] = {.kind = "reformer", .heads = 3, .query_dim = 4, .value_dim = 5};
  SequenceModel whole(spec);
  SequenceState none;
  EXPECT_EQ(whole->forward(tokens).sizes(), batch.sizes());
  EXPECT_THROW(whole->Step(tokens.select(1, 0), 0, none), Error);
}

TEST(SequenceModel, RefusesPositionTablesOfAnotherKind) {
  const std::string path = TemporaryPath("positions");
  ModelSpec spec = SmallImages("full");
  spec.input.value_embedding = 8;
  SequenceModel sequence(spec);
  SaveModel(path, *sequence, "{}");
  spec.input.positions = Positions::kGrid;
  SequenceModel grid(spec);
  EXPECT_THROW(CopyWeights(path, *grid), Error);
  // The image has as many bytes as before, but rows of another length: the table differs.
  SaveModel(path, *grid, "{}");
  spec.image()->width = 4, spec.image()->height = 6;
  SequenceModel narrow(spec);
  EXPECT_EQ(CopyWeights(path, *narrow), std::vector<std::string>{"pos_embedding.pe"});
  std::filesystem::remove(path);
}

TEST(SequenceModel, DropoutActsInTrainingOnly) {
  SequenceModel model(SmallImages("causal-linear"), TrainingOptions{.dropout = 0.5});
  const Tensor tokens = torch::randint(256, {1, 23}, torch::kInt64);
  EXPECT_GT(Off(model->forward(tokens), model->forward(tokens)), 0);
  model->eval();
  EXPECT_EQ(Off(model->forward(tokens), model->forward(tokens)), 0);
}

TEST(Mask, EmptyBatchesMayHaveLengths) {
  const Tensor none = torch::zeros({0, 3, 2, 4});
  const Mask mask{.query_lengths = torch::zeros({0}, torch::kInt64)};
  EXPECT_EQ(DropQueries(none, mask).sizes(), none.sizes());
}

// Recompute() runs its body once in the forward and once in the backward pass, with the same random
// numbers, and gives the same gradients as the body alone.
TEST(Recompute, RunsItsBodyTwice) {
  torch::manual_seed(9);
  const Tensor x = torch::randn({5, 4}).requires_grad_(), w = torch::randn({4, 4}).requires_grad_();
  int runs = 0;
  const auto body = [&](const std::vector<Tensor>& in) {
    ++runs;
    return torch::dropout(torch::relu(torch::matmul(in[0], w)), 0.5, true);
  };
  torch::manual_seed(10);
  body({x}).square().sum().backward();
  const Tensor want_x = x.grad().clone(), want_w = w.grad().clone();
  x.mutable_grad() = Tensor(), w.mutable_grad() = Tensor();
  torch::manual_seed(10);
  runs = 0;
  const Tensor y = Recompute(body, {x});
  EXPECT_EQ(runs, 1);
  torch::rand({7});  // numbers drawn in between change nothing
  y.square().sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(Off(x.grad(), want_x), 0);
  EXPECT_EQ(Off(w.grad(), want_w), 0);
}

// Parameters get gradients even if no input requires one. backward() works even if no tensor does.
TEST(Recompute, ParametersGetGradients) {
  const Tensor x = torch::randn({5, 4}), w = torch::randn({4, 4}).requires_grad_();
  const auto body = [&](const std::vector<Tensor>& in) { return torch::matmul(in[0], w); };
  body({x}).square().sum().backward();
  const Tensor want = w.grad().clone();
  w.mutable_grad() = Tensor();
  Recompute(body, {x}).square().sum().backward();
  EXPECT_EQ(Off(w.grad(), want), 0);
  EXPECT_FALSE(x.grad().defined());
  const Tensor frozen = torch::randn({4, 4});
  Recompute([&](const std::vector<Tensor>& in) { return torch::matmul(in[0], frozen); }, {x})
      .sum()
      .backward();
}

// Outputs and gradients are the same with and without activation checkpointing, whether or not the
// inputs need a gradient. In training, the reformer draws new hash planes in every forward pass,
// but recomputation uses the planes of the first pass.
TEST(Transformer, CheckpointingDoesNotChangeResults) {
  const MixerSpec linear{.kind = "linear", .heads = 2, .query_dim = 4, .value_dim = 4};
  for (const char* kind : {"causal-linear", "reformer"}) {
    for (const bool decoder : {false, true}) {
      for (const bool leaf : {false, true}) {
        std::vector<Tensor> results[2];
        for (const bool checkpoint : {false, true}) {
          torch::manual_seed(21);
          const TransformerOptions options{.pattern = {{.kind = kind,
                                                        .lsh_rounds = 1,
                                                        .lsh_buckets = 4,
                                                        .lsh_chunk = 4,
                                                        .heads = 2,
                                                        .query_dim = 4,
                                                        .value_dim = 4}},
                                           .layers = 2,
                                           .d_model = 8,
                                           .d_ff = 8,
                                           .dropout = 0.25,
                                           .checkpoint_layers = checkpoint};
          const Tensor x = torch::randn({2, 9, 8}).requires_grad_(leaf);
          const Tensor memory = torch::randn({2, 6, 8}).requires_grad_(leaf);
          Tensor y;
          std::vector<Tensor>& all = results[checkpoint];
          std::vector<Tensor> parameters;
          if (decoder) {
            TransformerDecoder batch =
                BuildDecoder({.transformer = options, .cross = {linear}}).batch;
            // memory * 2 is not a leaf, so a second backward pass through its graph would throw.
            y = batch->forward(x, memory * 2);
            parameters = batch->parameters();
          } else {
            TransformerEncoder batch = BuildTransformer(options).batch;
            y = batch->forward(x, Mask{.causal = true});
            parameters = batch->parameters();
          }
          y.square().sum().backward();
          all.push_back(y.detach());
          for (const Tensor& p : parameters) {
            if (p.grad().defined()) all.push_back(p.grad());
          }
          if (leaf) all.push_back(x.grad());
          if (leaf && decoder) all.push_back(memory.grad());
        }
        ASSERT_EQ(results[0].size(), results[1].size());
        EXPECT_GT(results[0].size(), 30u);
        for (size_t i = 0; i < results[0].size(); ++i) {
          EXPECT_LT(Off(results[0][i], results[1][i]), 1e-5) << kind << decoder << leaf << i;
        }
      }
    }
  }
}

TEST(Transformer, RefusesInvalidSizes) {
  const TransformerOptions good{.pattern = {{.heads = 2, .query_dim = 4, .value_dim = 4}},
                                .layers = 1,
                                .d_model = 8,
                                .d_ff = 8};
  const auto refuses = [&](const auto& change) {
    TransformerOptions options = good;
    change(options);
    EXPECT_THROW(BuildTransformer(options), Error);
    EXPECT_THROW(BuildDecoder({.transformer = options}), Error);
  };
  BuildTransformer(good);
  refuses([](TransformerOptions& o) { o.layers = -1; });
  refuses([](TransformerOptions& o) { o.pattern[0].heads = 0; });
  refuses([](TransformerOptions& o) { o.pattern[0].query_dim = 0; });
  refuses([](TransformerOptions& o) { o.pattern[0].query_dim = -3; });
  refuses([](TransformerOptions& o) { o.pattern[0].value_dim = 0; });
  refuses([](TransformerOptions& o) { o.d_model = 0; });
  refuses([](TransformerOptions& o) { o.d_ff = 0; });
  refuses([](TransformerOptions& o) { o.dropout = 2; });
  refuses([](TransformerOptions& o) { o.pattern.clear(); });
}

// The probabilities of all 256 bytes sum to one, even with narrow components and with components
// whose mean lies outside the range of bytes.
TEST(MixtureOfLogistics, IsADistribution) {
  torch::manual_seed(4);
  const Tensor logits =
      torch::randn({50, 30}) * torch::tensor({1.0, 1.0, 3.0}).repeat_interleave(10);
  const Tensor nats = MixtureOfLogisticsNats(logits.unsqueeze(1).expand({50, 256, 30}),
                                             torch::arange(256).expand({50, 256}));
  EXPECT_LT(Off((-nats).exp().sum(1), torch::ones({50})), 1e-4);
}

TEST(MaskedCrossEntropy, CountsOnlyTheMask) {
  const Tensor logits = torch::randn({2, 4, 5}), targets = torch::randint(5, {2, 4}, torch::kInt64);
  Tensor mask = torch::zeros({2, 4});
  mask[0][1] = mask[1][3] = 1;
  const Tensor want = -(torch::log_softmax(logits[0][1], 0)[targets[0][1]] +
                        torch::log_softmax(logits[1][3], 0)[targets[1][3]]) /
                      2;
  EXPECT_LT(Off(MaskedCrossEntropy(logits, targets, mask), want), 1e-5);
}

// Compares gradients through log_softmax with finite differences. A target that needs more frames
// than its sequence has gets an infinite loss and does not affect the other sequences.
TEST(CtcNats, GradientsMatchFiniteDifferences) {
  torch::manual_seed(3);
  const auto wide = torch::TensorOptions().dtype(torch::kFloat64);
  const Tensor logits = torch::randn({3, 7, 4}, wide);
  const auto of = [](std::vector<int64_t> values) { return torch::tensor(values); };
  // The third target needs 6 frames: 4 tokens, and 2 blanks between equal neighbors. Its sequence
  // has 5.
  const Tensor targets = of({1, 2, 2, 0, 3, 1, 0, 0, 1, 1, 1, 2}).view({3, 4});
  const Tensor frames = of({7, 4, 5}), tokens = of({3, 2, 4});
  const auto loss = [&](const Tensor& x) {
    return CtcNats(torch::log_softmax(x, 2), targets, frames, tokens);
  };
  const Tensor leaf = logits.clone().requires_grad_();
  const Tensor nats = loss(leaf);
  EXPECT_TRUE(torch::isinf(nats[2]).item<bool>());
  nats.narrow(0, 0, 2).sum().backward();
  const double h = 1e-5;
  for (int64_t i = 0; i < logits.numel(); ++i) {
    Tensor more = logits.clone(), less = logits.clone();
    more.view({-1})[i] += h, less.view({-1})[i] -= h;
    const double slope = (loss(more) - loss(less)).narrow(0, 0, 2).sum().item<double>() / (2 * h);
    EXPECT_NEAR(leaf.grad().view({-1})[i].item<double>(), slope, 1e-7) << i;
  }
  // Frames behind a sequence's length are ignored.
  EXPECT_EQ(leaf.grad()[1].narrow(0, 4, 3).abs().max().item<double>(), 0);
  const Tensor all = logits.clone().requires_grad_();
  loss(all).sum().backward();
  EXPECT_TRUE(torch::isfinite(all.grad()).all().item<bool>());
  EXPECT_EQ(all.grad()[2].abs().max().item<double>(), 0);

  EXPECT_THROW(CtcNats(logits, targets, frames, of({3, 2, 5})), Error);
  EXPECT_THROW(CtcNats(logits, targets, of({8, 4, 5}), tokens), Error);
  EXPECT_THROW(CtcNats(logits, targets, frames, tokens, 4), Error);
  EXPECT_THROW(CtcNats(logits, targets.narrow(0, 0, 2), frames, tokens), Error);
  EXPECT_THROW(CtcNats(logits, targets, frames.to(torch::kFloat32), tokens), Error);
}

TEST(Optimizer, RefusesUnknownNames) {
  EXPECT_THROW(Optimizer({.name = "sgd"}, {}), Error);
  EXPECT_THROW(Optimizer({.rectify_from = 3}, {}), Error);
}

// Muon against its formulas. A matrix without a gradient stays as it is, and Adam updates the
// parameters that are not named as matrices.
TEST(Optimizer, MuonOrthogonalizesAverages) {
  torch::manual_seed(31);
  const Tensor start = torch::randn({20, 48}), idle = torch::randn({16, 16});
  const Tensor vector = torch::randn({7});
  const auto leaves = [&] {
    std::vector<Tensor> copies;
    for (const Tensor& x : {start, idle, vector}) copies.push_back(x.clone().requires_grad_());
    return copies;
  };
  std::vector<Tensor> parameters = leaves(), adams = leaves();
  const OptimizerOptions muon = {.name = "muon", .weight_decay = 0.1, .clip = 2};
  OptimizerOptions adam = muon;
  adam.name = "adam";
  Optimizer optimizer(muon, parameters, {0, 1}), reference(adam, adams);
  Tensor want = start.clone(), average = torch::zeros_like(start);
  for (const double rate : {0.1, 0.05, 0.02}) {
    const Tensor gradient = torch::randn({20, 48}), other = torch::randn({7});
    const Tensor clipped = gradient * (2 / gradient.norm());
    average = 0.95 * average + clipped;
    const ops::Orthogonal even = ops::Orthogonalize(clipped + 0.95 * average);
    want = (1 - 0.1 * rate) * want - rate * 0.2 * std::sqrt(48.0) * even.scale * even.matrix;
    parameters[0].mutable_grad() = gradient.clone();
    for (std::vector<Tensor>* list : {&parameters, &adams}) {
      (*list)[2].mutable_grad() = other.clone();
    }
    optimizer.Step(rate);
    reference.Step(rate);
    EXPECT_LT((parameters[0] - want).abs().max().item<double>(), 1e-4);
    EXPECT_FALSE(parameters[0].grad().defined());
  }
  EXPECT_TRUE(torch::equal(parameters[1], idle));
  EXPECT_TRUE(torch::equal(parameters[2], adams[2]));
}

// The names of HiddenMatrices() without the layers' common beginning.
std::vector<std::string> HiddenNames(const ModelSpec& spec) {
  SequenceModel model(spec);
  std::vector<std::string> names;
  const auto parameters = model->named_parameters();
  for (const size_t i : HiddenMatrices(*model)) {
    std::string name = parameters[i].key();
    const std::string begin = "transformer.layers.0.";
    names.push_back(name.rfind(begin, 0) == 0 ? name.substr(begin.size()) : name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Optimizer, HiddenMatricesAreFactorsOfProducts) {
  ModelSpec spec = SmallImages("full");
  spec.stack.repeat = 1;
  spec.stack.d_model = 32;
  spec.stack.convolution = 17;  // depthwise filters [32, 17]
  spec.stack.pattern[0] = {.kind = "full", .heads = 16, .query_dim = 2, .value_dim = 2};
  spec.input.value_embedding = 20;
  spec.input.pixel_above = true;
  spec.input.stem.channels = 16;
  spec.image()->width = 18, spec.input.max_length = 71;
  spec.input.patch = {.tokens = 18, .width = 32, .d_ff = 16, .convolution = 18};
  const std::vector<std::string> want = {"attention.key_projection.weight",
                                         "attention.out_projection.weight",
                                         "attention.query_projection.weight",
                                         "attention.value_projection.weight",
                                         "linear1.weight",
                                         "linear2.weight",
                                         "patch.in.weight",
                                         "patch.linear1.weight",
                                         "patch.linear2.weight",
                                         "patch.out.weight",
                                         "stem.features.0.weight",
                                         "stem.output.0.weight"};
  EXPECT_EQ(HiddenNames(spec), want);

  // rwkv7's r_k is [heads, head size].
  spec = SmallImages("rwkv7");
  spec.stack.repeat = 1;
  spec.stack.d_model = 256;
  spec.stack.pattern[0] = {.kind = "rwkv7", .heads = 16, .query_dim = 16, .value_dim = 16};
  for (const std::string& name : HiddenNames(spec)) EXPECT_EQ(name.find("r_k"), std::string::npos);
  EXPECT_FALSE(HiddenNames(spec).empty());
}

TEST(Optimizer, MuonRefusesVectors) {
  EXPECT_THROW(Optimizer({.name = "muon"}, {torch::zeros({20})}, {0}), Error);
  EXPECT_THROW(Optimizer({.name = "muon"}, {torch::zeros({20, 20})}, {1}), Error);
}

}  // namespace
}  // namespace linnet::nn
