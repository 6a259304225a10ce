#include "linnet/train/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "linnet/error.h"

namespace linnet::train {
namespace {

TEST(LearningRate, FollowsItsSchedule) {
  TrainConfig config;
  config.lr = 2;
  EXPECT_EQ(LearningRate(config, 0, 100), 2);
  EXPECT_EQ(LearningRate(config, 99, 100), 2);

  config.lr_warmup = 10;
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 100), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 8, 100), 1.8);
  EXPECT_DOUBLE_EQ(LearningRate(config, 9, 100), 2);

  config.lr_drop_at = 50;
  EXPECT_DOUBLE_EQ(LearningRate(config, 49, 100), 2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 50, 100), 0.2);

  config.lr_drop_at = 0;
  config.lr_decay = 40;  // linear, from update 60 on; the last update has a rate > 0
  EXPECT_DOUBLE_EQ(LearningRate(config, 60, 100), 2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 80, 100), 1);
  EXPECT_DOUBLE_EQ(LearningRate(config, 99, 100), 2.0 / 40);

  config.lr_decay = 1000;  // longer than the run: decays over the whole run
  EXPECT_DOUBLE_EQ(LearningRate(config, 9, 100), 2 * 0.91);
  EXPECT_DOUBLE_EQ(LearningRate(config, 50, 100), 1);
  config.lr_decay = 40;
  config.lr_decay_form = "cosine";
  EXPECT_DOUBLE_EQ(LearningRate(config, 60, 100), 2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 70, 100), 1 + std::cos(std::numbers::pi / 4));
  EXPECT_NEAR(LearningRate(config, 80, 100), 1, 1e-12);
  EXPECT_GT(LearningRate(config, 99, 100), 0);
}

TEST(TrainConfig, JsonRoundTrip) {
  TrainConfig config;
  config.task = "copy", config.layers = 3, config.ema = 0.5, config.norm_first = true;
  TrainConfig read;
  read.task = "copy";
  ApplyJson(ToJson(config), "test", read);
  EXPECT_EQ(ToJson(read), ToJson(config));
  EXPECT_THROW(ApplyJson("{\"data\": \"x\"}", "test", read), Error);  // not a setting of copy
}

TEST(TrainConfig, KnowsTheNamesOfVersion01) {
  TrainConfig config;
  config.task = "text";
  ApplyJson(R"({"least_often": 7})", "test", config);
  EXPECT_EQ(config.min_count, 7);
  EXPECT_EQ(ToJson(config).find("least_often"), std::string::npos);
  EXPECT_THROW(ApplyJson(R"({"least_often": 7, "min_count": 8})", "test", config), Error);
}

TEST(TrainConfig, ErrorsOfTheSpecNameTheFlag) {
  TrainConfig config;
  config.task = "images", config.lsh_buckets = 3;
  const auto error_of = [&] {
    try {
      ValidateSpec(BaseSpec(config));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_of(), "--lsh-buckets is 3; it must be 1 or even");
  config.lsh_buckets = 4, config.lsh_variant = "new";
  EXPECT_EQ(error_of(), "unknown --lsh-variant 'new'; choose published or simple");
  config.lsh_variant = "simple", config.activation = "tanh";
  EXPECT_EQ(error_of(), "unknown --activation 'tanh'; choose relu or gelu");
  config.activation = "gelu", config.attention = "nosuch";
  EXPECT_EQ(error_of().find("unknown --attention 'nosuch'; choose one of causal-linear, "), 0u);
  config.attention = "full:0";
  EXPECT_EQ(error_of(),
            "--attention has the part 'full:0'; write NAME, or NAME:COUNT with 1 to 1000 layers");
}

TEST(TrainConfig, AttentionIsAMixerOrAPatternOfThem) {
  TrainConfig config;
  config.attention = "gla:2,full", config.layers = 6;
  const ModelSpec spec = BaseSpec(config);
  ASSERT_EQ(spec.stack.pattern.size(), 3u);
  EXPECT_EQ(spec.stack.repeat, 2);
  std::vector<std::string> kinds;
  for (size_t i = 0; i < 6; ++i) kinds.push_back(spec.stack.mixer(i).kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"gla", "gla", "full", "gla", "gla", "full"}));
  config.layers = 4;
  EXPECT_THROW(BaseSpec(config), Error);
}

TEST(TrainConfig, OptionsOfSoftmaxAreForItsLayersOnly) {
  TrainConfig config;
  config.task = "text", config.attention = "gated-delta-net:3,full", config.layers = 4;
  config.window = 64, config.rotary = true, config.rotary_base = 500, config.out_bias = false;
  ModelSpec spec = BaseSpec(config);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spec.stack.mixer(i).window, i == 3 ? 64 : 0) << i;
    EXPECT_EQ(spec.stack.mixer(i).rotary, i == 3) << i;
  }
  EXPECT_EQ(spec.stack.mixer(3).rotary_base, 500);
  EXPECT_FALSE(spec.stack.mixer(3).out_bias);
  config.attention = "gla";
  try {
    BaseSpec(config);
    FAIL() << "accepted a window of gla";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "--window is for softmax attention, and --attention is gla; add a full layer, as in "
        "gated-delta-net:3,full");
  }
}

TEST(TrainConfig, OptionsThatNoLayerHas) {
  TrainConfig config;
  config.attention = "gla", config.qkv_bias = false, config.householders = 3;
  const auto fault = [](const TrainConfig& one) {
    try {
      BaseSpec(one);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(fault(config),
            "--qkv-bias is for softmax attention, and --attention is gla; add a full layer, as in "
            "gated-delta-net:3,full");
  config.qkv_bias = true;
  EXPECT_EQ(fault(config), "--householders is not an option of --attention gla");
  TrainConfig softmax;
  softmax.attention = "full", softmax.feature_map = "favor";
  EXPECT_EQ(fault(softmax), "--feature-map is not an option of --attention full");
  softmax.feature_map = TrainConfig().feature_map, softmax.negative_eigenvalues = true;
  EXPECT_EQ(fault(softmax), "--negative-eigenvalues is not an option of --attention full");
  DropUnusedOptions(config);
  EXPECT_EQ(config.householders, 2);
  config.attention = "gla,gated-delta-product", config.householders = 3;
  DropUnusedOptions(config);
  const ModelSpec spec = BaseSpec(config);
  EXPECT_EQ(spec.stack.mixer(0).householders, 2);
  EXPECT_EQ(spec.stack.mixer(1).householders, 3);
}

TEST(TrainConfig, PositionsMayBeAbsent) {
  TrainConfig config;
  EXPECT_EQ(BaseSpec(config).PositionDims(), config.d_model / 2);
  config.positions = "none";
  EXPECT_EQ(BaseSpec(config).PositionDims(), 0);
  config.positions = "nowhere";
  EXPECT_THROW(BaseSpec(config), Error);
}

TEST(TrainConfig, TheFirstLayerPassesItsValuesOn) {
  TrainConfig config;
  config.task = "copy", config.attention = "full,rwkv7", config.layers = 4, config.value_rank = 5;
  const ModelSpec spec = BaseSpec(config);
  ASSERT_EQ(spec.stack.layers(), 4);
  EXPECT_EQ(spec.stack.mixer(1).value_rank, 0);
  EXPECT_EQ(spec.stack.mixer(3).value_rank, 5);
  EXPECT_EQ(spec.stack.mixer(3).kind, "rwkv7");
}

}  // namespace
}  // namespace linnet::train
