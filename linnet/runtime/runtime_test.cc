#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numbers>
#include <set>

#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/io/safetensors.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/mixture_of_logistics_ref.h"
#include "linnet/runtime/copy.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/images.h"
#include "linnet/runtime/model_ref.h"
#include "linnet/runtime/narrow.h"

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

// More groups than one of every kind in narrow models too, and a wide channel that needs its factor.
ModelSpec WideImages() {
  ModelSpec spec = RaggedImages();
  spec.heads = 5, spec.query_dim = 24, spec.value_dim = 40, spec.d_model = 80, spec.d_ff = 330;
  spec.activation = "gelu";
  return spec;
}

// Positions added, one matrix for embedding and head.
ModelSpec TiedText() {
  ModelSpec spec = RaggedImages();
  spec.task = "text", spec.head = "categorical", spec.positions = "added", spec.tied = true;
  spec.text = {.unit = "character", .characters = "abcdefghijklmnopqrstuvwxyz"};
  spec.vocabulary = spec.classes = 29, spec.value_embedding = spec.d_model, spec.max_length = 60;
  return spec;
}

// A model with random weights, in each precision, and its plain twins.
class TestModel {
 public:
  explicit TestModel(const ModelSpec& spec) : spec_(spec) {
    const std::string path =
        (std::filesystem::temp_directory_path() / StrCat("linnet_runtime_test.", getpid()))
            .string();
    std::map<std::string, Floats> tensors;
    WriteCheckpoint(path, spec, "{\"steps\": 3}", [&](const TensorInfo& info) {
      size_t size = 1;
      for (int64_t n : info.shape) size *= static_cast<size_t>(n);
      Philox rng(7, tensors.size());
      Floats& values = tensors[info.name];
      const float scale =
          info.shape.size() == 2 ? 2 / std::sqrt(static_cast<float>(info.shape[1])) : 0.3f;
      for (size_t i = 0; i < size; ++i) values.push_back(std::min(scale, 0.3f) * rng.Normal());
      if (info.name.ends_with("norm1.weight")) values[2] = 25;
      if (info.name == "first_value.probability") {
        for (float& value : values) value = value > 0 ? value : 0;
      }
      return std::span<const float>(values);
    });
    {
      std::ifstream in(path, std::ios::binary);
      file.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::filesystem::remove(path);
    checkpoint_ = std::make_unique<Checkpoint>(
        Checkpoint::FromMemory(std::as_bytes(std::span(file)), "test model"));
    model = In(Precision::kF32);
  }

  std::shared_ptr<const Model> In(Precision precision) const {
    return Model::FromCheckpoint(*checkpoint_, {precision});
  }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

  // The head's outputs at each position.
  std::vector<Doubles> Outputs(const Tokens& tokens) const { return Outputs(tokens, *model); }
  std::vector<Doubles> Outputs(const Tokens& tokens, const Model& as, size_t prefix = 0) const {
    return ModelRef(*checkpoint_, as).Outputs(tokens, prefix);
  }

  Tokens RandomTokens(size_t count, uint64_t stream) const {
    Philox rng(3, stream);
    Tokens tokens(count);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec_.vocabulary)));
    }
    return tokens;
  }

  std::vector<char> file;
  std::shared_ptr<const Model> model;

 private:
  ModelSpec spec_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

const TestModel& Images() {
  static const TestModel model(RaggedImages());
  return model;
}
const TestModel& Grid() {
  static const TestModel model(GridImages());
  return model;
}
const TestModel& Wide() {
  static const TestModel model(WideImages());
  return model;
}
const TestModel& Text() {
  static const TestModel model(TiedText());
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
void CheckCut(const std::shared_ptr<const Model>& model, const std::vector<Doubles>& want,
              const Tokens& tokens, size_t cut, int threads, double tolerance = 1e-4) {
  Engine engine(model, {.threads = threads});
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
  EXPECT_LT(worst, tolerance) << "cut at " << cut << ", threads " << threads;
}

TEST_P(RuntimeTest, PrefixAndStepsMatchTheReferenceAtEveryCut) {
  const Tokens tokens = Images().RandomTokens(19, 0);
  const std::vector<Doubles> want = Images().Outputs(tokens);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    for (int threads : {1, 2}) CheckCut(Images().model, want, tokens, cut, threads);
  }
  const Tokens grid = Grid().RandomTokens(299, 0);
  const std::vector<Doubles> want_grid = Grid().Outputs(grid);
  for (size_t cut : {0, 1, 14, 15, 16, 191, 192, 205, 299}) {
    CheckCut(Grid().model, want_grid, grid, cut, 2);
  }
  const Tokens longer = Copy().RandomTokens(250, 0);
  const std::vector<Doubles> want_longer = Copy().Outputs(longer);
  for (size_t cut : {0, 1, 96, 191, 192, 193, 250})
    CheckCut(Copy().model, want_longer, longer, cut, 3);
}

