#include "linnet/tasks/images/images.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>

#include "linnet/engine.h"
#include "linnet/kernels/mixture_of_logistics_ref.h"
#include "linnet/runtime/test_models.h"

namespace linnet {
namespace {

TEST(Images, ModelsWithoutRecurrentStateDrawImages) {
  const TestModel model(Hashing(RaggedImages()));
  Engine engine(model.model, {.threads = 2}), single(model.model, {.threads = 1});
  const SampleOptions options{.seed = 4};
  const std::vector<uint8_t> images = SampleImages(engine, 5, options);
  EXPECT_EQ(SampleImages(single, 5, {.seed = 4, .batch = 2}), images);
  // Completion uses the same random numbers as sampling, so it draws the same bytes again.
  EXPECT_EQ(CompleteImages(engine, images, 6, options), images);
  const BitsPerDimResult bits = BitsPerDim(engine, images);
  const std::vector<Doubles> outputs = model.Outputs(Tokens(images.begin(), images.begin() + 19));
  double sum = 0;
  for (size_t t = 0; t < 19; ++t) {
    sum += kernels::MixtureOfLogisticsRef(outputs[t], images[t + 1]) / std::numbers::ln2 / 19;
  }
  EXPECT_NEAR(bits.image[0], sum, 1e-3);
}

TEST(Images, HugeCountsAreRefusedAndBatchesLimited) {
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

// The rest of an image uses the same random numbers whether its beginning was drawn or given.
TEST(Images, CompletionContinuesSampling) {
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
  const BitsPerDimResult result = BitsPerDim(engine, images, {.batch = 2, .progress = report});
  EXPECT_EQ(reports, (std::vector<size_t>{2, 4, 5}));
  ASSERT_EQ(result.image.size(), count);
  double mean = 0;
  Doubles byte(pixels - 1);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* image = &images[i * pixels];
    const std::vector<Doubles> outputs = Images().Outputs(Tokens(image, image + pixels - 1));
    double bits = 0;
    for (size_t t = 0; t + 1 < pixels; ++t) {
      const double at =
          kernels::MixtureOfLogisticsRef(outputs[t], image[t + 1]) / std::numbers::ln2;
      bits += at / 19, byte[t] += at / count;
    }
    EXPECT_NEAR(result.image[i], bits, 1e-3);
    mean += bits / count;
  }
  EXPECT_NEAR(result.mean, mean, 1e-3);
  ASSERT_EQ(result.byte.size(), byte.size());
  for (size_t t = 0; t < byte.size(); ++t) EXPECT_NEAR(result.byte[t], byte[t], 1e-3) << t;
  EXPECT_EQ(BitsPerDim(engine, images).image, result.image);
}

// Draws depend neither on batch nor on threads; bits follow from the reference's softmax.
TEST(Images, ACategoricalHead) {
  ModelSpec spec = RaggedImages();
  spec.head = {.kind = HeadKind::kCategorical, .classes = 256};
  const TestModel model(spec);
  Engine engine(model.model, {.threads = 2}), single(model.model, {.threads = 1});
  const size_t count = 18;  // above the number that one thread draws
  const std::vector<uint8_t> images = SampleImages(engine, count, {.seed = 4});
  EXPECT_GT(std::set<uint8_t>(images.begin(), images.end()).size(), 100u);
  EXPECT_EQ(SampleImages(single, count, {.seed = 4, .batch = 1}), images);
  EXPECT_EQ(CompleteImages(engine, images, 7, {.seed = 4}), images);

  const std::vector<Doubles> outputs = model.Outputs(Tokens(images.begin(), images.begin() + 19));
  const auto log_sum = [](const Doubles& row) {
    double sum = 0;
    for (double x : row) sum += std::exp(x);
    return std::log(sum);
  };
  double nats = 0;
  for (size_t t = 0; t < 19; ++t) {
    const double at = log_sum(outputs[t]) - outputs[t][images[t + 1]];
    const Floats row(outputs[t].begin(), outputs[t].end());
    EXPECT_NEAR(ByteNats(*model.model, row, images[t + 1], t + 1), at, 1e-5);
    nats += at;
  }
  const BitsPerDimResult bits = BitsPerDim(engine, images);
  EXPECT_NEAR(bits.image[0], nats / 19 / std::numbers::ln2, 1e-3);

  // Toward temperature 0 the likeliest byte is drawn.
  const Floats row(outputs[3].begin(), outputs[3].end());
  EXPECT_EQ(DrawByte(*model.model, row, 0, 4, {.temperature = 1e-3f}),
            std::max_element(row.begin(), row.end()) - row.begin());
  const auto wider = [&] { SampleImages(engine, 1, {.reference_scale = true}); };
  EXPECT_TRUE(Contains(ErrorOf(wider), "reference scale is for mixtures"));
  const auto damaged = [&] { DrawByte(*model.model, Floats(256, NAN), 0, 4); };
  EXPECT_TRUE(Contains(ErrorOf(damaged), "weights are damaged"));
}

TEST(Images, WholePixels) {
  Engine engine(Pixels().model, {.threads = 2});
  const size_t bytes = 660, count = 3;
  const std::vector<uint8_t> images = SampleImages(engine, count, {.seed = 4});
  ASSERT_EQ(images.size(), count * bytes);
  EXPECT_GT(std::set<uint8_t>(images.begin(), images.end()).size(), 100u);
  EXPECT_EQ(SampleImages(engine, count, {.seed = 4, .batch = 1}), images);
  for (size_t known : {3, 330, 660}) {
    std::vector<uint8_t> cut = images;
    for (size_t i = 0; i < cut.size(); ++i) cut[i] = i % bytes < known ? cut[i] : 0;
    EXPECT_EQ(CompleteImages(engine, cut, known, {.seed = 4}), images) << known;
  }
  EXPECT_TRUE(Contains(ErrorOf([&] { CompleteImages(engine, images, 4, {}); }), "whole pixels"));

  // By steps: the same pixels, and their bits.
  Tokens tokens = {kBeginPixel};
  for (size_t i = 0; i + 3 < bytes; i += 3) {
    tokens.push_back(images[i] << 16 | images[i + 1] << 8 | images[i + 2]);
  }
  const std::vector<Doubles> outputs = Pixels().Outputs(tokens);
  double nats = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const Floats row(outputs[t].begin(), outputs[t].end());
    nats += PixelNats(*Pixels().model, row, {images[3 * t], images[3 * t + 1], images[3 * t + 2]});
  }
  const BitsPerDimResult bits = BitsPerDim(engine, images);
  EXPECT_EQ(bits.byte.size(), bytes);
  EXPECT_NEAR(bits.image[0], nats / static_cast<double>(bytes) / std::numbers::ln2, 1e-3);

  State state = engine.NewState(1);
  Floats out(engine.output_size());
  int32_t token = kBeginPixel;
  for (size_t pixel = 0; pixel < 30; ++pixel) {
    engine.Step(state, std::array<int32_t, 1>{token}, out);
    const std::array<uint8_t, 3> rgb = DrawPixel(*Pixels().model, out, 0, pixel, {.seed = 4});
    ASSERT_TRUE(std::equal(rgb.begin(), rgb.end(), &images[3 * pixel])) << pixel;
    token = rgb[0] << 16 | rgb[1] << 8 | rgb[2];
  }
  const auto single = [&] { DrawByte(*Pixels().model, out, 0, 1); };
  EXPECT_TRUE(Contains(ErrorOf(single), "whole pixels"));
  const auto whole = [] { DrawPixel(*Images().model, Floats(9), 0, 0); };
  EXPECT_TRUE(Contains(ErrorOf(whole), "single bytes"));
  const auto outside = [&] { DrawPixel(*Pixels().model, out, 0, 220); };
  EXPECT_TRUE(Contains(ErrorOf(outside), "no pixel 220"));
}

TEST(Images, RefusesInvalidArguments) {
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

}  // namespace
}  // namespace linnet
