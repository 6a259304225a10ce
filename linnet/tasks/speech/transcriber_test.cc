#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"
#include "linnet/speech.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <list>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/test_util.h"
#include "linnet/rng.h"
#include "linnet/tasks/speech/audio.h"
#include "linnet/tasks/speech/ctc.h"

namespace linnet {
namespace {

// A model with random weights, scaled so that its outputs vary from position to position.
std::shared_ptr<const Model> RandomModel(const std::string& attention,
                                         BandNorm normalization = BandNorm::kCorpus) {
  ModelSpec spec;
  spec.task = "speech", spec.stack.mixer().kind = attention, spec.stack.norm_first = true;
  spec.stack.convolution = 3, spec.stack.repeat = 2, spec.stack.mixer().heads = 2,
  spec.stack.mixer().query_dim = 4, spec.stack.mixer().value_dim = 4;
  spec.stack.d_model = 16, spec.stack.d_ff = 24, spec.input.value_embedding = 12,
  spec.input.max_length = 40;
  spec.head.kind = HeadKind::kCategorical, spec.head.classes = spec.input.vocabulary = 5;
  spec.part = SpeechSpec{.bands = 20,
                         .stack = 7,
                         .stride = 3,
                         .lookahead = 2,
                         .normalization = normalization,
                         .phones = "A B C D"};
  const std::string path = std::filesystem::temp_directory_path() /
                           ("linnet_transcriber_test." + std::to_string(getpid()));
  std::list<std::vector<float>> tensors;
  uint64_t stream = 0;
  WriteCheckpoint(path, spec, "", [&](const TensorInfo& info) -> std::span<const float> {
    size_t size = 1;
    for (const int64_t n : info.shape) size *= static_cast<size_t>(n);
    std::vector<float>& values = tensors.emplace_back(size);
    Philox rng(5, stream++);
    const float lively = info.name.starts_with("input_projection") ? 6 : 2;
    const float scale = lively / std::sqrt(static_cast<float>(info.shape.back()));
    for (float& value : values) value = scale * rng.Normal();
    if (info.name == "pos_embedding.pe") values = PositionTable(spec);
    if (info.name == "predictor.bias") std::fill(values.begin(), values.end(), 0.0f);
    if (info.name.ends_with("norm.weight") || info.name.ends_with("norm1.weight")) {
      std::fill(values.begin(), values.end(), 1.0f);
    }
    if (info.name == "input_norm.mean") std::fill(values.begin(), values.end(), 8.0f);
    if (info.name == "input_norm.deviation") std::fill(values.begin(), values.end(), 3.0f);
    return values;
  });
  auto model = Model::Open(path);
  std::filesystem::remove(path);
  return model;
}

// Noise whose spectrum changes ten times per second.
Audio Sound(double seconds, uint64_t seed = 1) {
  Audio audio;
  audio.rate = audio.file_rate = 16'000;
  Philox rng(seed);
  float before = 0, mix = 0;
  for (size_t i = 0; i < static_cast<size_t>(seconds * audio.rate); ++i) {
    if (i % 1600 == 0) mix = 1.8f * rng.Uniform() - 0.9f;
    before = mix * before + 0.05f * rng.Normal();
    audio.samples.push_back(std::clamp(before, -1.0f, 1.0f));
  }
  return audio;
}

std::vector<Phone> Streamed(const std::shared_ptr<const Model>& model, const Audio& audio,
                            size_t piece) {
  PhoneStream stream(model);
  std::vector<Phone> all;
  for (size_t at = 0; at < audio.samples.size(); at += piece) {
    const size_t count = std::min(piece, audio.samples.size() - at);
    for (const Phone& phone : stream.Read(std::span(audio.samples).subspan(at, count))) {
      // A phone is returned delay_seconds() after it begins, or later by at most 30 ms (a stride)
      // plus the length of a piece.
      const double now = stream.seconds();
      EXPECT_LE(phone.seconds + stream.delay_seconds(), now + 1e-9);
      EXPECT_GE(phone.seconds + stream.delay_seconds() + 0.03 + static_cast<double>(piece) / 16e3,
                now);
      all.push_back(phone);
    }
  }
  for (const Phone& phone : stream.Finish()) all.push_back(phone);
  EXPECT_NEAR(stream.seconds(), audio.seconds(), 1e-9);
  return all;
}

void ExpectSame(const std::vector<Phone>& a, const std::vector<Phone>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << i;
    EXPECT_NEAR(a[i].seconds, b[i].seconds, 1e-9) << i;
    EXPECT_NEAR(a[i].probability, b[i].probability, 1e-3) << i;
  }
}

// A stream in pieces of any size gives the same phones as the whole audio. This holds for audio
// shorter than the model's 40 positions (1.2 s), and for longer audio, which several states read in
// turn.
TEST(PhoneStream, MatchesTheWholeRecording) {
  const auto model = RandomModel("causal-linear");
  Transcriber transcriber(model, {.threads = 2});
  for (const double seconds : {0.025, 0.2, 1.1, 1.3, 7.0}) {
    const Audio audio = Sound(seconds);
    const Transcript whole = transcriber.Transcribe(audio);
    if (seconds > 1) {
      EXPECT_GT(whole.phones.size(), 3u);
    }
    for (const size_t piece : {1u, 160u, 1234u, 1'000'000u}) {
      if (piece == 1 && seconds > 2) continue;
      ExpectSame(Streamed(model, audio, piece), whole.phones);
    }
  }
  EXPECT_TRUE(Streamed(model, Sound(0.02), 100).empty());  // shorter than a frame
}

TEST(PhoneStream, RefusesNonCausalModels) {
  EXPECT_NE(ErrorOf([] { PhoneStream stream(RandomModel("linear")); }).find("causal-linear"),
            std::string::npos);
  EXPECT_NE(ErrorOf([] {
              PhoneStream stream(RandomModel("causal-linear", BandNorm::kUtterance));
            }).find("--normalize corpus"),
            std::string::npos);
}

TEST(Transcriber, ResultsDoNotDependOnThreads) {
  for (const char* kind : {"linear", "full", "causal-linear"}) {
    const auto model = RandomModel(kind, BandNorm::kUtterance);
    Transcriber one(model, {.threads = 1}), three(model, {.threads = 3});
    for (const double seconds : {0.5, 6.0}) {
      const Audio audio = Sound(seconds, 3);
      EXPECT_EQ(one.LogProbabilities(audio), three.LogProbabilities(audio)) << kind;
    }
  }
}

// A long recording gets one distribution per position, and the outputs at the first positions are
// those of the first window alone.
TEST(Transcriber, LongRecordingsAreReadInWindows) {
  const auto model = RandomModel("linear");
  Transcriber transcriber(model);
  const Audio audio = Sound(6);
  const std::vector<float> all = transcriber.LogProbabilities(audio);
  const size_t frames = (96'000 - 400) / 160 + 1, positions = (frames + 2) / 3;
  ASSERT_EQ(all.size(), positions * 5);
  for (size_t p = 0; p < positions; ++p) {
    double sum = 0;
    for (size_t c = 0; c < 5; ++c) sum += std::exp(all[p * 5 + c]);
    EXPECT_NEAR(sum, 1, 1e-4) << p;
  }
  Audio begin = audio;
  begin.samples.resize(400 + 160 * (40 * 3 - 1));  // 40 positions
  const std::vector<float> alone = transcriber.LogProbabilities(begin);
  // The tolerance is large because the last position of the first window also stacks frames after
  // the window, which `begin` lacks. The model is not causal, so all outputs depend on them.
  for (size_t i = 0; i < 5 * 30; ++i) EXPECT_NEAR(all[i], alone[i], 0.2) << i;
}

TEST(Transcriber, GivesTimesAndProbabilities) {
  const auto model = RandomModel("linear");
  Transcriber greedy(model), beam(model, {.beam = 20});
  const Audio audio = Sound(1.2);
  const Transcript likely = greedy.Transcribe(audio), weighed = beam.Transcribe(audio);
  ASSERT_FALSE(likely.phones.empty());
  double before = -1;
  for (size_t i = 0; i < likely.phones.size(); ++i) {
    const Phone& phone = likely.phones[i];
    EXPECT_GT(phone.seconds, before);
    before = phone.seconds;
    EXPECT_GE(phone.probability, 0.2);  // the largest of five probabilities is at least 1/5
    EXPECT_EQ(phone.name, PhonesOf(model->spec())[static_cast<size_t>(likely.classes[i])]);
  }
  EXPECT_NEAR(likely.seconds, 1.2, 1e-9);
  EXPECT_GE(weighed.log_probability, likely.log_probability);
  const auto log_probs = beam.LogProbabilities(audio);
  const Decoded best = BeamDecode(log_probs, 5, 0, 20)[0];
  ASSERT_EQ(weighed.classes.size(), best.labels.size());
  for (size_t i = 0; i < best.labels.size(); ++i) {
    EXPECT_EQ(weighed.classes[i], best.labels[i] - 1);
  }
}

TEST(Transcriber, RefusesInvalidInput) {
  Transcriber transcriber(RandomModel("linear"));
  Audio audio = Sound(0.02);
  EXPECT_NE(ErrorOf([&] { transcriber.Transcribe(audio); }).find("too short"), std::string::npos);
  audio = Sound(1);
  audio.rate = 8000;
  EXPECT_NE(ErrorOf([&] { transcriber.Transcribe(audio); }).find("8000"), std::string::npos);
  audio = Sound(1);
  audio.samples[500] = NAN;
  EXPECT_NE(ErrorOf([&] { transcriber.Transcribe(audio); }).find("NaN or infinity"),
            std::string::npos);
  for (const BandNorm normalize : {BandNorm::kUtterance, BandNorm::kCorpus}) {
    Transcriber other(RandomModel("linear", normalize));
    const Audio silent{.samples = std::vector<float>(16'000), .rate = 16'000};
    for (const float x : other.LogProbabilities(silent)) EXPECT_TRUE(std::isfinite(x));
    const Audio loud{.samples = std::vector<float>(16'000, 1.0f), .rate = 16'000};
    for (const float x : other.LogProbabilities(loud)) EXPECT_TRUE(std::isfinite(x));
  }
}

std::vector<std::string> RemarksOn(const Audio& audio) {
  SoundCheck check;
  for (const float sample : audio.samples) check.Add({&sample, 1});
  return check.Remarks(audio.file_rate, audio.rate);
}

TEST(SoundCheck, ReportsBadRecordings) {
  EXPECT_TRUE(RemarksOn(Sound(1)).empty());
  EXPECT_EQ(RemarksOn({.samples = std::vector<float>(100), .rate = 16'000})[0].substr(0, 6),
            "silent");
  Audio clipped = Sound(1);
  for (size_t i = 0; i < 800; ++i) clipped.samples[i] = i % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_EQ(RemarksOn(clipped)[0], "clipped: 5% of the samples are at full scale");
  Audio narrow = Sound(1);
  narrow.file_rate = 8000;
  EXPECT_NE(RemarksOn(narrow)[0].find("4000 Hz"), std::string::npos);
}

}  // namespace
}  // namespace linnet