// Narrow: the twin rounds what is almost the same to almost the same; where that lies between two
// values, an int8 step of one input apart.
TEST_P(RuntimeTest, NarrowModelsMatchTheReferenceThatRoundsAsTheyDo) {
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    const double tolerance = precision == Precision::kInt8 ? 0.05 : 0.02;
    for (const TestModel* of : {&Images(), &Wide(), &Copy(), &Text()}) {
      const auto model = of->In(precision);
      EXPECT_EQ(model->precision(), precision);
      const size_t length = of == &Copy() ? 200 : 19;
      const Tokens tokens = of->RandomTokens(length, 0);
      for (size_t cut : {size_t{0}, length / 2, length}) {
        const std::vector<Doubles> want = of->Outputs(tokens, *model, cut);
        for (int threads : {1, 2, 3}) CheckCut(model, want, tokens, cut, threads, tolerance);
      }
    }
  }
}

TEST_P(RuntimeTest, OtherAttentionsRunNarrowToo) {
  for (const char* map : {"relu", "polynomial2", "rff", "favor", "softmax"}) {
    ModelSpec spec = WideImages();
    if (map == std::string("softmax")) {
      spec.attention.kind = "full";
    } else {
      spec.attention.feature_map = map;
    }
    const TestModel model(spec);
    const Tokens tokens = model.RandomTokens(19, 0);
    const auto narrow = model.In(Precision::kBf16);
    for (size_t cut : {0, 11, 19}) {
      SCOPED_TRACE(map);
      CheckCut(narrow, model.Outputs(tokens, *narrow, cut), tokens, cut, 2, 0.02);
    }
  }
}

// All that a sequence gets when it is one of `batch`: the outputs of a prefix and of steps.
Floats RunOne(const TestModel& model, int threads, size_t batch, size_t which, size_t prefix,
              size_t steps, std::shared_ptr<const Model> as = nullptr) {
  Engine engine(as ? as : model.model, {.threads = threads});
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

TEST_P(RuntimeTest, OtherAttentionsMatchTheReference) {
  for (const char* map : {"relu", "polynomial2", "rff", "favor", "softmax"}) {
    ModelSpec spec = GridImages();
    if (map == std::string("softmax")) {
      spec.attention.kind = "full";
    } else {
      spec.attention.feature_map = map;
    }
    const TestModel model(spec);
    const Tokens tokens = model.RandomTokens(299, 0);
    const std::vector<Doubles> want = model.Outputs(tokens);
    for (size_t cut : {0, 1, 150, 299}) {
      for (int threads : {1, 2}) CheckCut(model.model, want, tokens, cut, threads);
    }
    const Floats alone = RunOne(model, 1, 1, 0, 5, 4);
    for (size_t batch : {3, 40}) EXPECT_EQ(RunOne(model, 2, batch, 1, 5, 4), alone) << map;
  }
}

TEST_P(RuntimeTest, NarrowModelsGiveTheSameBitsWithAnyThreadsAndCompany) {
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    for (const TestModel* of : {&Images(), &Wide()}) {
      const auto model = of->In(precision);
      const Floats alone = RunOne(*of, 1, 1, 0, 5, 4, model);
      for (int threads : {1, 2, 3, 5}) {
        for (size_t batch : {1, 2, 5, 9, 17, 40, 130}) {
          EXPECT_EQ(RunOne(*of, threads, batch, batch * 2 / 3, 5, 4, model), alone)
              << PrecisionName(precision) << " " << threads << " " << batch;
        }
      }
    }
  }
}

