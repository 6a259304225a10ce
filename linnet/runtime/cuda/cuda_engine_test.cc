// Two programs are built from this file. cuda_engine_test runs CudaEngine on a GPU, and skips its
// tests if there is none. cuda_engine_on_executor_test runs it on the CPU, with fewer positions.
// The environment variable LINNET_MODEL names an image model to test besides the random ones.
#include "linnet/runtime/cuda/cuda_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/engine.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/model/checkpoint.h"
#include "linnet/rng.h"
#include "linnet/runtime/test_models.h"

namespace linnet {
namespace {

// Two layers of the default sizes.
ModelSpec PaperImages() {
  ModelSpec spec;
  spec.stack.repeat = 2;
  return spec;
}

// A model with grid positions, pixel_above, norm_first, gelu, odd head widths and three channels.
ModelSpec GridOnGpu() {
  ModelSpec spec = GridImages();
  spec.stack.mixer().heads = 8;
  spec.stack.activation = Activation::kGelu;
  spec.stack.d_model = 40, spec.stack.d_ff = 56, spec.input.value_embedding = 16;
  return spec;
}

// A model with heads wider than a warp and without a final norm.
ModelSpec WideHeads() {
  ModelSpec spec = RaggedImages();
  spec.stack.mixer().heads = 2, spec.stack.mixer().query_dim = 72;
  spec.stack.mixer().value_dim = 44, spec.stack.final_norm = false;
  spec.stack.d_model = 264, spec.stack.d_ff = 104, spec.input.value_embedding = 104;
  return spec;
}

// Few positions, so that tests can draw whole images.
ModelSpec SmallImages() {
  ModelSpec spec = RaggedImages();
  spec.stack.mixer().heads = 8, spec.stack.d_ff = 56;
  return spec;
}

struct Case {
  std::string name;
  const Checkpoint* checkpoint;
};

class CudaEngineTest : public testing::Test {
 protected:
  // The reason why there is no GPU to test on; "" if there is one.
  static std::string Lacks() {
    try {
      CudaEngine::FindDevice();
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  // Whether the kernels are slow: on the executor, or, with LINNET_SLOW_GPU, under a sanitizer.
  static bool Slow() {
    return CudaEngine::FindDevice() == "executor" || std::getenv("LINNET_SLOW_GPU") != nullptr;
  }

  static const std::vector<Case>& Cases() {
    static const TestModel paper(PaperImages(), 2), grid(GridOnGpu(), 2), wide(WideHeads(), 2);
    static std::vector<Case> cases = {{"paper", &paper.checkpoint()},
                                      {"grid", &grid.checkpoint()},
                                      {"wide heads", &wide.checkpoint()}};
    static std::unique_ptr<Checkpoint> given;
    if (const char* path = std::getenv("LINNET_MODEL"); path != nullptr && given == nullptr) {
      given = std::make_unique<Checkpoint>(Checkpoint::Open(path));
      cases.push_back({path, given.get()});
    }
    return cases;
  }

  // The random tokens of all sequences at one position.
  static Tokens Column(const ModelSpec& spec, size_t batch, size_t position) {
    Tokens tokens(batch);
    for (size_t i = 0; i < batch; ++i) {
      tokens[i] = static_cast<int32_t>(
          Philox(3, i, position).Below(static_cast<uint32_t>(spec.input.vocabulary)));
    }
    return tokens;
  }
  // Steps both engines from position `from` on. Returns the largest difference of their outputs,
  // divided by the largest output.
  template <class A, class B>
  static double Difference(size_t from, size_t steps, size_t batch, const Checkpoint& checkpoint,
                           const A& step_a, const B& step_b) {
    const size_t width = static_cast<size_t>(checkpoint.spec().OutputSize());
    Floats a(batch * width), b(batch * width);
    double worst = 0, largest = 0;
    for (size_t t = from; t < from + steps; ++t) {
      const Tokens tokens = Column(checkpoint.spec(), batch, t);
      step_a(tokens, a);
      step_b(tokens, b);
      for (size_t i = 0; i < a.size(); ++i) {
        const double off = std::abs(double{a[i]} - b[i]);
        worst = std::max(worst, std::isnan(off) ? INFINITY : off);
        largest = std::max(largest, std::abs(double{b[i]}));
      }
    }
    return worst / largest;
  }
};

TEST_F(CudaEngineTest, StepsLikeTheCpu) {
  if (const std::string lacks = Lacks(); !lacks.empty()) GTEST_SKIP() << lacks;
  for (const Case& c : Cases()) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      // The first two batches use the kernels for few sequences, the last one those for many.
      for (const auto& [batch, lanes] : {std::pair<size_t, size_t>{1, 1}, {3, 2}, {37, 2}}) {
        Engine cpu(Model::FromCheckpoint(*c.checkpoint, {Precision::kF32}));
        State state = cpu.NewState(batch);
        CudaEngine gpu(*c.checkpoint, {.batch = batch, .precision = precision, .lanes = lanes});
        // On the executor, a step of the paper's model with three sequences takes a second.
        const size_t on_executor = batch > 1 && c.name == "paper" ? 3 : 20;
        const size_t steps = std::min<size_t>(
            Slow() ? on_executor : 300, static_cast<size_t>(c.checkpoint->spec().input.max_length));
        const double off = Difference(
            0, steps, batch, *c.checkpoint,
            [&](const Tokens& tokens, Floats& out) { gpu.Step(tokens, out); },
            [&](const Tokens& tokens, Floats& out) { cpu.Step(state, tokens, out); });
        std::cout << c.name << ", " << PrecisionName(precision) << ", batch " << batch
                  << ": difference " << off << "\n";
        EXPECT_LE(off, precision == Precision::kF32 ? 1e-4 : 0.05) << c.name;
      }
    }
  }
}

TEST_F(CudaEngineTest, DrawsLikeTheCpu) {
  if (const std::string lacks = Lacks(); !lacks.empty()) GTEST_SKIP() << lacks;
  static const TestModel small(SmallImages(), 2);
  const size_t pixels = 20, known = 3, mixtures = 3;
  Engine cpu(small.model);
  for (const auto& [batch, count, lanes] : {std::tuple{6, 5, 2}, {40, 38, 1}}) {
    const ImageDraws draws{.seed = 5, .first_stream = 70, .temperature = 0.9f};
    std::vector<uint8_t> drawn(static_cast<size_t>(count) * pixels);
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = static_cast<uint8_t>(i * 37);
    std::vector<uint8_t> want = drawn;
    CudaEngine gpu(small.checkpoint(),
                   {.batch = static_cast<size_t>(batch), .lanes = static_cast<size_t>(lanes)});
    // A second call draws the same bytes again.
    for (int pass = 0; pass < 2; ++pass) gpu.Draw(drawn, known, draws);
    int differing = 0;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      uint8_t* sequence = &want[i * pixels];
      State state = cpu.NewState(1);
      Floats out(cpu.output_size());
      cpu.Prefix(state, Tokens(sequence, sequence + known), known, out);
      for (size_t p = known; p < pixels; ++p) {
        Philox rng(draws.seed, draws.first_stream + i, p);
        const float u = rng.Uniform(), v = rng.Uniform();
        sequence[p] = kernels::SampleMixtureOfLogistics(mixtures, out.data(), u, v,
                                                        {.temperature = draws.temperature});
        const int32_t token = sequence[p];
        if (p + 1 < pixels) cpu.Step(state, {&token, 1}, out);
      }
      differing += !std::equal(sequence, sequence + pixels, &drawn[i * pixels]);
    }
    EXPECT_LE(differing, 1) << "a byte of one sequence may be rounded differently";
  }
}

TEST_F(CudaEngineTest, StatesMoveBetweenCpuAndGpu) {
  if (const std::string lacks = Lacks(); !lacks.empty()) GTEST_SKIP() << lacks;
  for (const Case& c : Cases()) {
    if (Slow() && c.name == "paper") continue;
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      const size_t batch = precision == Precision::kF32 || Slow() ? 5 : 40;
      Engine cpu(Model::FromCheckpoint(*c.checkpoint, {precision}));
      State whole = cpu.NewState(batch), part = cpu.NewState(batch);
      CudaEngine gpu(*c.checkpoint, {.batch = batch, .precision = precision, .lanes = 2});
      const auto on_cpu = [&](State& state) {
        return [&](const Tokens& tokens, Floats& out) { cpu.Step(state, tokens, out); };
      };
      const auto on_gpu = [&](const Tokens& tokens, Floats& out) { gpu.Step(tokens, out); };
      const double allowed = precision == Precision::kF32 ? 1e-4 : 0.05;
      const size_t all = std::min<size_t>(
          Slow() ? 60 : 1000, static_cast<size_t>(c.checkpoint->spec().input.max_length));
      if (all < 60) continue;
      size_t t = 0;
      for (const size_t steps : {all / 8, all / 10}) {
        EXPECT_LE(Difference(t, steps, batch, *c.checkpoint, on_cpu(part), on_cpu(whole)), allowed);
        t += steps;
        gpu.SetState(part);
        EXPECT_EQ(gpu.position(), t);
        constexpr size_t kOnGpu = 20;  // more positions than between two folds
        EXPECT_LE(Difference(t, kOnGpu, batch, *c.checkpoint, on_gpu, on_cpu(whole)), allowed)
            << c.name << ", " << PrecisionName(precision) << " from " << t;
        t += kOnGpu;
        part = gpu.GetState();
        EXPECT_EQ(part.position(), t);
      }
      EXPECT_LE(Difference(t, 4, batch, *c.checkpoint, on_cpu(part), on_cpu(whole)), allowed);
    }
  }
}

