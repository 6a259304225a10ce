// Tests models with patches (PatchSpec) in every form in which the engine runs them, against the
// network in plain loops (model_ref.h).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "linnet/engine.h"
#include "linnet/kernels/test_util.h"
#include "linnet/model/patches.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/test_models.h"
#include "linnet/runtime/test_runs.h"

namespace linnet {
namespace {

using kernels::AvailableIsas;
using kernels::OnEachIsa;
using kernels::TestName;

LINNET_SUITE_ON_EACH_ISA(PatchesTest);

// PatchImages() with another attention.
const TestModel& With(const std::string& kind) {
  static std::map<std::string, TestModel> models;
  const auto found = models.find(kind);
  if (found != models.end()) return found->second;
  ModelSpec spec = PatchImages();
  spec.stack.mixer().kind = kind;
  return models.try_emplace(kind, spec).first->second;
}

Tokens PixelTokensOf(const TestModel& of) {
  Tokens tokens = of.RandomTokens(220, 0);
  tokens[0] = kBeginPixel;
  return tokens;
}

// Small cases, counted by hand: patches of 5 tokens begin at tokens 5, 10, .. of gray images, whose
// position t predicts token t + 1, and at 0, 11, .. of pixels, whose position t predicts pixel t.
TEST(Patches, BeginWhereTheyAreCounted) {
  const ModelSpec gray = PatchImages(), pixels = PatchesOfPixels();
  for (const auto& [position, count] :
       {std::pair(0, 0), {4, 0}, {5, 1}, {9, 1}, {10, 2}, {299, 59}}) {
    EXPECT_EQ(PatchesBefore(gray, static_cast<size_t>(position)), static_cast<size_t>(count));
  }
  for (const auto& [position, count] : {std::pair(0, 0), {1, 1}, {11, 1}, {12, 2}, {220, 20}}) {
    EXPECT_EQ(PatchesBefore(pixels, static_cast<size_t>(position)), static_cast<size_t>(count));
  }
}

TEST_P(PatchesTest, PrefixAndStepsMatchTheReferenceAtEveryCut) {
  // Where the output of a gated mixer is nearly zero, its norm magnifies the rounding errors: here
  // to 1.5e-5 (scalar), 5e-5 (AVX2) and 1e-4 (AVX-512).
  const std::pair<const TestModel*, double> cases[] = {{&Patched(), 1e-5},
                                                       {&With("full"), 1e-5},
                                                       {&With("gated-delta-net"), 3e-4},
                                                       {&With("rwkv7"), 5e-5}};
  for (const auto& [of, tolerance] : cases) {
    const Tokens tokens = of->RandomTokens(299, 0);
    const std::vector<Doubles> want = of->Outputs(tokens);
    for (const size_t cut : {0, 1, 3, 4, 5, 6, 10, 14, 16, 191, 192, 193, 299}) {
      for (const int threads : {1, 2, 3}) {
        CheckCut(of->model, want, tokens, cut, threads, tolerance);
      }
    }
  }
  const Tokens pixels = PixelTokensOf(PatchedPixels());
  const std::vector<Doubles> want = PatchedPixels().Outputs(pixels);
  for (const size_t cut : {0, 1, 2, 11, 12, 13, 191, 192, 193, 220}) {
    for (const int threads : {1, 2}) CheckCut(PatchedPixels().model, want, pixels, cut, threads);
  }
}

// The tolerances are those of the test of the same name in engine_test.cc.
TEST_P(PatchesTest, NarrowModelsMatchTheRoundingReference) {
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    const double tolerance = precision == Precision::kInt8 ? 0.05 : 0.02;
    for (const TestModel* of : {&Patched(), &PatchedPixels()}) {
      const auto model = of->In(precision);
      Tokens tokens = of == &Patched() ? of->RandomTokens(41, 0) : PixelTokensOf(*of);
      tokens.resize(41);
      const std::vector<Doubles> want = of->Outputs(tokens, *model);
      for (const size_t cut : {0, 9, 41}) {
        for (const int threads : {1, 2}) CheckCut(model, want, tokens, cut, threads, tolerance);
      }
    }
  }
}

TEST_P(PatchesTest, ResultsDoNotDependOnThreadsOrBatch) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
    for (const TestModel* of : {&Patched(), &PatchedPixels(), &With("gated-delta-net")}) {
      const auto model = of->In(precision);
      const Floats alone = RunOne(*of, 1, 1, 0, 38, 14, model);
      for (const int threads : {1, 2, 3}) {
        for (const size_t batch : {1, 2, 5, 9, 40}) {
          EXPECT_EQ(RunOne(*of, threads, batch, batch * 2 / 3, 38, 14, model), alone)
              << PrecisionName(precision) << " " << threads << " " << batch;
        }
      }
    }
  }
}

