#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numbers>
#include <set>

#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/kernels/activation_ref.h"
#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/layer_norm_ref.h"
#include "linnet/kernels/mixture_of_logistics_ref.h"
#include "linnet/runtime/copy.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/images.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Tokens = std::vector<int32_t>;

// Nothing in it is a multiple of anything.
ModelSpec RaggedImages() {
  ModelSpec spec;
  spec.layers = 2, spec.heads = 3, spec.query_dim = 5, spec.value_dim = 7, spec.d_model = 24;
  spec.d_ff = 50, spec.value_embedding = 14, spec.mixtures = 3;
  spec.width = 5, spec.height = 4, spec.max_length = 19;
  return spec;
}

// Every way of saying where a byte stands, and the other order of norms.
ModelSpec GridImages() {
  ModelSpec spec = RaggedImages();
  spec.value_embedding = 8, spec.positions = "grid", spec.pixel_above = true;
  spec.channels = 3, spec.height = 20, spec.max_length = 299;  // longer than a block
  spec.norm_first = true;
  return spec;
}

// More heads and hidden units than groups, no positions, no final norm, longer than a block.
ModelSpec LongCopy() {
  ModelSpec spec;
  spec.task = "copy", spec.head = "categorical", spec.vocabulary = spec.classes = 7;
  spec.layers = 1, spec.heads = 10, spec.query_dim = 2, spec.value_dim = 3, spec.d_model = 17;
  spec.d_ff = 149, spec.value_embedding = 17, spec.max_length = 250;
  spec.activation = "relu", spec.final_norm = false;
  return spec;
}

// A model with random weights, and the network written out in plain loops beside it.
class TestModel {
 public:
  explicit TestModel(const ModelSpec& spec) : spec_(spec) {
    const std::string path =
        (std::filesystem::temp_directory_path() / StrCat("linnet_runtime_test.", getpid()))
            .string();
    WriteCheckpoint(path, spec, "{\"steps\": 3}", [&](const TensorInfo& info) {
      size_t size = 1;
      for (int64_t n : info.shape) size *= static_cast<size_t>(n);
      Philox rng(7, tensors_.size());
      Floats& values = tensors_[info.name];
      for (size_t i = 0; i < size; ++i) values.push_back(0.3f * rng.Normal());
      if (info.name == "first_value.probability") {
        for (float& value : values) value = value > 0 ? value : 0;
      }
      return std::span<const float>(values);
    });
    model = Model::Open(path);
    std::ifstream in(path, std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(in), {});
    std::filesystem::remove(path);
  }

