#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "linnet/base/thread_pool.h"
#include "linnet/engine.h"
#include "linnet/io/safetensors.h"
#include "linnet/kernels/test_util.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/test_models.h"
#include "linnet/runtime/test_runs.h"

namespace linnet {
namespace {

using kernels::AvailableIsas;
using kernels::OnEachIsa;
using kernels::TestName;

LINNET_SUITE_ON_EACH_ISA(RuntimeTest);

TEST_P(RuntimeTest, PrefixAndStepsMatchTheReferenceAtEveryCut) {
  const Tokens tokens = Images().RandomTokens(19, 0);
  const std::vector<Doubles> want = Images().Outputs(tokens);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    for (int threads : {1, 2}) CheckCut(Images().model, want, tokens, cut, threads);
  }
  const Tokens text = Modern().RandomTokens(50, 0);
  const std::vector<Doubles> want_text = Modern().Outputs(text);
  for (size_t cut : {0, 1, 17, 50}) CheckCut(Modern().model, want_text, text, cut, 2);
  const Tokens grid = Grid().RandomTokens(299, 0);
  const std::vector<Doubles> want_grid = Grid().Outputs(grid);
  for (size_t cut : {0, 1, 14, 15, 16, 191, 192, 205, 299}) {
    CheckCut(Grid().model, want_grid, grid, cut, 2);
  }
  Tokens pixels = Pixels().RandomTokens(220, 0);
  pixels[0] = kBeginPixel;
  const std::vector<Doubles> want_pixels = Pixels().Outputs(pixels);
  for (size_t cut : {0, 1, 9, 10, 11, 12, 191, 192, 220}) {
    CheckCut(Pixels().model, want_pixels, pixels, cut, 2);
  }
  const Tokens longer = Copy().RandomTokens(250, 0);
  const std::vector<Doubles> want_longer = Copy().Outputs(longer);
  for (size_t cut : {0, 1, 96, 191, 192, 193, 250})
    CheckCut(Copy().model, want_longer, longer, cut, 3);
}

// If a value is nearly halfway between two bf16 or int8 numbers, the engine and the reference may
// round it in opposite directions. So the tolerance allows for one rounding step of one input.
TEST_P(RuntimeTest, NarrowModelsMatchTheRoundingReference) {
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    const double tolerance = precision == Precision::kInt8 ? 0.05 : 0.02;
    for (const TestModel* of : {&Images(), &Pixels(), &Wide(), &Copy(), &Text(), &Modern()}) {
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

TEST_P(RuntimeTest, OtherAttentionsRunInNarrowPrecision) {
  for (const char* map : {"relu", "polynomial2", "rff", "favor", "softmax"}) {
    ModelSpec spec = WideImages();
    if (map == std::string("softmax")) {
      spec.stack.mixer().kind = "full";
    } else {
      spec.stack.mixer().feature_map = map;
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

TEST_P(RuntimeTest, ResultsDoNotDependOnThreadsOrBatch) {
  const Floats images = RunOne(Images(), 1, 1, 0, 5, 4);
  const Floats grid = RunOne(Grid(), 1, 1, 0, 20, 20);
  const Floats pixels = RunOne(Pixels(), 1, 1, 0, 20, 20);
  const Floats copy = RunOne(Copy(), 1, 1, 0, 200, 2);
  for (int threads : {1, 2, 3}) {
    for (size_t batch : {1, 2, 3, 4, 5, 6, 7, 8, 9, 25, 130}) {
      const size_t which = batch * 2 / 3;
      EXPECT_EQ(RunOne(Images(), threads, batch, which, 5, 4), images) << threads << " " << batch;
      if (batch <= 9) {
        EXPECT_EQ(RunOne(Grid(), threads, batch, which, 20, 20), grid) << threads << " " << batch;
        EXPECT_EQ(RunOne(Pixels(), threads, batch, which, 20, 20), pixels) << threads << batch;
        EXPECT_EQ(RunOne(Copy(), threads, batch, which, 200, 2), copy) << threads << " " << batch;
      }
    }
  }
}

TEST_P(RuntimeTest, OtherAttentionsMatchTheReference) {
  for (const char* map : {"relu", "polynomial2", "rff", "favor", "softmax"}) {
    ModelSpec spec = GridImages();
    if (map == std::string("softmax")) {
      spec.stack.mixer().kind = "full";
    } else {
      spec.stack.mixer().feature_map = map;
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

TEST_P(RuntimeTest, NarrowModelsDoNotDependOnThreadsOrBatch) {
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

// A file in bf16 or int8 holds exactly the matrices that the engine makes of the fp32 file.
TEST(WriteNarrowed, EqualsNarrowingAtLoading) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_narrow_test.", getpid())).string();
  for (const TestModel* of : {&Wide(), &Copy(), &Text(), &Modern()}) {
    for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
      WriteNarrowed(of->checkpoint(), precision, path);
      EXPECT_LT(std::filesystem::file_size(path), of->file.size());
      const Checkpoint narrow = Checkpoint::Open(path);
      EXPECT_EQ(narrow.precision(), precision);
      // The file omits a position table that equals the computed one. Only the image models have
      // another table.
      EXPECT_EQ(narrow.Has("pos_embedding.pe"), narrow.spec().image() != nullptr);
      EXPECT_EQ(narrow.training(), "{\"steps\": 3}");
      const auto model = Model::Open(path);
      EXPECT_EQ(model->precision(), precision);
      // The file's embeddings are rounded, so compare with an fp32 file of the rounded values.
      const Floats got = RunOne(*of, 2, 3, 1, 5, 4, model);
      WriteNarrowed(narrow, Precision::kF32, path);  // the same values in fp32
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

// With more threads than processors, barriers wait for the operating system, and the engine may
// switch to one thread and back.
TEST(Engine, ResultsDoNotDependOnMoreThreadsThanProcessors) {
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

TEST(Engine, RefusedInputsLeaveTheStateUnchanged) {
  Engine engine(Images().model, {.threads = 1}), other(Copy().model, {.threads = 1});
  Floats out(engine.output_size()), want = out;
  State state = engine.NewState(1), twin = engine.NewState(1), empty;
  engine.Step(state, Tokens{5}, out);
  engine.Step(twin, Tokens{5}, out);
  const auto prefix = [&](const Tokens& tokens, size_t length) {
    return ErrorOf([&] { engine.Prefix(state, tokens, length, out); });
  };
  EXPECT_TRUE(Contains(prefix({1, 256}, 2), "token 256 is outside its vocabulary 0 .. 255"));
  EXPECT_TRUE(Contains(prefix({-1}, 1), "token -1"));
  EXPECT_TRUE(Contains(prefix(Tokens(19, 1), 19), "has 19 positions; 1 are read and 19 more"));
  EXPECT_TRUE(Contains(prefix({1, 2}, 1), "cannot read 2 tokens as 1 sequences of 1 each"));
  EXPECT_TRUE(Contains(prefix({}, 0), "cannot read 0 tokens"));
  EXPECT_TRUE(Contains(prefix({1, 2, 3}, 2), "cannot read 3 tokens"));
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

TEST(Model, OpensFilesAndMemory) {
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

TEST(Model, RefusesTrainingOnlyFeatureMaps) {
  ModelSpec spec = LongCopy();
  AddFeatureMap({.name = "of one's own"});
  spec.stack.mixer().feature_map = "of one's own";
  EXPECT_TRUE(Contains(ErrorOf([&] { TestModel model(spec); }),
                       "feature map 'of one's own' does not run outside training"));
}

TEST_P(RuntimeTest, WholeSequencesMatchTheReference) {
  for (const ModelSpec& spec : {Hashing(RaggedImages()), Hashing(GridImages()), LongCopy()}) {
    const TestModel model(spec);
    const auto length = static_cast<size_t>(spec.input.max_length);
    Tokens tokens = model.RandomTokens(3 * length, 0);
    for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
      // Rounded queries may fall on either side of a hash plane. So narrow models that hash are not
      // compared with the reference. The test only checks that their outputs do not depend on batch
      // and threads.
      const bool compare = precision == Precision::kF32 || spec.stack.mixer().kind != "reformer";
      const auto in = model.In(precision);
      const std::vector<Doubles> want = model.Outputs(
          Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length)), *in,
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

// A model without recurrent state keeps its tokens and reads them again: each call gives the
// outputs of Whole().
TEST(Engine, ModelsWithoutRecurrentStateRereadTheirTokens) {
  const TestModel model(Hashing(RaggedImages()));
  EXPECT_FALSE(model.model->steps());
  Engine engine(model.model, {.threads = 1});
  const size_t width = engine.output_size();
  Floats out(width), want(width);
  const Tokens tokens = model.RandomTokens(20, 0), outside = {1, 256};
  EXPECT_THROW(engine.Whole(1, tokens, 20, out), Error);  // the model has only 19 positions
  EXPECT_THROW(engine.Whole(1, outside, 2, out), Error);
  EXPECT_THROW(engine.Whole(2, std::span(tokens).first(9), 4, out), Error);
  EXPECT_THROW(engine.Whole(1, std::span(tokens).first(9), 9, std::span(out).first(3)), Error);
  State state = engine.NewState(1);
  EXPECT_EQ(state.bytes(), StateBytes(model.model->spec(), Precision::kF32));
  size_t read = 0;
  for (const size_t piece : {4, 1, 1, 7}) {
    engine.Prefix(state, std::span(tokens).subspan(read, piece), piece, out);
    read += piece;
    engine.Whole(1, std::span(tokens).first(read), read, want);
    EXPECT_EQ(out, want) << read;
    EXPECT_EQ(state.position(), read);
  }
  EXPECT_THROW(engine.Prefix(state, std::span(tokens).first(7), 7, out), Error);
  EXPECT_EQ(state.position(), read);
}

}  // namespace
}  // namespace linnet