// What a narrow file holds is what the engine makes of the wide one.
TEST(WriteNarrowed, GivesTheSameBitsAsNarrowingWhenItIsLoaded) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_narrow_test.", getpid())).string();
  for (const TestModel* of : {&Wide(), &Copy(), &Text()}) {
    for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
      WriteNarrowed(of->checkpoint(), precision, path);
      EXPECT_LT(std::filesystem::file_size(path), of->file.size());
      const Checkpoint narrow = Checkpoint::Open(path);
      EXPECT_EQ(narrow.precision(), precision);
      EXPECT_EQ(narrow.training(), "{\"steps\": 3}");
      const auto model = Model::Open(path);
      EXPECT_EQ(model->precision(), precision);
      // Embeddings are rounded in the file: so the wide model with those.
      const Floats got = RunOne(*of, 2, 3, 1, 5, 4, model);
      WriteNarrowed(narrow, Precision::kF32, path);  // widened, in a file of its own
      EXPECT_EQ(Checkpoint::Open(path).precision(), Precision::kF32);
      EXPECT_EQ(RunOne(*of, 2, 3, 1, 5, 4, Model::Open(path, {precision})), got);
    }
  }
  std::filesystem::remove(path);
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

// What a sequence gets in a state with others that are further on, less far, or new, is what it gets
// alone.
// More threads than processors: barriers make them wait for the scheduler, and the engine goes over to
// one thread and back.
TEST(Engine, ACrowdChangesNoBit) {
  const Tokens tokens = Grid().RandomTokens(299, 0);
  std::vector<Floats> got;
  for (const int threads : {1, 2 * ThreadPool::AvailableProcessors() + 1}) {
    Engine engine(Grid().model, {.threads = threads});
    State state = engine.NewState(1);
    Floats& all = got.emplace_back(tokens.size() * engine.output_size());
    for (size_t t = 0; t < tokens.size(); ++t) {
      engine.Step(state, std::span(tokens).subspan(t, 1),
                  std::span(all).subspan(t * engine.output_size(), engine.output_size()));
    }
  }
  EXPECT_EQ(got[0], got[1]);
}

TEST(State, SequencesAtDifferentPlacesGoOnTogether) {
  for (const TestModel* of : {&Grid(), &Wide()}) {
    Engine engine(of->model, {.threads = 2});
    const size_t width = engine.output_size(), steps = 5;
    const std::vector<size_t> read = {7, 0, of == &Grid() ? size_t{200} : size_t{13}, 1};
    State together;
    Floats alone(read.size() * steps * width), got = alone;
    std::vector<Tokens> tokens;
    for (size_t i = 0; i < read.size(); ++i) {
      tokens.push_back(of->RandomTokens(read[i] + steps, i));
      State state = engine.NewState(1);
      if (read[i] > 0) engine.Prefix(state, std::span(tokens[i]).first(read[i]), read[i], {});
      together.Append(state);
      for (size_t t = 0; t < steps; ++t) {
        engine.Step(state, std::span(tokens[i]).subspan(read[i] + t, 1),
                    std::span(alone).subspan((i * steps + t) * width, width));
      }
    }
    Floats out(read.size() * width);
    for (size_t t = 0; t < steps; ++t) {
      Tokens column;
      for (size_t i = 0; i < read.size(); ++i) column.push_back(tokens[i][read[i] + t]);
      engine.Step(together, column, out);
      for (size_t i = 0; i < read.size(); ++i) {
        std::copy_n(out.begin() + static_cast<ptrdiff_t>(i * width), width,
                    got.begin() + static_cast<ptrdiff_t>((i * steps + t) * width));
      }
    }
    EXPECT_EQ(got, alone);
    for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(together.position(i), read[i] + steps);
  }
}

