// Tests models with a causal stem (StemSpec) in every form in which the engine runs them, against
// the network in plain loops (model_ref.h).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

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

LINNET_SUITE_ON_EACH_ISA(StemTest);

// A stem whose state keeps no features.
const TestModel& OneFeature() {
  static const TestModel model([] {
    ModelSpec spec = StemImages();
    spec.input.stem.second_rows = spec.input.stem.second_columns = 1;
    return spec;
  }());
  return model;
}
// A model whose state also has a cache.
const TestModel& Cached() {
  static const TestModel model([] {
    ModelSpec spec = StemInColor();
    spec.stack.mixer().kind = "full";
    return spec;
  }());
  return model;
}

TEST_P(StemTest, PrefixAndStepsMatchTheReferenceAtEveryCut) {
  for (const TestModel* of : {&Stemmed(), &OneFeature()}) {
    const Tokens tokens = of->RandomTokens(19, 0);
    const std::vector<Doubles> want = of->Outputs(tokens);
    for (size_t cut = 0; cut <= tokens.size(); ++cut) {
      for (const int threads : {1, 2, 3}) CheckCut(of->model, want, tokens, cut, threads, 2e-5);
    }
  }
  Tokens pixels = StemmedPixels().RandomTokens(220, 0);
  pixels[0] = kBeginPixel;
  const std::vector<Doubles> want_pixels = StemmedPixels().Outputs(pixels);
  for (const size_t cut : {0, 1, 2, 11, 12, 13, 191, 192, 193, 220}) {
    for (const int threads : {1, 2}) {
      CheckCut(StemmedPixels().model, want_pixels, pixels, cut, threads);
    }
  }
  for (const TestModel* of : {&StemmedColor(), &Cached()}) {
    const Tokens tokens = of->RandomTokens(299, 0);
    const std::vector<Doubles> want = of->Outputs(tokens);
    for (const size_t cut : {0, 1, 2, 3, 14, 15, 16, 191, 192, 193, 299}) {
      for (const int threads : {1, 2}) CheckCut(of->model, want, tokens, cut, threads);
    }
  }
}

// The tolerances are those of the test of the same name in engine_test.cc.
TEST_P(StemTest, NarrowModelsMatchTheRoundingReference) {
  for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
    const double tolerance = precision == Precision::kInt8 ? 0.05 : 0.02;
    for (const TestModel* of : {&Stemmed(), &OneFeature()}) {
      const auto model = of->In(precision);
      const Tokens tokens = of->RandomTokens(19, 0);
      for (const size_t cut : {0, 9, 19}) {
        const std::vector<Doubles> want = of->Outputs(tokens, *model, cut);
        for (const int threads : {1, 2}) CheckCut(model, want, tokens, cut, threads, tolerance);
      }
    }
  }
}

TEST_P(StemTest, ResultsDoNotDependOnThreadsOrBatch) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
    for (const auto& [of, prefix] :
         {std::pair(&Stemmed(), 7), {&StemmedColor(), 40}, {&StemmedPixels(), 40}}) {
      const auto model = of->In(precision);
      const auto read = static_cast<size_t>(prefix);
      const Floats alone = RunOne(*of, 1, 1, 0, read, 9, model);
      for (const int threads : {1, 2, 3}) {
        for (const size_t batch : {1, 2, 5, 9, 40}) {
          EXPECT_EQ(RunOne(*of, threads, batch, batch * 2 / 3, read, 9, model), alone)
              << PrecisionName(precision) << " " << threads << " " << batch;
        }
      }
    }
  }
}

// Reads pieces of unequal length, of sequences at different positions, in one call and one by one.
TEST(Stem, SequencesArePacked) {
  const TestModel& of = StemmedColor();
  for (const auto& model : {of.model, of.In(Precision::kInt8)}) {
    for (const int threads : {1, 2, 3}) {
      Engine engine(model, {.threads = threads});
      const std::vector<size_t> first = {100, 1, 31, 200}, second = {5, 40, 17, 62};
      const std::vector<size_t> places = {3, 0, 1, 2};
      const size_t width = engine.output_size();
      State packed = engine.NewState(4), apart = engine.NewState(4);
      for (const std::vector<size_t>& lengths : {first, second}) {
        size_t all = 0, at = 0;
        for (const size_t length : lengths) all += length;
        const Tokens tokens = of.RandomTokens(all, all);
        Floats got(4 * width), want = got;
        engine.Prefix(packed, places, lengths, tokens, got);
        for (size_t i = 0; i < 4; at += lengths[i++]) {
          engine.Prefix(apart, {&places[i], 1}, std::span(tokens).subspan(at, lengths[i]),
                        lengths[i], std::span(want).subspan(i * width, width));
        }
        EXPECT_EQ(got, want) << threads;
      }
      Floats got(4 * width), want = got;
      const Tokens next = of.RandomTokens(4, 9);
      engine.Step(packed, next, got);
      for (size_t i = 0; i < 4; ++i) {
        engine.Step(apart, {&i, 1}, {&next[i], 1}, std::span(want).subspan(i * width, width));
      }
      EXPECT_EQ(got, want) << threads;
    }
  }
}