  // The head's outputs at each position.
  std::vector<Doubles> Outputs(const Tokens& tokens) const {
    const size_t heads = Size(spec_.heads), dim = Size(spec_.query_dim), m = Size(spec_.value_dim);
    const kernels::CausalLinearOptions options{kernels::FeatureMap::kElu, true,
                                               spec_.attention.eps};
    const auto activation =
        spec_.activation == "relu" ? kernels::Activation::kRelu : kernels::Activation::kGelu;
    std::vector<Doubles> x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      x.push_back(RowOf("value_embedding.weight", Size(tokens[t]), Size(spec_.value_embedding)));
      if (spec_.pixel_above) {
        const size_t row = Size(spec_.RowBytes());
        const Doubles above =
            RowOf("above_embedding.weight",
                  t + 1 < row ? Size(spec_.vocabulary) : Size(tokens[t + 1 - row]),
                  Size(spec_.value_embedding));
        for (size_t i = 0; i < above.size(); ++i) x[t][i] += above[i];
      }
      if (spec_.value_embedding < spec_.d_model) {
        const Doubles pe =
            RowOf("pos_embedding.pe", t, Size(spec_.d_model - spec_.value_embedding));
        x[t].insert(x[t].end(), pe.begin(), pe.end());
      }
    }
    for (int l = 0; l < spec_.layers; ++l) {
      const std::string layer = StrCat("transformer.layers.", l, ".");
      const std::vector<Doubles> read = spec_.norm_first ? AddNorm(x, {}, layer + "norm1") : x;
      const auto projection = [&](const char* which) {
        return Linear(layer + "attention." + which + "_projection", read);
      };
      const auto q = projection("query"), k = projection("key"), v = projection("value");
      std::vector<Doubles> attended(tokens.size());
      for (size_t h = 0; h < heads; ++h) {
        const auto head = [&](const std::vector<Doubles>& from, size_t width) {
          Doubles rows;
          for (const Doubles& row : from) {
            const auto begin = row.begin() + static_cast<ptrdiff_t>(h * width);
            rows.insert(rows.end(), begin, begin + static_cast<ptrdiff_t>(width));
          }
          return rows;
        };
        const kernels::CausalLinearRef ref(tokens.size(), dim, m, options, head(q, dim),
                                           head(k, dim), head(v, m), tokens.size());
        for (size_t t = 0; t < tokens.size(); ++t) {
          const Doubles out = ref.Out(t);
          attended[t].insert(attended[t].end(), out.begin(), out.end());
        }
      }
      const auto add = [&](const std::vector<Doubles>& part, const char* norm) {
        x = spec_.norm_first ? Sum(x, part) : AddNorm(x, part, layer + norm);
      };
      add(Linear(layer + "attention.out_projection", attended), "norm1");
      std::vector<Doubles> hidden =
          Linear(layer + "linear1", spec_.norm_first ? AddNorm(x, {}, layer + "norm2") : x);
      for (Doubles& row : hidden) {
        for (double& value : row) value = kernels::ActivationRef(activation, value);
      }
      add(Linear(layer + "linear2", hidden), "norm2");
    }
    if (spec_.final_norm) x = AddNorm(x, {}, "transformer.norm");
    return Linear("predictor", x);
  }

  Tokens RandomTokens(size_t count, uint64_t stream) const {
    Philox rng(3, stream);
    Tokens tokens(count);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec_.vocabulary)));
    }
    return tokens;
  }

  std::shared_ptr<const Model> model;
  std::vector<char> file;

 private:
  static size_t Size(int n) { return static_cast<size_t>(n); }

  Doubles RowOf(const std::string& name, size_t row, size_t width) const {
    const auto begin = tensors_.at(name).begin() + static_cast<ptrdiff_t>(row * width);
    return {begin, begin + static_cast<ptrdiff_t>(width)};
  }

  std::vector<Doubles> Linear(const std::string& name, const std::vector<Doubles>& x) const {
    const Floats& bias = tensors_.at(name + ".bias");
    std::vector<Doubles> y(x.size());
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < bias.size(); ++o) {
        const Doubles weight = RowOf(name + ".weight", o, x[t].size());
        double sum = bias[o];
        for (size_t i = 0; i < x[t].size(); ++i) sum += x[t][i] * weight[i];
        y[t].push_back(sum);
      }
    }
    return y;
  }

  static std::vector<Doubles> Sum(std::vector<Doubles> x, const std::vector<Doubles>& add) {
    for (size_t t = 0; t < x.size(); ++t) {
      std::transform(x[t].begin(), x[t].end(), add[t].begin(), x[t].begin(), std::plus<>());
    }
    return x;
  }

  std::vector<Doubles> AddNorm(const std::vector<Doubles>& x, const std::vector<Doubles>& add,
                               const std::string& name) const {
    std::vector<Doubles> y = add.empty() ? x : Sum(x, add);
    for (size_t t = 0; t < x.size(); ++t) {
      y[t] = kernels::LayerNormRef(y[t], tensors_.at(name + ".weight").data(),
                                   tensors_.at(name + ".bias").data(), spec_.norm_eps);
    }
    return y;
  }

  ModelSpec spec_;
  std::map<std::string, Floats> tensors_;
};