// Pieces of unequal length, read together and one by one: the same bits, in what comes out and in what
// is kept.
TEST(State, PiecesOfUnequalLengthAreReadTogether) {
  ModelSpec spec = LongCopy();
  spec.attention.kind = "full";
  const TestModel softmax(spec);
  spec = LongCopy(), spec.attention.feature_map = "rff";
  const TestModel features(spec);
  for (const auto& [of, model] :
       std::vector<std::pair<const TestModel*, std::shared_ptr<const Model>>>{
           {&Grid(), Grid().model},
           {&Grid(), Grid().In(Precision::kInt8)},
           {&Copy(), Copy().model},
           {&softmax, softmax.model},
           {&features, features.model}}) {
    for (const int threads : {1, 2, 3}) {
      for (const std::vector<size_t>& lengths : std::vector<std::vector<size_t>>{
               {5, 2, 40, 3, 17, 9}, {4, 4}, {3, 1, 6}, {2, 7, 191, 60, 130}, {11}}) {
        Engine engine(model, {.threads = threads});
        const size_t width = engine.output_size(), batch = lengths.size();
        State state = engine.NewState(batch + 1);
        engine.Prefix(state, of->RandomTokens((batch + 1) * 6, 0), 6, {});
        State apart = state.Clone();
        std::vector<size_t> chosen;
        for (size_t i = batch; i-- > 0;) chosen.push_back(i + 1);
        size_t all = 0;
        for (const size_t length : lengths) all += length;
        const Tokens tokens = of->RandomTokens(all, 1), next = of->RandomTokens(batch, 2);
        Floats got(batch * width), want = got, after = got, after_want = got;
        engine.Prefix(state, chosen, lengths, tokens, got);
        for (size_t i = 0, at = 0; i < batch; at += lengths[i++]) {
          engine.Prefix(apart, {&chosen[i], 1}, std::span(tokens).subspan(at, lengths[i]),
                        lengths[i], std::span(want).subspan(i * width, width));
        }
        EXPECT_EQ(got, want);
        engine.Step(state, chosen, next, after);
        engine.Step(apart, chosen, next, after_want);
        EXPECT_EQ(after, after_want);
        for (size_t i = 0; i < batch; ++i) EXPECT_EQ(state.position(chosen[i]), 7 + lengths[i]);
        EXPECT_EQ(state.position(0), 6u);
      }
    }
  }
  Engine engine(Grid().model, {.threads = 2});
  State state = engine.NewState(2);
  const Tokens tokens(5, 1);
  const std::vector<size_t> both = {0, 1}, same = {1, 1}, off = {1, 2};
  const auto refuses = [&](const std::vector<size_t>& chosen, const std::vector<size_t>& lengths) {
    EXPECT_THROW(engine.Prefix(state, chosen, lengths, tokens, {}), Error);
    EXPECT_EQ(state.position(0) + state.position(1), 0u);
  };
  refuses(both, {2, 2}), refuses(both, {5, 0}), refuses(both, {5}), refuses(same, {2, 3});
  refuses(off, {2, 3});
}

// Some sequences of a state go on and the others stay; what they get is what they get alone.
TEST(State, ChosenSequencesGoOnAndTheOthersStay) {
  for (const size_t batch : {5, 40}) {
    Engine engine(Grid().model, {.threads = 2});
    const size_t width = engine.output_size();
    State state = engine.NewState(batch);
    engine.Prefix(state, Grid().RandomTokens(batch * 20, 0), 20, {});
    const State before = state.Clone();
    std::vector<size_t> chosen;
    for (size_t i = batch; i-- > 1;) chosen.push_back(i);  // all but the first, backwards
    const Tokens piece = Grid().RandomTokens(chosen.size() * 3, 1), next = Tokens(chosen.size(), 7);
    Floats out(chosen.size() * width), want = out;
    engine.Prefix(state, chosen, piece, 3, {});
    engine.Step(state, chosen, next, out);
    State alone = before.Select(chosen);
    engine.Prefix(alone, piece, 3, {});
    engine.Step(alone, next, want);
    EXPECT_EQ(out, want);
    EXPECT_EQ(state.position(0), 20u);
    EXPECT_EQ(state.position(1), 24u);
    Floats first(width), same(width);
    State stayed = before.Select(std::vector<size_t>{0});
    engine.Step(state, std::vector<size_t>{0}, Tokens{1}, first);
    engine.Step(stayed, Tokens{1}, same);
    EXPECT_EQ(first, same);
    state.Reset(2);
    EXPECT_EQ(state.position(2), 0u);
    State fresh = engine.NewState(1);
    engine.Step(state, std::vector<size_t>{2}, Tokens{1}, first);
    engine.Step(fresh, Tokens{1}, same);
    EXPECT_EQ(first, same);
    const State kept = state.Clone();
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{1, 3, 1}, Tokens(3, 1), out), Error);
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{batch}, Tokens{1}, first), Error);
    EXPECT_THROW(engine.Step(state, std::vector<size_t>{}, Tokens{}, first), Error);
    EXPECT_EQ(state.position(1), kept.position(1));
    engine.Step(state, std::vector<size_t>{1, 3}, Tokens(2, 1), std::span(out).first(2 * width));
  }
}

