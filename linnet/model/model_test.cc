#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"

namespace linnet {
namespace {

ModelSpec TinyImages() {
  ModelSpec spec;
  spec.stack.repeat = 1, spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 2,
  spec.stack.mixer().value_dim = 5, spec.stack.d_model = 8;
  spec.stack.d_ff = 7, spec.input.value_embedding = 4, spec.image()->width = 4,
  spec.image()->height = 3, spec.input.max_length = 11;
  return spec;
}

std::string SpecError(const std::string& json) {
  try {
    FromJson(json, "here");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelSpec, JsonRoundTrip) {
  ModelSpec spec = TinyImages();
  spec.stack.mixer().eps = 1e-5f;
  EXPECT_EQ(FromJson(ToJson(spec), "x"), spec);
  EXPECT_FALSE(spec == ModelSpec{});
}

// A file holds only the parameters of its own kind of mixer, so new kinds do not change the files
// of existing ones.
TEST(ModelSpec, WritesOnlyTheMixersOwnParameters) {
  ModelSpec spec = TinyImages();
  EXPECT_EQ(ToJson(spec).find("lsh"), std::string::npos);
  EXPECT_EQ(ToJson(spec).find("similarity"), std::string::npos);
  spec.stack.mixer() = {.kind = "reformer", .lsh_rounds = 2};
  EXPECT_NE(ToJson(spec).find("\"lsh_chunk\":32"), std::string::npos);
  EXPECT_EQ(FromJson(ToJson(spec), "x"), spec);
  spec.stack.mixer() = {.feature_map = "favor", .features = 24};
  EXPECT_EQ(FromJson(ToJson(spec), "x"), spec);
  int64_t omegas = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    if (info.name.find("omega") == std::string::npos) continue;
    ++omegas;
    EXPECT_TRUE(IsBuffer(info.name));
    EXPECT_EQ(info.shape, (std::vector<int64_t>{spec.stack.mixer().query_dim, 24}));
  }
  EXPECT_EQ(omegas, spec.stack.layers());
}

// A user-defined kind states whether it has a feature map; kinds without one save no omega.
TEST(ModelSpec, OmegaIsSavedIfTheMixerHasAFeatureMap) {
  AddMixer({.name = "test-mapped", .description = "", .causal = true, .maps = true});
  for (const auto& [kind, omegas] :
       {std::pair("causal-linear", 1), {"full", 0}, {"test-mapped", 1}}) {
    ModelSpec spec = TinyImages();
    spec.stack.mixer() = {.kind = kind, .feature_map = "rff", .features = 6, .query_dim = 2};
    EXPECT_EQ(OmegaColumns(spec.stack.mixer(), spec.stack.mixer().query_dim), 3) << kind;
    int64_t found = 0;
    for (const TensorInfo& info : TensorTable(spec)) {
      if (info.name.find("omega") == std::string::npos) continue;
      ++found;
      EXPECT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
    }
    EXPECT_EQ(found, omegas) << kind;
  }
}

TEST(ModelSpec, RefusesInvalidFields) {
  EXPECT_EQ(SpecError("{}"), "");  // all defaults: the paper's MNIST model
  for (const char* bad :
       {"", "[]", "{\"layers\": 0}", "{\"layers\": 1e10}", "{\"layers\": \"3\"}", "{\"layer\": 3}",
        "{\"attention\": \"nosuch\"}", "{\"feature_map\": \"nosuch\"}", "{\"lsh_chunk\": 0}",
        "{\"width\": 27}", "{\"value_embedding\": 257}", "{\"task\": \"copy\"}",
        "{\"activation\": \"tanh\"}", "{\"norm_eps\": 0}"}) {
    const std::string message = SpecError(bad);
    EXPECT_EQ(message.rfind("here: ", 0), 0u) << bad << " -> " << message;
  }
}

// Files of models without a stem have no stem fields. With a stem, the sizes of its windows are
// written even at their defaults.
TEST(ModelSpec, AStemAddsItsFieldsAndTensors) {
  ModelSpec spec = TinyImages();
  EXPECT_EQ(ToJson(spec).find("stem"), std::string::npos);
  EXPECT_EQ(spec.Reach(), 0);
  const size_t tensors = TensorTable(spec).size();
  spec.image()->width = 2, spec.image()->height = 2, spec.image()->channels = 3;
  spec.input.stem = {.channels = 5, .rows = 2, .columns = 3, .second_columns = 1};
  EXPECT_EQ(FromJson(ToJson(spec), "x"), spec);
  EXPECT_NE(ToJson(spec).find("\"stem_second_rows\":3"), std::string::npos);
  // The window of a pixel's last byte reaches back a row (6 bytes), a pixel (3) and two bytes. The
  // nearest of these 11 bytes is the current token, so 10 past tokens remain.
  EXPECT_EQ(spec.Reach(), 6 + 3 + 1);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorInfo& info : TensorTable(spec)) shapes[info.name] = info.shape;
  EXPECT_EQ(shapes.size(), tensors + 12);
  for (int64_t k = 0; k < 3; ++k) {
    const std::string features = StrCat("stem.features.", k), output = StrCat("stem.output.", k);
    EXPECT_EQ(shapes.at(features + ".weight"), (std::vector<int64_t>{5, (3 + 1) * 3 + k}));
    EXPECT_EQ(shapes.at(features + ".bias"), (std::vector<int64_t>{5}));
    EXPECT_EQ(shapes.at(output + ".weight"), (std::vector<int64_t>{8, (2 + 1) * 5}));
    EXPECT_EQ(shapes.at(output + ".bias"), (std::vector<int64_t>{8}));
    EXPECT_EQ(StoredAs(spec, features + ".weight", Precision::kInt8), DType::kF32);
    EXPECT_EQ(StoredAs(spec, output + ".weight", Precision::kInt8), DType::kI8);
    EXPECT_EQ(StoredAs(spec, output + ".bias", Precision::kInt8), DType::kF32);
  }
}

TEST(ModelSpec, RefusesInvalidStems) {
  for (const auto& [fields, says] : std::vector<std::pair<std::string, std::string>>{
           {R"("stem_channels": -1)", "stem_channels is -1; it must be between 0 and 4096"},
           {R"("stem_channels": 4097)", "stem_channels is 4097"},
           {R"("stem_channels": 8, "stem_rows": 0)", "stem_rows is 0"},
           {R"("stem_channels": 8, "stem_rows": 17)", "stem_rows is 17"},
           {R"("stem_channels": 8, "stem_columns": 1)", "stem_columns is 1"},
           {R"("stem_channels": 8, "stem_columns": 65)", "stem_columns is 65"},
           {R"("stem_channels": 8, "stem_columns": 6)", "both must be odd"},
           {R"("stem_channels": 8, "stem_second_columns": 2)", "both must be odd"},
           {R"("stem_channels": 8, "stem_second_rows": 99)", "stem_second_rows is 99"},
           {R"("stem_channels": "8")", "'stem_channels' cannot be"},
           {R"("stem_channels": 8, "stem_colums": 3)", "did you mean 'stem_columns'"},
           {R"("task": "copy", "head": "categorical", "classes": 256, "stem_channels": 8)",
            "a stem is for images; set stem_channels to 0"}}) {
    const std::string message = SpecError(StrCat("{", fields, "}"));
    EXPECT_TRUE(message.starts_with("here: ")) << fields << " -> " << message;
    EXPECT_NE(message.find(says), std::string::npos) << fields << " -> " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Files of models without patches have no fields of patches.
TEST(ModelSpec, PatchesAreDescribed) {
  ModelSpec spec;
  EXPECT_EQ(ToJson(spec).find("patch"), std::string::npos);
  spec.input.patch = {.tokens = 14, .width = 40, .d_ff = 9};
  EXPECT_EQ(ToJson(spec).find("patch_convolution"), std::string::npos);  // earlier versions' files
  spec.input.patch.convolution = 6;
  spec.input.value_embedding = 30, spec.input.stem.channels = 2;
  spec.input.norm = true;
  EXPECT_EQ(FromJson(ToJson(spec), "here"), spec);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorInfo& info : TensorTable(spec)) shapes[info.name] = info.shape;
  const auto d = int64_t{spec.stack.d_model};
  for (const auto& [name, shape] :
       std::map<std::string, std::vector<int64_t>>{{"value_embedding.weight", {256, 30}},
                                                   {"pos_embedding.pe", {1, 783, 10}},
                                                   {"stem.output.0.weight", {40, 26}},
                                                   {"embedding_norm.weight", {40}},
                                                   {"patch.in.weight", {d, 560}},
                                                   {"patch.out.weight", {560, d}},
                                                   {"patch.out.bias", {560}},
                                                   {"patch.convolution.weight", {6, 40}},
                                                   {"patch.convolution.bias", {40}},
                                                   {"patch.norm1.weight", {40}},
                                                   {"patch.linear1.weight", {9, 40}},
                                                   {"patch.linear2.weight", {40, 9}},
                                                   {"patch.norm2.bias", {40}},
                                                   {"predictor.weight", {spec.OutputSize(), 40}}}) {
    EXPECT_EQ(shapes[name], shape) << name;
  }
}

TEST(ModelSpec, RefusesInvalidPatches) {
  for (const auto& [fields, says] : std::vector<std::pair<std::string, std::string>>{
           {R"("patch": 0)", "patch is 0; it must be between 1 and"},
           {R"("patch": 5, "patch_width": 200, "patch_d_ff": 9)",
            "number of tokens of an image row, 28"},
           {R"("patch": 14)", "patch_width is 0"},
           {R"("patch": 14, "patch_width": 4)",
            "value_embedding is 128; it must be between 1 and 4"},
           {R"("patch": 14, "patch_width": 200)", "patch_d_ff is 0"},
           {R"("patch": 28, "patch_width": 4000, "patch_d_ff": 9)", "it must be at most 65536"},
           {R"("patch_width": 40)", "set them to 0, or patch above 1"},
           {R"("patch_convolution": 4)", "set them to 0, or patch above 1"},
           {R"("patch": 14, "patch_width": 200, "patch_d_ff": 9, "patch_convolution": 15)",
            "patch_convolution is 15; it must be between 0 and 14"},
           {R"("patch": 2, "patch_width": 200, "patch_d_ff": 9, "width": 715827883, "channels": 3)",
            "width is 715827883"},
           {R"("patch": 28, "patch_width": 200, "patch_d_ff": 9, "height": 1, "max_length": 27)",
            "the layers would never run on an image of 28 x 1"},
           {R"("patch": 2, "patch_width": 200, "task": "copy", "head": "categorical",
              "classes": 256)",
            "patches are for transformers of images; set patch to 1"}}) {
    const std::string message = SpecError(StrCat("{", fields, "}"));
    EXPECT_TRUE(message.starts_with("here: ")) << fields << " -> " << message;
    EXPECT_NE(message.find(says), std::string::npos) << fields << " -> " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ModelSpec, RefusesInvalidHeads) {
  for (const auto& [fields, says] : std::vector<std::pair<std::string, std::string>>{
           {R"("task": "copy")", "task 'copy' needs the categorical head"},
           {R"("head": "categorical", "classes": 255)",
            "classes is 255; it must be vocabulary = 256"},
           {R"("head": "categorical", "classes": 9, "vocabulary": 9)",
            "vocabulary is 9; images consist of bytes"},
           {R"("vocabulary": 255)", "so it must be 256"}}) {
    const std::string message = SpecError(StrCat("{", fields, "}"));
    EXPECT_TRUE(message.starts_with("here: ")) << fields << " -> " << message;
    EXPECT_NE(message.find(says), std::string::npos) << fields << " -> " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ModelSpec, MessagesStayShort) {
  const std::string many(100000, 'x');
  for (const char* name : {"task", "attention", "feature_map", "similarity", "lsh_variant",
                           "layers", "head", "positions", "activation", "nosuch"}) {
    for (const std::string& value : {"\"" + many + "\"", "[\"" + many + "\"]"}) {
      const std::string message = SpecError(StrCat("{\"", name, "\": ", value, "}"));
      EXPECT_FALSE(message.empty()) << name;
      EXPECT_LT(message.size(), 700u) << name;
    }
  }
  EXPECT_LT(SpecError("{\"" + many + "\": 1}").size(), 700u);
  // Other tests may have registered more kinds, which come last.
  EXPECT_TRUE(
      SpecError("{\"attention\": \"softmax\"}")
          .starts_with("here: unknown attention 'softmax'; choose one of causal-linear, full, "
                       "kernel, reformer"));
}

TEST(ModelSpec, FirstDifference) {
  const ModelSpec spec = TinyImages();
  EXPECT_FALSE(FirstDifference(spec, spec).has_value());
  ModelSpec other = spec;
  other.stack.d_ff = 9, other.stack.activation = Activation::kGelu;
  EXPECT_EQ(FirstDifference(spec, other)->field, "d_ff");
  EXPECT_EQ(FirstDifference(spec, other)->b, "9");
  other.stack.mixer().kind = "full";
  EXPECT_EQ(FirstDifference(spec, other)->a, "\"causal-linear\"");
}

TEST(FeatureMaps, DefaultSizeIsTheInputs) {
  AddFeatureMap({.name = "plain"});
  EXPECT_EQ(FeatureSize({.feature_map = "plain"}, 12), 12);
  Validate(MixerSpec{.feature_map = "plain"}, 12, "here");
}

TEST(ModelSpec, CountsTheParametersOfThePapersModel) {
  // 8 layers, each with four projections, two matrices of the feed-forward block, their biases and
  // two layer norms; then the embedding, the final norm and the head.
  EXPECT_EQ(ParameterCount(ModelSpec{}),
            8 * (4 * 65792 + 2 * 262144 + 1280 + 1024) + 256 * 128 + 512 + 30 * 257);
}

TEST(ModelSpec, GridPositionsGiveRowAndColumnOfTheNextByte) {
  ModelSpec spec;
  spec.image()->width = 5, spec.image()->height = 4, spec.image()->channels = 3,
  spec.input.max_length = 59;
  spec.stack.d_model = 24, spec.input.value_embedding = 8, spec.input.positions = Positions::kGrid;
  Validate(spec);
  const std::vector<float> table = PositionTable(spec);
  ASSERT_EQ(table.size(), 59u * 16);
  // Position 36 predicts byte 37, which is in row 2 (rows have 15 bytes) at offset 7.
  const float* at = &table[36 * 16];
  EXPECT_FLOAT_EQ(at[0], static_cast<float>(std::sin(36.0)));
  EXPECT_FLOAT_EQ(at[2], static_cast<float>(std::sin(36.0 * 0.1)));
  EXPECT_FLOAT_EQ(at[8], static_cast<float>(std::sin(2.0)));
  EXPECT_FLOAT_EQ(at[9], static_cast<float>(std::cos(2.0)));
  EXPECT_FLOAT_EQ(at[12], static_cast<float>(std::sin(7.0)));
  EXPECT_FLOAT_EQ(at[14], static_cast<float>(std::sin(7.0 * 0.01)));
  spec.input.value_embedding = 10;
  EXPECT_THROW(Validate(spec), Error);
}

TEST(ModelSpec, WholePixelsAreForColor) {
  ModelSpec spec = TinyImages();
  spec.image()->channels = 3, spec.input.max_length = 12, spec.input.whole_pixels = true;
  spec.input.vocabulary = kBeginPixel + 1;
  Validate(spec);
  EXPECT_EQ(FromJson(ToJson(spec), "x"), spec);
  EXPECT_EQ(spec.OutputSize(), 10 * spec.head.mixtures);
  for (const TensorInfo& info : TensorTable(spec)) {
    EXPECT_NE(info.name, "first_value.probability");
    if (info.name == "value_embedding.weight") {
      EXPECT_EQ(info.shape, (std::vector<int64_t>{771, 4}));
    }
  }
  const auto refuses = [&](const char* part, auto change) {
    ModelSpec wrong = spec;
    change(wrong);
    try {
      Validate(wrong);
      ADD_FAILURE() << part;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refuses("three colors", [](ModelSpec& s) { s.image()->channels = 1; });
  refuses("16777217", [](ModelSpec& s) { s.input.vocabulary = 256; });
  refuses("must be max_length", [](ModelSpec& s) { s.input.max_length = 35; });
  refuses("sequence positions", [](ModelSpec& s) { s.input.positions = Positions::kGrid; });
  EXPECT_EQ(ToJson(TinyImages()).find("whole_pixels"), std::string::npos);
}

TEST(ModelSpec, PositionsFollowTheirFormula) {
  const std::vector<float> pe = PositionTable(10, 6);
  for (int t = 0; t < 10; ++t) {
    for (int i = 0; i < 3; ++i) {
      const double angle = t / std::pow(10000.0, 2.0 * i / 6);
      EXPECT_NEAR(pe[static_cast<size_t>(t * 6 + 2 * i)], std::sin(angle), 1e-6);
      EXPECT_NEAR(pe[static_cast<size_t>(t * 6 + 2 * i + 1)], std::cos(angle), 1e-6);
    }
  }
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() /
             ("linnet_model_test." + std::to_string(getpid()) + ".safetensors"))
                .string();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Writes a model file in which tensor `name` has the shape `shape` or, if that is empty, is
  // missing.
  void WriteWith(const ModelSpec& spec, const std::string& name, std::vector<int64_t> shape) {
    SafetensorsWriter writer;
    writer.SetMetadata("linnet", ToJson(spec));
    std::vector<float> zeros(100000);
    for (const TensorInfo& info : TensorTable(spec)) {
      if (info.name != name) {
        writer.Add(info.name, DType::kF32, info.shape, zeros.data());
      } else if (!shape.empty()) {
        writer.Add(info.name, DType::kF32, shape, zeros.data());
      }
    }
    writer.Write(path_);
  }
  std::string OpenError() {
    try {
      Checkpoint::Open(path_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  std::string path_;
};

TEST_F(CheckpointTest, ComputesAMissingPositionTable) {
  ModelSpec spec = TinyImages();
  WriteWith(spec, "pos_embedding.pe", {});
  const Checkpoint checkpoint = Checkpoint::Open(path_);
  const std::span<const float> table = checkpoint.Tensor("pos_embedding.pe");
  EXPECT_EQ(std::vector<float>(table.begin(), table.end()), PositionTable(spec));
  // A table that would take all memory is not computed.
  EXPECT_TRUE(HasComputedPositions(spec, "pos_embedding.pe"));
  spec.input.max_length = 1 << 28;
  EXPECT_FALSE(HasComputedPositions(spec, "pos_embedding.pe"));
  EXPECT_FALSE(HasComputedPositions(spec, "predictor.bias"));
}

TEST_F(CheckpointTest, RoundTrip) {
  const ModelSpec spec = TinyImages();
  std::map<std::string, std::vector<float>> values;
  WriteCheckpoint(path_, spec, "{\"steps\": 3}", [&](const TensorInfo& info) {
    std::vector<float>& data = values[info.name];
    int64_t size = 1;
    for (int64_t n : info.shape) size *= n;
    for (int64_t i = 0; i < size; ++i) data.push_back(static_cast<float>(i) + 0.5f);
    return std::span<const float>(data);
  });
  const Checkpoint checkpoint = Checkpoint::Open(path_);
  EXPECT_EQ(checkpoint.spec(), spec);
  EXPECT_EQ(checkpoint.training(), "{\"steps\": 3}");
  for (const auto& [name, data] : values) {
    const std::span<const float> read = checkpoint.Tensor(name);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), data.begin(), data.end())) << name;
  }
}

TEST_F(CheckpointTest, TensorsMustFitTheSpec) {
  const ModelSpec spec = TinyImages();
  WriteWith(spec, "predictor.bias", {29});
  EXPECT_NE(
      OpenError().find("'predictor.bias' is F32 [29], but the model description needs F32 [30]"),
      std::string::npos);
  WriteWith(spec, "transformer.norm.bias", {});
  EXPECT_NE(OpenError().find("needs the tensor 'transformer.norm.bias'"), std::string::npos);
  SafetensorsWriter().Write(path_);
  EXPECT_NE(OpenError().find("not a linnet model"), std::string::npos);
  EXPECT_EQ(OpenError().find("linnet import"), std::string::npos);
}

TEST_F(CheckpointTest, SuggestsImportForPyTorchFiles) {
  SafetensorsWriter writer;
  const float zero = 0;
  writer.Add("module.encoder.layers.0.norm1.bias", DType::kF32, {1}, &zero);
  writer.Write(path_);
  EXPECT_NE(OpenError().find("not a linnet model"), std::string::npos);
  EXPECT_NE(OpenError().find("convert it with 'linnet import'"), std::string::npos);
  for (const std::string& begin : {std::string("PK\3\4"), std::string("\x80\x02\x8a\x0a")}) {
    WriteFileAtomically(path_, begin + std::string(100, 'x'));
    EXPECT_NE(OpenError().find("PyTorch"), std::string::npos);
    EXPECT_NE(OpenError().find("convert it with 'linnet import'"), std::string::npos);
  }
}

}  // namespace
}  // namespace linnet