const TestModel& Images() {
  static const TestModel model(RaggedImages());
  return model;
}
const TestModel& Grid() {
  static const TestModel model(GridImages());
  return model;
}
const TestModel& Copy() {
  static const TestModel model(LongCopy());
  return model;
}

class RuntimeTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { kernels::ForceIsa(GetParam()); }
  void TearDown() override { kernels::ForceIsa(""); }
};
INSTANTIATE_TEST_SUITE_P(Isa, RuntimeTest, testing::ValuesIn(kernels::AvailableIsas()),
                         [](const auto& info) { return info.param; });

// A prefix up to the cut, then steps, against the network in plain loops.
void CheckCut(const TestModel& model, const std::vector<Doubles>& want, const Tokens& tokens,
              size_t cut, int threads) {
  Engine engine(model.model, {.threads = threads});
  const size_t width = engine.output_size();
  State state = engine.NewState(1);
  Floats got(tokens.size() * width);
  if (cut > 0) {
    engine.Prefix(state, std::span(tokens).first(cut), cut, std::span(got).first(cut * width));
  }
  for (size_t t = cut; t < tokens.size(); ++t) {
    engine.Step(state, std::span(tokens).subspan(t, 1), std::span(got).subspan(t * width, width));
  }
  EXPECT_EQ(state.position(), tokens.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - want[i / width][i % width]);
    if (!(off <= worst)) worst = off;
  }
  EXPECT_LT(worst, 1e-4) << "cut at " << cut << ", threads " << threads;
}

TEST_P(RuntimeTest, PrefixAndStepsMatchTheReferenceAtEveryCut) {
  const Tokens tokens = Images().RandomTokens(19, 0);
  const std::vector<Doubles> want = Images().Outputs(tokens);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    for (int threads : {1, 2}) CheckCut(Images(), want, tokens, cut, threads);
  }
  const Tokens grid = Grid().RandomTokens(299, 0);
  const std::vector<Doubles> want_grid = Grid().Outputs(grid);
  for (size_t cut : {0, 1, 14, 15, 16, 191, 192, 205, 299}) {
    CheckCut(Grid(), want_grid, grid, cut, 2);
  }
  const Tokens longer = Copy().RandomTokens(250, 0);
  const std::vector<Doubles> want_longer = Copy().Outputs(longer);
  for (size_t cut : {0, 1, 96, 191, 192, 193, 250}) CheckCut(Copy(), want_longer, longer, cut, 3);
}

// All that a sequence gets when it is one of `batch`: the outputs of a prefix and of steps.
Floats RunOne(const TestModel& model, int threads, size_t batch, size_t which, size_t prefix,
              size_t steps) {
  Engine engine(model.model, {.threads = threads});
  const size_t width = engine.output_size();
  std::vector<Tokens> tokens;
  Tokens block;
  for (size_t i = 0; i < batch; ++i) {
    // The sequence that is looked at is the same in every batch.
    tokens.push_back(model.RandomTokens(prefix + steps, i == which ? 1000 : i));
    block.insert(block.end(), tokens[i].begin(),
                 tokens[i].begin() + static_cast<ptrdiff_t>(prefix));
  }
  State state = engine.NewState(batch);
  Floats out(batch * prefix * width), result;
  const auto keep = [&](size_t rows) {
    const auto begin = out.begin() + static_cast<ptrdiff_t>(which * rows * width);
    result.insert(result.end(), begin, begin + static_cast<ptrdiff_t>(rows * width));
  };
  engine.Prefix(state, block, prefix, out);
  keep(prefix);
  out.resize(batch * width);
  for (size_t t = prefix; t < prefix + steps; ++t) {
    Tokens next;
    for (const Tokens& sequence : tokens) next.push_back(sequence[t]);
    engine.Step(state, next, out);
    keep(1);
  }
  return result;
}