// Of the model's tensors, only the first byte's distribution stays on the CPU. The head is padded
// to a multiple of 8 outputs.
TEST_F(CudaEngineTest, MemoryCountsTheWeightsOnTheGpu) {
  if (const std::string lacks = Lacks(); !lacks.empty()) GTEST_SKIP() << lacks;
  static const TestModel small(SmallImages(), 2);
  const ModelSpec& spec = small.checkpoint().spec();
  size_t floats = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    if (info.name == "first_value.probability") continue;
    floats += small.checkpoint().Tensor(info.name).size();
  }
  const auto outputs = static_cast<size_t>(spec.OutputSize());
  const size_t padding = RoundUp(outputs, 8) - outputs;
  ASSERT_GT(padding, 0u);
  floats += padding * (static_cast<size_t>(spec.stack.d_model) + 1);
  const CudaEngine gpu(small.checkpoint(), {.batch = 1});
  EXPECT_EQ(gpu.memory().weights, floats * sizeof(float));
}

TEST_F(CudaEngineTest, RefusesUnsupportedModels) {
  const auto refuses = [](const Checkpoint& checkpoint, const CudaOptions& options,
                          const std::string& says) {
    const std::string message = ErrorOf([&] { CudaEngine engine(checkpoint, options); });
    EXPECT_TRUE(Contains(message, says)) << message;
    EXPECT_FALSE(Contains(message, "\n"));
  };
  const Checkpoint& paper = *Cases()[0].checkpoint;
  if (!CudaEngine::Built()) return refuses(paper, {.batch = 1}, kNoCuda);
  refuses(paper, {.batch = 1, .precision = Precision::kInt8}, "int8 is not supported");
  refuses(Text().checkpoint(), {.batch = 1}, "only image models");
  ModelSpec spec = RaggedImages();
  spec.stack.mixer().kind = "full";
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "not causal-linear");
  spec = RaggedImages(), spec.stack.norm = NormKind::kRms;
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "RMS norms");
  spec = RaggedImages(), spec.stack.feed_forward = FeedForwardKind::kGated;
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "gated");
  spec = RaggedImages(), spec.input.stem.channels = 4;
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "it has a stem");
  spec = RaggedImages(), spec.input.patch = {.tokens = 5, .width = 18, .d_ff = 4};
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "it reads patches");
  spec = RaggedImages(), spec.head.bias = false;
  refuses(TestModel(spec).checkpoint(), {.batch = 1}, "no bias");
  const std::string lacks = Lacks();
  for (const Case& c : Cases()) {
    if (!lacks.empty()) refuses(*c.checkpoint, {.batch = 1}, lacks);
  }
  if (!lacks.empty()) GTEST_SKIP() << lacks;
  refuses(paper, {.batch = 100'000'000}, "choose a smaller batch");
}

}  // namespace
}  // namespace linnet