// Mixers read patches one by one, so the cuts between calls do not matter, bit for bit.
TEST(Patches, WholePiecesAndStepsAreEqual) {
  for (const TestModel* of : {&Patched(), &With("gated-delta-net"), &With("full")}) {
    for (const Precision precision : {Precision::kF32, Precision::kInt8}) {
      const auto model = of->In(precision);
      const Tokens tokens = of->RandomTokens(299, 0);
      Floats want;
      for (const size_t piece : {299, 1, 2, 5, 7, 100, 193}) {
        Engine engine(model, {.threads = 2});
        State state = engine.NewState(1);
        const size_t width = engine.output_size();
        Floats got(299 * width);
        for (size_t at = 0; at < 299; at += piece) {
          const size_t count = std::min(piece, 299 - at);
          engine.Prefix(state, std::span(tokens).subspan(at, count), count,
                        std::span(got).subspan(at * width, count * width));
        }
        if (want.empty()) want = got;
        EXPECT_EQ(got, want) << piece;
      }
    }
  }
}

// Reads pieces of unequal length, of sequences at different positions, in one call and one by one;
// then steps, in which some sequences begin a patch and some do not.
TEST(Patches, SequencesArePacked) {
  for (const TestModel* of : {&Patched(), &With("gated-delta-net"), &With("rwkv7")}) {
    for (const auto& model : {of->model, of->In(Precision::kInt8)}) {
      for (const int threads : {1, 2, 3}) {
        Engine engine(model, {.threads = threads});
        const std::vector<size_t> places = {3, 0, 1, 2};
        const size_t width = engine.output_size();
        State packed = engine.NewState(4), apart = engine.NewState(4);
        for (const std::vector<size_t>& lengths :
             std::vector<std::vector<size_t>>{{100, 1, 31, 180}, {5, 40, 3, 62}, {1, 2, 1, 1}}) {
          size_t all = 0, at = 0;
          for (const size_t length : lengths) all += length;
          const Tokens tokens = of->RandomTokens(all, all);
          Floats got(4 * width), want = got;
          engine.Prefix(packed, places, lengths, tokens, got);
          for (size_t i = 0; i < 4; at += lengths[i++]) {
            engine.Prefix(apart, {&places[i], 1}, std::span(tokens).subspan(at, lengths[i]),
                          lengths[i], std::span(want).subspan(i * width, width));
          }
          EXPECT_EQ(got, want) << threads;
        }
        for (uint64_t t = 0; t < 7; ++t) {
          Floats got(4 * width), want = got;
          const Tokens next = of->RandomTokens(4, t);
          engine.Step(packed, next, got);
          for (size_t i = 0; i < 4; ++i) {
            engine.Step(apart, {&i, 1}, {&next[i], 1}, std::span(want).subspan(i * width, width));
          }
          EXPECT_EQ(got, want) << threads << " " << t;
        }
      }
    }
  }
}

// A model without a recurrent form computes all patches of a sequence again at each call.
TEST_P(PatchesTest, WholeSequencesMatchTheReference) {
  for (const ModelSpec& spec : {Hashing(PatchImages()), Hashing(PatchesOfPixels())}) {
    const TestModel model(spec);
    const auto length = static_cast<size_t>(spec.input.max_length);
    Tokens tokens = model.RandomTokens(length, 0);
    if (spec.input.whole_pixels) tokens[0] = kBeginPixel;
    const std::vector<Doubles> want = model.Outputs(tokens, *model.model, length);
    for (const int threads : {1, 2}) {
      Engine engine(model.model, {.threads = threads});
      Floats got(length * engine.output_size());
      engine.Whole(1, tokens, length, got);
      EXPECT_LT(Worst(got, want), 1e-4) << threads;
    }
  }
}