TEST(State, ForkSelectAndAppendAreCopiesOfSequences) {
  Engine engine(Grid().model, {.threads = 1});
  const size_t width = engine.output_size();
  State state = engine.NewState(2);
  engine.Prefix(state, Grid().RandomTokens(2 * 40, 0), 40, {});
  State forks = state.Fork(3);
  EXPECT_EQ(forks.batch(), 6u);
  State chosen = forks.Select(std::vector<size_t>{4, 0, 4});
  chosen.Append(state);
  Floats two(2 * width), five(5 * width);
  engine.Step(state, Tokens{3, 3}, two);
  engine.Step(chosen, Tokens(5, 3), five);
  for (size_t i = 0; const size_t from : {1, 0, 1, 0, 1}) {
    EXPECT_TRUE(std::equal(five.begin() + static_cast<ptrdiff_t>(i * width),
                           five.begin() + static_cast<ptrdiff_t>((i + 1) * width),
                           two.begin() + static_cast<ptrdiff_t>(from * width)))
        << i;
    ++i;
  }
  EXPECT_THROW(state.Fork(0), Error);
  EXPECT_THROW(state.Select(std::vector<size_t>{2}), Error);
  EXPECT_THROW(state.position(2), Error);
  Engine other(Copy().model, {.threads = 1});
  EXPECT_THROW(state.Append(other.NewState(1)), Error);
  EXPECT_THROW(other.Step(state, Tokens{1, 1}, two), Error);
  // The same network with other positions, which a longer past would look for in vain.
  ModelSpec shorter = GridImages();
  shorter.height = 4, shorter.max_length = 59;
  Engine short_one(TestModel(shorter).model, {.threads = 1});
  engine.Prefix(state, Grid().RandomTokens(2 * 30, 1), 30, {});
  EXPECT_THROW(short_one.Step(state, Tokens{1, 1}, two), Error);
  EXPECT_THROW(state.Save("/tmp/none.state", *Grid().In(Precision::kBf16)), Error);
  EXPECT_THROW(state.Fork(size_t{1} << 63), Error);
  EXPECT_THROW(state.Fork(size_t{1} << 40), Error);
}

// Written by one process, continued by another, bit for bit.
TEST(State, ASavedOneGoesOnInAnotherProcess) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_state_test.", getpid())).string();
  for (const Precision precision : {Precision::kF32, Precision::kInt8}) {
    const auto model = Grid().In(precision);
    const Tokens prefix = Grid().RandomTokens(2 * 50, 0), next = Grid().RandomTokens(2 * 10, 1);
    const pid_t child = fork();
    if (child == 0) {
      Engine engine(model, {.threads = 1});
      State state = engine.NewState(2);
      engine.Prefix(state, prefix, 50, {});
      state.Save(path, *model);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    Engine engine(model, {.threads = 2});
    State stayed = engine.NewState(2), loaded = State::Load(path, *model);
    engine.Prefix(stayed, prefix, 50, {});
    Floats a(2 * engine.output_size()), b = a;
    for (size_t t = 0; t < 10; ++t) {
      engine.Step(stayed, std::span(next).subspan(2 * t, 2), a);
      engine.Step(loaded, std::span(next).subspan(2 * t, 2), b);
      EXPECT_EQ(a, b);
    }
    EXPECT_THROW(State::Load(path, *Images().model), Error);
    EXPECT_THROW(State::Load(path, *Grid().In(Precision::kBf16)), Error);
  }
  std::filesystem::remove(path);
}