TEST_P(RuntimeTest, ThreadsAndCompanyDoNotChangeABit) {
  const Floats images = RunOne(Images(), 1, 1, 0, 5, 4);
  const Floats grid = RunOne(Grid(), 1, 1, 0, 20, 20);
  const Floats copy = RunOne(Copy(), 1, 1, 0, 200, 2);
  for (int threads : {1, 2, 3}) {
    for (size_t batch : {1, 2, 3, 4, 5, 6, 7, 8, 9, 25, 130}) {
      const size_t which = batch * 2 / 3;
      EXPECT_EQ(RunOne(Images(), threads, batch, which, 5, 4), images) << threads << " " << batch;
      if (batch <= 9) {
        EXPECT_EQ(RunOne(Grid(), threads, batch, which, 20, 20), grid) << threads << " " << batch;
        EXPECT_EQ(RunOne(Copy(), threads, batch, which, 200, 2), copy) << threads << " " << batch;
      }
    }
  }
}

TEST(Engine, PrefixGivesAllOutputsTheLastOrNone) {
  Engine engine(Copy().model, {.threads = 2});
  const size_t length = 220, batch = 3, width = engine.output_size();
  const Tokens tokens = Copy().RandomTokens(batch * length, 0);
  Floats all(batch * length * width), last(batch * width);
  State a = engine.NewState(batch), b = engine.NewState(batch), c = engine.NewState(batch);
  engine.Prefix(a, tokens, length, all);
  engine.Prefix(b, tokens, length, last);
  engine.Prefix(c, tokens, length, {});
  for (size_t i = 0; i < batch; ++i) {
    const auto from = all.begin() + static_cast<ptrdiff_t>(((i + 1) * length - 1) * width);
    EXPECT_TRUE(std::equal(from, from + static_cast<ptrdiff_t>(width),
                           last.begin() + static_cast<ptrdiff_t>(i * width)));
  }
  Floats next_a(batch * width), next_c(batch * width);
  engine.Step(a, Tokens(batch, 1), next_a);
  engine.Step(c, Tokens(batch, 1), next_c);
  EXPECT_EQ(next_a, next_c);
}

TEST(State, ClonesForkAndResetForgets) {
  Engine engine(Images().model, {.threads = 1});
  const Tokens tokens = Images().RandomTokens(6, 0);
  Floats a(engine.output_size()), b = a, c = a, first = a;
  State state = engine.NewState(1);
  EXPECT_EQ(state.bytes(), static_cast<size_t>(RaggedImages().StateFloats()) * sizeof(float));
  engine.Step(state, std::span(tokens).first(1), first);
  State fork = state.Clone();
  EXPECT_EQ(fork.bytes(), state.bytes());
  engine.Step(state, Tokens{1}, a);
  engine.Step(fork, Tokens{2}, b);
  EXPECT_NE(a, b);
  EXPECT_EQ(fork.position(), 2u);
  state.Reset();
  EXPECT_EQ(state.position(), 0u);
  engine.Step(state, std::span(tokens).first(1), c);
  EXPECT_EQ(c, first);
  const State moved = std::move(fork);
  EXPECT_EQ(moved.position(), 2u);
  EXPECT_EQ(fork.batch() + fork.position() + fork.bytes(), 0u);  // NOLINT: promised to be empty
  engine.Step(state, Tokens{2}, c);
  EXPECT_EQ(c, b);
}