// A cache has room for patches, not for tokens.
TEST(Patches, StatesCountPatches) {
  const auto model = With("full").model;
  ModelSpec spec = model->spec();
  const auto floats = [](const ModelSpec& of) {
    return StateBytes(of, Precision::kF32) / sizeof(float);
  };
  ModelSpec plain = spec;
  plain.input.patch = {};
  // 59 patches need a capacity of 64, 299 tokens one of 304; two layers have 3 heads of 5 + 7.
  const size_t less = (304 - 64) * 2 * 3 * (5 + 7);
  EXPECT_LT(floats(spec), floats(plain) - less + 1000);
  EXPECT_GT(floats(spec), floats(plain) - less - 1000);
  Engine engine(model, {.threads = 1});
  State state = engine.NewState(1);
  const Tokens tokens = With("full").RandomTokens(299, 0);
  engine.Prefix(state, tokens, 299, {});
  EXPECT_EQ(state.bytes(), StateBytes(spec, Precision::kF32));  // the cache did not grow
  EXPECT_EQ(State::FromBytes(state.ToBytes(*model), "bytes", *model).position(), 299u);
}

// Changing later tokens leaves the earlier outputs unchanged, bit for bit.
TEST(Patches, AreStrictlyCausal) {
  const TestModel& of = Patched();
  Engine engine(of.model, {.threads = 2});
  const size_t length = 200, width = engine.output_size();
  const Tokens tokens = of.RandomTokens(length, 0);
  const auto outputs = [&](const Tokens& read) {
    State state = engine.NewState(1);
    Floats out(length * width);
    engine.Prefix(state, read, length, out);
    return out;
  };
  const Floats want = outputs(tokens);
  for (const size_t t : {1, 4, 5, 14, 15, 16, 47, 199}) {
    Tokens other = tokens;
    for (size_t i = t; i < length; ++i) other[i] = 255 - other[i];
    const Floats got = outputs(other);
    const auto end = static_cast<ptrdiff_t>(t * width);
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + end, want.begin())) << t;
    EXPECT_FALSE(std::equal(got.begin() + end, got.begin() + end + static_cast<ptrdiff_t>(width),
                            want.begin() + end))
        << t;
  }
}

// States are copied, reset, saved and loaded with their embeddings and rows.
TEST(Patches, StatesKeepTheirRows) {
  const TestModel& of = Patched();
  Engine engine(of.model, {.threads = 1});
  const Tokens tokens = of.RandomTokens(70, 0);
  const size_t width = engine.output_size();
  // 2 x 5 rows of 18 floats, padded to a multiple of 16.
  ModelSpec plain = of.model->spec();
  plain.input.patch = {};
  plain.input.value_embedding = 16;  // of 24
  EXPECT_EQ(StateBytes(of.model->spec(), Precision::kF32),
            StateBytes(plain, Precision::kF32) + 192 * sizeof(float));
  State state = engine.NewState(1);
  EXPECT_EQ(state.bytes(), StateBytes(of.model->spec(), Precision::kF32));
  engine.Prefix(state, std::span(tokens).first(61), 61, {});
  State twice = state.Fork(2);
  State loaded = State::FromBytes(state.ToBytes(*of.model), "bytes", *of.model);
  const auto rest = [&](State& from, size_t begin) {
    Floats out(from.batch() * width);
    for (size_t t = begin; t < tokens.size(); ++t) {
      engine.Step(from, Tokens(from.batch(), tokens[t]), out);
    }
    out.resize(width);
    return out;
  };
  const Floats want = rest(state, 61);
  EXPECT_EQ(rest(twice, 61), want);
  EXPECT_EQ(rest(loaded, 61), want);
  loaded.Reset();
  EXPECT_EQ(rest(loaded, 0), want);
}

TEST(Patches, NarrowFilesEqualNarrowingAtLoading) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_patches_test.", getpid())).string();
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    WriteNarrowed(Patched().checkpoint(), precision, path);
    const Floats got = RunOne(Patched(), 2, 3, 1, 5, 4, Model::Open(path));
    // The file's embeddings are rounded, so compare with an fp32 file of the rounded values.
    WriteNarrowed(Checkpoint::Open(path), Precision::kF32, path);
    EXPECT_EQ(RunOne(Patched(), 2, 3, 1, 5, 4, Model::Open(path, {precision})), got);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace linnet