TEST(State, RefusesFilesThatAreNoStateOfTheModel) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_state_test.", getpid())).string();
  const Model& model = *Grid().model;
  const auto refused = [&] {
    try {
      State::Load(path, model);
    } catch (const Error& error) {
      return std::string(error.what()).find(path) == 0;
    }
    return false;
  };
  EXPECT_TRUE(refused());  // not there
  { std::ofstream(path) << "no state"; }
  EXPECT_TRUE(refused());
  {
    std::ofstream out(path, std::ios::binary);
    out.write(Grid().file.data(), static_cast<std::streamsize>(Grid().file.size()));
  }
  EXPECT_TRUE(refused());  // a model
  Engine engine(Grid().model, {.threads = 1});
  State state = engine.NewState(1);
  engine.Prefix(state, Grid().RandomTokens(50, 0), 50, {});
  state.Save(path, model);
  EXPECT_EQ(State::Load(path, model).position(), 50u);
  // The same file with one tensor changed: a place beyond the model's, symbols that it has not, no
  // numbers, another shape.
  const SafetensorsFile good = SafetensorsFile::Open(path);
  const auto metadata = good.metadata().at("linnet.state");
  const size_t floats = good.Get("state").data.size() / 4,
               reach = good.Get("recent").data.size() / 4;
  const auto write = [&](int64_t position, float value, int32_t symbol, int64_t rows,
                         uint8_t waiting = 0) {
    const std::vector<uint8_t> keys(static_cast<size_t>(rows), waiting);
    const std::vector<int64_t> positions(static_cast<size_t>(rows), position);
    const Floats values(floats, value);
    const Tokens symbols(reach, symbol);
    SafetensorsWriter writer;
    writer.SetMetadata("linnet.state", metadata);
    writer.Add("position", DType::kI64, {rows}, positions.data());
    writer.Add("waiting", DType::kU8, {rows}, keys.data());
    writer.Add("state", DType::kF32, {1, static_cast<int64_t>(floats)}, values.data());
    writer.Add("recent", DType::kI32, {1, static_cast<int64_t>(reach)}, symbols.data());
    writer.Write(path);
  };
  write(50, 1.0f, 3, 1);
  EXPECT_FALSE(refused());
  write(-1, 1.0f, 3, 1);
  EXPECT_TRUE(refused());
  write(300, 1.0f, 3, 1);
  EXPECT_TRUE(refused());
  write(50, NAN, 3, 1);
  EXPECT_TRUE(refused());
  write(50, 1.0f, -1, 1);
  EXPECT_TRUE(refused());
  write(50, 1.0f, 256, 1);
  EXPECT_TRUE(refused());
  write(50, 1.0f, 3, 2);
  EXPECT_TRUE(refused());
  write(50, 1.0f, 3, 1, 7);
  EXPECT_FALSE(refused());
  write(50, 1.0f, 3, 1, 8);
  EXPECT_TRUE(refused());
  write(5, 1.0f, 3, 1, 6);
  EXPECT_TRUE(refused());
  std::filesystem::remove(path);
}

TEST(State, ClonesForkAndResetForgets) {
  Engine engine(Images().model, {.threads = 1});
  const Tokens tokens = Images().RandomTokens(6, 0);
  Floats a(engine.output_size()), b = a, c = a, first = a;
  State state = engine.NewState(1);
  EXPECT_EQ(state.bytes(), StateBytes(RaggedImages(), Precision::kF32));
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
  EXPECT_EQ(fork.batch() + fork.bytes(), 0u);  // NOLINT: promised to be empty
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
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.NewState(0); }), "at least one"));
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
  AddFeatureMap({.name = "of one's own"});
  spec.attention.feature_map = "of one's own";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }),
                       "feature map 'of one's own'; it runs elu, relu"));
  spec.attention.kind = "kernel";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }), "'kernel'; it runs causal-linear"));
  spec.attention.kind = "reformer", spec.attention.lsh_variant = "simple";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }), "it runs 'published'"));
}

ModelSpec Hashing(ModelSpec spec) {
  spec.attention.kind = "reformer";
  spec.attention.lsh_rounds = 2, spec.attention.lsh_buckets = 6, spec.attention.lsh_chunk = 7;
  return spec;
}