// The message of the InputError that body throws.
template <class Body>
std::string ErrorOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Engine, RefusesWhatItCannotReadAndKeepsTheState) {
  Engine engine(Images().model, {.threads = 1}), other(Copy().model, {.threads = 1});
  Floats out(engine.output_size()), want = out;
  State state = engine.NewState(1), twin = engine.NewState(1), empty;
  engine.Step(state, Tokens{5}, out);
  engine.Step(twin, Tokens{5}, out);
  const auto prefix = [&](const Tokens& tokens, size_t length) {
    return ErrorOf([&] { engine.Prefix(state, tokens, length, out); });
  };
  EXPECT_TRUE(Contains(prefix({1, 256}, 2), "symbol 256 is outside its vocabulary 0 .. 255"));
  EXPECT_TRUE(Contains(prefix({-1}, 1), "symbol -1"));
  EXPECT_TRUE(Contains(prefix(Tokens(19, 1), 19), "has 19 positions; 1 are read and 19 more"));
  EXPECT_TRUE(Contains(prefix({1, 2}, 1), "a state of 1 sequences cannot read 2 symbols"));
  EXPECT_TRUE(Contains(prefix({}, 0), "cannot read 0 symbols"));
  EXPECT_TRUE(Contains(prefix({1, 2, 3}, 2), "cannot read 3 symbols"));
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.Step(state, Tokens{1}, {}); }), "room"));
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.Step(state, Tokens{1}, std::span(out).first(2)); }),
                       "outputs need 1 x 9 floats"));
  EXPECT_TRUE(Contains(ErrorOf([&] { other.Step(state, Tokens{1}, out); }), "not made for"));
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.Step(empty, {}, out); }), "not made for"));
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.NewState(0); }), "0 sequences"));
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.NewState(size_t{1} << 50); }), "takes"));
  EXPECT_EQ(state.position(), 1u);
  engine.Step(state, Tokens{7}, out);
  engine.Step(twin, Tokens{7}, want);
  EXPECT_EQ(out, want);
}

TEST(Model, OpensFilesAndMemoryAlike) {
  const auto bytes = std::as_bytes(std::span(Images().file));
  const auto model = Model::FromMemory(bytes, "memory");
  EXPECT_EQ(model->path(), "memory");
  EXPECT_EQ(model->training(), "{\"steps\": 3}");
  EXPECT_EQ(model->spec(), RaggedImages());
  EXPECT_GT(model->weight_bytes(),
            static_cast<size_t>(ParameterCount(RaggedImages()) - 256 * 14) * sizeof(float));
  EXPECT_EQ(model->first_value().size(), 256u);
  Floats a(9), b(9);
  Engine from_memory(model, {.threads = 1}), from_file(Images().model, {.threads = 1});
  State state = from_memory.NewState(1), twin = from_file.NewState(1);
  from_memory.Step(state, Tokens{3}, a);
  from_file.Step(twin, Tokens{3}, b);
  EXPECT_EQ(a, b);
  EXPECT_TRUE(Contains(ErrorOf([&] { Model::FromMemory(bytes.first(200), "cut"); }), "cut: "));
}

TEST(Model, RefusesAKindThatCannotBeStepped) {
  ModelSpec spec = LongCopy();
  spec.attention.feature_map = "relu";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }), "feature map 'relu'; it runs elu"));
  spec.attention.kind = "full";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }), "'full'; it runs causal-linear"));
}

TEST(Images, SamplesDependOnSeedAndStreamOnly) {
  const size_t pixels = 20, count = 7;
  Engine engine(Images().model, {.threads = 2}), single(Images().model, {.threads = 1});
  const SampleOptions options{.seed = 4};
  const std::vector<uint8_t> images = SampleImages(engine, count, options);
  ASSERT_EQ(images.size(), count * pixels);
  EXPECT_GT(std::set<uint8_t>(images.begin(), images.end()).size(), 20u);
  for (size_t batch : {1, 2, 3}) {
    EXPECT_EQ(SampleImages(single, count, {.seed = 4, .batch = batch}), images);
  }
  const std::vector<uint8_t> later = SampleImages(engine, 2, {.seed = 4, .first_stream = 5});
  EXPECT_TRUE(std::equal(later.begin(), later.end(), images.begin() + 5 * pixels));
  EXPECT_NE(SampleImages(engine, count, {.seed = 5}), images);
  EXPECT_NE(SampleImages(engine, count, {.seed = 4, .reference_scale = true}), images);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_GT(Images().model->first_value()[images[i * pixels]], 0) << "an impossible first byte";
  }
}