// A model without a recurrent form computes all features of a sequence again at each call.
TEST_P(StemTest, WholeSequencesMatchTheReference) {
  for (const ModelSpec& spec : {Hashing(StemImages()), Hashing(StemInColor())}) {
    const TestModel model(spec);
    const auto length = static_cast<size_t>(spec.input.max_length);
    const Tokens tokens = model.RandomTokens(length, 0);
    const std::vector<Doubles> want = model.Outputs(tokens, *model.model, length);
    for (const int threads : {1, 2}) {
      Engine engine(model.model, {.threads = threads});
      Floats got(length * engine.output_size());
      engine.Whole(1, tokens, length, got);
      EXPECT_LT(Worst(got, want), 1e-4) << threads;
    }
  }
}

// Changing later bytes leaves the earlier outputs unchanged, bit for bit.
TEST(Stem, IsStrictlyCausal) {
  const TestModel& of = StemmedColor();
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
  for (const size_t t : {1, 14, 15, 16, 47, 199}) {
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

// States are copied, reset, saved and loaded with their features.
TEST(Stem, StatesKeepTheFeatures) {
  const TestModel& of = StemmedColor();
  Engine engine(of.model, {.threads = 1});
  const Tokens tokens = of.RandomTokens(70, 0);
  const size_t width = engine.output_size();
  State state = engine.NewState(1);
  // The second window reaches back 5 + 1 pixels (an image row and one more). The state keeps 6
  // features for each of the 3 colors of these pixels: 108 floats, padded to a multiple of 16.
  const ModelSpec& spec = of.model->spec();
  ModelSpec plain = spec;
  plain.input.stem.channels = 0;
  const size_t more_tokens = static_cast<size_t>(spec.Reach() - plain.Reach());
  EXPECT_EQ(StateBytes(spec, Precision::kF32),
            StateBytes(plain, Precision::kF32) + (112 + more_tokens) * sizeof(float));
  EXPECT_EQ(state.bytes(), StateBytes(spec, Precision::kF32));
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
  const Floats again = rest(loaded, 0);  // reads in steps only, so it rounds differently
  for (size_t i = 0; i < width; ++i) EXPECT_NEAR(again[i], want[i], 1e-4) << i;
}

TEST(Stem, DamagedFeaturesAreRefused) {
  const TestModel& of = Stemmed();
  Engine engine(of.model, {.threads = 1});
  State state = engine.NewState(1);
  engine.Prefix(state, of.RandomTokens(12, 0), 12, {});
  std::vector<std::byte> bytes = state.ToBytes(*of.model);
  // The features are the last floats of "state".
  const SafetensorsFile file = SafetensorsFile::FromMemory(bytes, "state");
  const auto floats = file.Get("state").f32();
  const auto offset = reinterpret_cast<const std::byte*>(floats.data() + floats.size()) -
                      reinterpret_cast<const std::byte*>(bytes.data());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + offset - 9 * sizeof(float), &nan, sizeof(nan));
  const std::string error = ErrorOf([&] { State::FromBytes(bytes, "state", *of.model); });
  EXPECT_TRUE(Contains(error, "NaN")) << error;
}

TEST(Stem, NarrowFilesEqualNarrowingAtLoading) {
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("linnet_stem_test.", getpid())).string();
  for (const TestModel* of : {&Stemmed(), &StemmedColor()}) {
    for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
      WriteNarrowed(of->checkpoint(), precision, path);
      const Floats got = RunOne(*of, 2, 3, 1, 5, 4, Model::Open(path));
      // The file's embeddings are rounded, so compare with an fp32 file of the rounded values.
      WriteNarrowed(Checkpoint::Open(path), Precision::kF32, path);
      EXPECT_EQ(RunOne(*of, 2, 3, 1, 5, 4, Model::Open(path, {precision})), got);
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace linnet