TEST_P(RuntimeTest, WholeSequencesMatchTheReference) {
  for (const ModelSpec& spec : {Hashing(RaggedImages()), Hashing(GridImages()), LongCopy()}) {
    const TestModel model(spec);
    const auto length = static_cast<size_t>(spec.max_length);
    Tokens tokens = model.RandomTokens(3 * length, 0);
    for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
      // Rounded queries may fall on two sides of a plane: then the same bits in any company are all.
      const bool compare = precision == Precision::kF32 || spec.attention.kind != "reformer";
      const auto in = model.In(precision);
      const std::vector<Doubles> want =
          model.Outputs({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length)}, *in,
                        /*prefix=*/length);
      Floats first;
      for (int threads : {1, 2}) {
        Engine engine(in, {.threads = threads});
        const size_t width = engine.output_size();
        for (const size_t batch : {size_t{1}, size_t{3}}) {
          Floats all(batch * length * width), last(batch * width);
          const auto read = std::span(tokens).first(batch * length);
          engine.Whole(batch, read, length, all);
          engine.Whole(batch, read, length, last);
          for (size_t t = 0; compare && t < length; ++t) {
            for (size_t o = 0; o < width; ++o) {
              ASSERT_NEAR(all[t * width + o], want[t][o],
                          precision == Precision::kF32    ? 1e-4
                          : precision == Precision::kBf16 ? 0.02
                                                          : 0.05)
                  << t;
            }
          }
          EXPECT_TRUE(std::equal(last.begin(), last.begin() + static_cast<ptrdiff_t>(width),
                                 all.begin() + static_cast<ptrdiff_t>((length - 1) * width)));
          all.resize(length * width);
          if (first.empty()) first = all;
          EXPECT_EQ(all, first) << "with " << threads << " threads, batch " << batch;
        }
      }
    }
  }
}

TEST(Engine, WhatIsNoRnnReadsWholeSequencesOnly) {
  const TestModel model(Hashing(RaggedImages()));
  EXPECT_FALSE(model.model->steps());
  EXPECT_EQ(StateBytes(model.model->spec(), Precision::kF32), 0u);
  Engine engine(model.model, {.threads = 1});
  EXPECT_TRUE(Contains(ErrorOf([&] { engine.NewState(1); }), "'reformer' is no RNN"));
  Floats out(engine.output_size());
  const Tokens tokens(20, 1), outside = {1, 256};
  EXPECT_THROW(engine.Whole(1, tokens, 20, out), Error);  // 19 positions
  EXPECT_THROW(engine.Whole(1, outside, 2, out), Error);
  EXPECT_THROW(engine.Whole(2, std::span(tokens).first(9), 4, out), Error);
  EXPECT_THROW(engine.Whole(1, std::span(tokens).first(9), 9, std::span(out).first(3)), Error);
  EXPECT_NO_THROW(engine.Whole(1, std::span(tokens).first(9), 9, out));
}

TEST(Images, AreDrawnByWhatIsNoRnnToo) {
  const TestModel model(Hashing(RaggedImages()));
  Engine engine(model.model, {.threads = 2}), single(model.model, {.threads = 1});
  const SampleOptions options{.seed = 4};
  const std::vector<uint8_t> images = SampleImages(engine, 5, options);
  EXPECT_EQ(SampleImages(single, 5, {.seed = 4, .batch = 2}), images);
  EXPECT_EQ(CompleteImages(engine, images, 6, options), images);  // it continues what it began
  const BitsPerDimResult bits = BitsPerDim(engine, images);
  const std::vector<Doubles> outputs = model.Outputs(Tokens(images.begin(), images.begin() + 19));
  double sum = 0;
  for (size_t t = 0; t < 19; ++t) {
    sum += kernels::MixtureOfLogisticsRef(outputs[t], images[t + 1]) / std::numbers::ln2 / 19;
  }
  EXPECT_NEAR(bits.image[0], sum, 1e-3);
}

TEST(Images, AbsurdCountsAreRefusedAndBatchesCut) {
  Engine engine(Images().model, {.threads = 1});
  EXPECT_THROW(SampleImages(engine, SIZE_MAX / 3, {}), Error);
  EXPECT_EQ(SampleImages(engine, 2, {.batch = SIZE_MAX}), SampleImages(engine, 2, {.batch = 1}));
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