// An image's rest is drawn with the same numbers whether its beginning was drawn or given.
TEST(Images, CompletionContinuesWhatSamplingBegan) {
  Engine engine(Images().model, {.threads = 2});
  const size_t pixels = 20;
  std::vector<uint8_t> images = SampleImages(engine, 3, {.seed = 4});
  const std::vector<uint8_t> want = images;
  for (size_t known : {1, 9, 19, 20}) {
    for (size_t i = 0; i < images.size(); ++i) images[i] = i % pixels < known ? want[i] : 0;
    EXPECT_EQ(CompleteImages(engine, images, known, {.seed = 4, .batch = 2}), want) << known;
  }
}

TEST(Images, BitsPerDimMatchesTheReference) {
  Engine engine(Images().model, {.threads = 2});
  const size_t pixels = 20, count = 5;
  std::vector<uint8_t> images(count * pixels);
  Philox rng(1);
  for (uint8_t& byte : images) byte = static_cast<uint8_t>(rng.Below(256));
  std::vector<size_t> reports;
  const auto report = [&](size_t done, size_t total) {
    EXPECT_EQ(total, count);
    reports.push_back(done);
  };
  const FunctionRef<void(size_t, size_t)> progress(report);
  const BitsPerDimResult result = BitsPerDim(engine, images, {.batch = 2, .progress = &progress});
  EXPECT_EQ(reports, (std::vector<size_t>{2, 4, 5}));
  ASSERT_EQ(result.image.size(), count);
  double mean = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* image = &images[i * pixels];
    const std::vector<Doubles> outputs = Images().Outputs(Tokens(image, image + pixels - 1));
    double bits = 0;
    for (size_t t = 0; t + 1 < pixels; ++t) {
      bits += kernels::MixtureOfLogisticsRef(outputs[t], image[t + 1]) / std::numbers::ln2 / 19;
    }
    EXPECT_NEAR(result.image[i], bits, 1e-3);
    mean += bits / count;
  }
  EXPECT_NEAR(result.mean, mean, 1e-3);
  EXPECT_EQ(BitsPerDim(engine, images).image, result.image);
}

TEST(Images, RefusesWhatMakesNoSense) {
  Engine engine(Images().model, {.threads = 1}), copy(Copy().model, {.threads = 1});
  const std::vector<uint8_t> image(20);
  EXPECT_TRUE(Contains(ErrorOf([&] { SampleImages(copy, 1, {}); }), "task 'copy', not of images"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CompleteImages(engine, image, 0, {}); }), "between 1 and 20"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CompleteImages(engine, image, 21, {}); }), "got 21"));
  EXPECT_TRUE(
      Contains(ErrorOf([&] { BitsPerDim(engine, std::span(image).first(7)); }), "20 bytes"));
  EXPECT_TRUE(Contains(ErrorOf([&] { SampleImages(engine, 1, {.temperature = 0}); }), "above 0"));
  EXPECT_TRUE(Contains(ErrorOf([&] { SampleImages(engine, 1, {.batch = 0}); }), "at least 1"));
}

TEST(CopySymbols, FeedsBackTheMostLikelySymbols) {
  Engine engine(Copy().model, {.threads = 1});
  const Tokens given = {3, 1, 4, 1, 5};
  Tokens read = given, want;
  read.push_back(0);
  while (want.size() < given.size()) {
    const Doubles last = Copy().Outputs(read).back();
    want.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    read.push_back(want.back());
  }
  EXPECT_EQ(CopySymbols(engine, given), want);
  EXPECT_EQ(CopySymbols(engine, Tokens(124, 1)).size(), 124u);
  EXPECT_TRUE(Contains(ErrorOf([&] { CopySymbols(engine, Tokens(125, 1)); }), "1 and 124"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CopySymbols(engine, Tokens{0}); }), "1 .. 6; got 0"));
  Engine images(Images().model, {.threads = 1});
  EXPECT_TRUE(Contains(ErrorOf([&] { CopySymbols(images, given); }), "cannot copy"));
}

}  // namespace
}  // namespace linnet
