// Tests each kind of flash-linear-attention's models that linnet reads and writes: export and
// import, the layout of the tensors, and the options that the import refuses.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/fla.h"
#include "linnet/rng.h"
#include "tests/gated_models.h"

namespace linnet {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

constexpr int kLayers = 3, kWidth = 24, kVocabulary = 61;

// A language model with this mixer in every layer.
ModelSpec SpecOf(MixerSpec mixer) {
  const bool feeds = mixer.kind != "ssd";  // Mamba-2 has no feed-forward blocks
  const float eps = feeds ? 1e-6f : 1e-5f;
  mixer.output_norm_eps = eps;
  ModelSpec spec;
  spec.task = "tokens", spec.part = std::monostate();
  spec.stack = {.pattern = {mixer},
                .repeat = kLayers,
                .d_model = kWidth,
                .d_ff = feeds ? 40 : 1,
                .feed_forward = feeds ? FeedForwardKind::kGated : FeedForwardKind::kNone,
                .norm = NormKind::kRms,
                .norm_first = true,
                .norm_eps = eps};
  spec.input.vocabulary = kVocabulary, spec.input.value_embedding = kWidth;
  spec.head = {.kind = HeadKind::kCategorical, .classes = kVocabulary, .bias = false};
  return spec;
}

// A temporary folder with a linnet model and, in `theirs`, the same model in the layout of
// flash-linear-attention or Hugging Face's transformers. The destructor removes the folder.
struct Folders {
  fs::path root = fs::temp_directory_path() / StrCat("linnet_fla_kinds.", getpid());
  std::string model = (root / "model.safetensors").string();
  fs::path theirs = root / "theirs";

  Folders() { fs::create_directory(root); }
  ~Folders() { fs::remove_all(root); }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;

  // Writes a model with random weights, which `change` may replace.
  void WriteModel(const ModelSpec& spec,
                  const std::function<void(const TensorInfo&, std::vector<float>&)>& change = {}) {
    std::map<std::string, std::vector<float>> tensors;
    WriteCheckpoint(model, spec, "{}", [&](const TensorInfo& info) {
      Philox rng(5, tensors.size());
      std::vector<float>& values = tensors[info.name];
      int64_t count = 1;
      for (const int64_t n : info.shape) count *= n;
      for (int64_t i = 0; i < count; ++i) values.push_back(rng.Normal());
      if (change) change(info, values);
      return std::span<const float>(values);
    });
  }
  json Config() const { return json::parse(ReadFile((theirs / "config.json").string())); }
  void WriteConfig(const std::string& text) const {
    WriteFileAtomically((theirs / "config.json").string(), text);
  }
  std::map<std::string, Shape> Shapes() const {
    std::map<std::string, Shape> shapes;
    const SafetensorsFile file = SafetensorsFile::Open((theirs / "model.safetensors").string());
    for (const Tensor& tensor : file.tensors()) shapes[tensor.name] = tensor.shape;
    return shapes;
  }
  std::string Import() const {
    const std::string path = (root / "again.safetensors").string();
    FlaModel::Open(theirs.string()).Write(path, "{}");
    return path;
  }
};

struct KindCase {
  const char* type;
  MixerSpec mixer;
  std::vector<std::pair<std::string, json>> config;    // some expected fields of config.json
  std::vector<std::pair<std::string, Shape>> tensors;  // some expected shapes in layer 1
};

const std::vector<KindCase>& KindCases() {
  static const std::vector<KindCase> cases = {
      {"gla",
       {.kind = "gla",
        .key_heads = 2,
        .decay_floor = -0.5f,
        .heads = 4,
        .query_dim = 3,
        .value_dim = 6},
       {{"num_heads", 4}, {"num_kv_heads", 2}, {"expand_k", 0.5}, {"clamp_min", -0.5}},
       {{"attn.q_proj.weight", {12, 24}},
        {"attn.k_proj.weight", {6, 24}},
        {"attn.v_proj.weight", {12, 24}},
        {"attn.gk_proj.1.weight", {6, 16}},
        {"attn.gk_proj.1.bias", {6}},
        {"attn.g_proj.weight", {24, 24}}}},
      {"retnet",
       {.kind = "retention", .key_heads = 1, .heads = 2, .query_dim = 12, .value_dim = 24},
       {{"num_heads", 2}, {"num_kv_heads", 1}, {"expand_k", 1}, {"expand_v", 2}},
       {{"attn.q_proj.weight", {24, 24}},
        {"attn.k_proj.weight", {12, 24}},
        {"attn.v_proj.weight", {24, 24}},
        {"attn.g_norm_swish_gate.weight", {24}}}},
      {"delta_net",
       {.kind = "delta-net", .output_gate = false, .heads = 2, .query_dim = 12, .value_dim = 12},
       {{"use_gate", false}},
       {{"attn.q_conv1d.weight", {24, 1, 4}}, {"attn.b_proj.weight", {2, 24}}}},
      {"gated_deltanet",
       {.kind = "gated-delta-net", .key_heads = 1, .heads = 2, .query_dim = 6, .value_dim = 12},
       {{"num_heads", 1}, {"num_v_heads", 2}, {"head_dim", 6}, {"expand_v", 2}},
       {{"attn.q_proj.weight", {6, 24}}, {"attn.A_log", {2}}}},
      {"gated_deltaproduct",
       {.kind = "gated-delta-product",
        .negative_eigenvalues = true,
        .key_heads = 1,
        .householders = 3,
        .heads = 2,
        .query_dim = 6,
        .value_dim = 12},
       {{"num_heads", 1},
        {"num_v_heads", 2},
        {"num_householder", 3},
        {"use_forget_gate", true},
        {"use_output_gate", true},
        {"allow_neg_eigval", true}},
       {{"attn.q_proj.weight", {6, 24}},
        {"attn.k_proj.weight", {18, 24}},
        {"attn.v_proj.weight", {72, 24}},
        {"attn.b_proj.weight", {6, 24}},
        {"attn.a_proj.weight", {2, 24}},
        {"attn.k_conv1d.weight", {18, 1, 4}},
        {"attn.v_conv1d.weight", {72, 1, 4}},
        {"attn.o_norm.weight", {12}}}},
      {"kda",
       {.kind = "kda", .decay_floor = -5, .heads = 2, .query_dim = 6, .value_dim = 6},
       {{"safe_gate", true}, {"lower_bound", -5}},
       {{"attn.f_proj.0.weight", {6, 24}}, {"attn.dt_bias", {12}}}},
      {"mamba2",
       {.kind = "ssd", .key_heads = 2, .heads = 4, .query_dim = 5, .value_dim = 12},
       {{"num_heads", 4},
        {"head_dim", 12},
        {"expand", 2},
        {"state_size", 5},
        {"n_groups", 2},
        {"conv_kernel", 4},
        {"layer_norm_epsilon", 1e-5}},
       {{"mixer.in_proj.weight", {120, 24}},
        {"mixer.conv1d.weight", {68, 1, 4}},
        {"mixer.conv1d.bias", {68}},
        {"mixer.A_log", {4}},
        {"mixer.D", {4}},
        {"mixer.dt_bias", {4}},
        {"mixer.norm.weight", {48}},
        {"mixer.out_proj.weight", {24, 48}},
        {"norm.weight", {24}}}},
      {"hgrn",
       {.kind = "hgrn", .short_convolution = 3, .heads = 3, .query_dim = 16, .value_dim = 16},
       {{"expand_ratio", 2},
        {"use_short_conv", true},
        {"conv_size", 3},
        {"use_lower_bound", false}},
       {{"attn.i_proj.weight", {48, 24}},
        {"attn.f_proj.weight", {48, 24}},
        {"attn.g_proj.weight", {48, 24}},
        {"attn.i_conv1d.weight", {48, 1, 3}},
        {"attn.f_conv1d.weight", {48, 1, 3}},
        {"attn.g_norm.weight", {48}},
        {"attn.o_proj.weight", {24, 48}},
        {"attn_norm.weight", {24}}}},
  };
  return cases;
}

TEST(FlaKinds, AreWrittenAsTheyAreRead) {
  for (const KindCase& one : KindCases()) {
    SCOPED_TRACE(one.type);
    Folders folders;
    const ModelSpec spec = SpecOf(one.mixer);
    folders.WriteModel(spec);
    WriteFla(Checkpoint::Open(folders.model), folders.theirs.string());
    const json config = folders.Config();
    EXPECT_EQ(config.at("model_type"), one.type);
    for (const auto& [name, value] : one.config) EXPECT_EQ(config.at(name), value) << name;
    const std::map<std::string, Shape> shapes = folders.Shapes();
    const bool mamba = one.mixer.kind == "ssd";
    for (const auto& [name, shape] : one.tensors) {
      const std::string full = StrCat(mamba ? "backbone" : "model", ".layers.1.", name);
      ASSERT_EQ(shapes.count(full), 1u) << full;
      EXPECT_EQ(shapes.at(full), shape) << full;
    }
    for (const char* name : {"embeddings.weight", mamba ? "norm_f.weight" : "norm.weight"}) {
      EXPECT_EQ(shapes.count(StrCat(mamba ? "backbone." : "model.", name)), 1u) << name;
    }
    EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{kVocabulary, kWidth}));
    const std::string again = folders.Import();
    EXPECT_EQ(Checkpoint::Open(again).spec(), spec);
    EXPECT_EQ(AllTensors(again), AllTensors(folders.model));
  }
}

// Writes a Mamba-2 model in the layout of Hugging Face's transformers. Every value in row r of a
// tensor is r.
void WriteTransformersMamba2(const fs::path& folder, const Shape& in_proj = {48, 8}) {
  fs::create_directories(folder);
  WriteFileAtomically((folder / "config.json").string(), R"({
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "bos_token_id": 0,
    "chunk_size": 256, "conv_kernel": 4, "eos_token_id": 0, "expand": 2, "head_dim": 4,
    "hidden_act": "silu", "hidden_size": 8, "initializer_range": 0.1, "layer_norm_epsilon": 1e-05,
    "n_groups": 2, "norm_before_gate": false, "num_heads": 4, "num_hidden_layers": 1, "pad_token_id": 0,
    "rescale_prenorm_residual": false, "residual_in_fp32": true, "rms_norm": true, "state_size": 3,
    "tie_word_embeddings": true, "time_step_floor": 0.0001, "time_step_limit": [0.0, Infinity],
    "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256, "torch_dtype": "float32",
    "transformers_version": "4.57.1", "use_bias": false, "use_cache": true, "use_conv_bias": true,
    "vocab_size": 61})");
  const std::pair<const char*, Shape> tensors[] = {
      {"backbone.embeddings.weight", {61, 8}},
      {"backbone.layers.0.norm.weight", {8}},
      {"backbone.layers.0.mixer.A_log", {4}},
      {"backbone.layers.0.mixer.D", {4}},
      {"backbone.layers.0.mixer.dt_bias", {4}},
      {"backbone.layers.0.mixer.in_proj.weight", in_proj},
      {"backbone.layers.0.mixer.conv1d.weight", {28, 1, 4}},
      {"backbone.layers.0.mixer.conv1d.bias", {28}},
      {"backbone.layers.0.mixer.norm.weight", {16}},
      {"backbone.layers.0.mixer.out_proj.weight", {8, 16}},
      {"backbone.norm_f.weight", {8}}};
  SafetensorsWriter writer;
  std::vector<std::vector<float>> all;
  for (const auto& [name, shape] : tensors) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float>& values = all.emplace_back();
    for (int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(i / (count / shape[0])));
    writer.Add(name, DType::kF32, shape, values.data());
  }
  writer.Write((folder / "model.safetensors").string());
}

TEST(FlaKinds, ReadsMamba2OfTransformers) {
  Folders folders;
  WriteTransformersMamba2(folders.theirs);
  const Checkpoint model = Checkpoint::Open(folders.Import());
  const MixerSpec& mixer = model.spec().stack.mixer();
  EXPECT_EQ(mixer.kind, "ssd");
  EXPECT_EQ(mixer.heads, 4);
  EXPECT_EQ(mixer.key_heads, 2);
  EXPECT_EQ(mixer.query_dim, 3);
  EXPECT_EQ(mixer.value_dim, 4);
  EXPECT_EQ(mixer.output_norm_eps, 1e-5f);
  EXPECT_EQ(model.spec().stack.feed_forward, FeedForwardKind::kNone);
  // The rows of in_proj are z, x, B, C and dt (gate, values, keys, queries and time step); those of
  // conv1d are x, B and C. An entry: linnet's name, the first row of the part in the file's tensor,
  // rows, columns.
  const std::tuple<const char*, size_t, size_t, size_t> parts[] = {{"g_proj.weight", 0, 16, 8},
                                                                   {"v_proj.weight", 16, 16, 8},
                                                                   {"k_proj.weight", 32, 6, 8},
                                                                   {"q_proj.weight", 38, 6, 8},
                                                                   {"a_proj.weight", 44, 4, 8},
                                                                   {"v_conv1d.weight", 0, 16, 4},
                                                                   {"k_conv1d.weight", 16, 6, 4},
                                                                   {"q_conv1d.weight", 22, 6, 4},
                                                                   {"v_conv1d.bias", 0, 16, 1},
                                                                   {"k_conv1d.bias", 16, 6, 1},
                                                                   {"q_conv1d.bias", 22, 6, 1},
                                                                   {"o_proj.weight", 0, 8, 16},
                                                                   {"D", 0, 4, 1},
                                                                   {"norm.weight", 0, 16, 1}};
  for (const auto& [name, first, rows, columns] : parts) {
    const auto values = model.Tensor(StrCat("transformer.layers.0.attention.", name));
    ASSERT_EQ(values.size(), rows * columns) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(first + i / columns)) << name << " " << i;
    }
  }
  const auto embedding = model.Tensor("value_embedding.weight"),
             head = model.Tensor("predictor.weight");
  EXPECT_TRUE(std::equal(embedding.begin(), embedding.end(), head.begin(), head.end()));
}

// flash-linear-attention stores one number per layer and channel. With p the softmax of these
// numbers over the layers, the bound of layer l is p_1 + ... + p_l (0 for layer 0). linnet stores
// log(bound / (1 - bound)) in each layer.
TEST(FlaKinds, LowerBoundsOfHgrnGrowFromLayerToLayer) {
  Folders folders;
  const ModelSpec spec = SpecOf({.kind = "hgrn",
                                 .short_convolution = 0,
                                 .lower_bound = true,
                                 .heads = 3,
                                 .query_dim = 8,
                                 .value_dim = 8});
  folders.WriteModel(spec);
  EXPECT_THROW(WriteFla(Checkpoint::Open(folders.model), folders.theirs.string()), InputError);
  EXPECT_FALSE(fs::exists(folders.theirs));

  std::vector<double> logits;  // [layers, channels] of flash-linear-attention
  Philox rng(9, 0);
  for (int i = 0; i < kLayers * kWidth; ++i) logits.push_back(2 * double{rng.Normal()});
  const auto share = [&](int layer, int channel) {
    double sum = 0;
    for (int l = 0; l < kLayers; ++l) sum += std::exp(logits[l * kWidth + channel]);
    return std::exp(logits[layer * kWidth + channel]) / sum;
  };
  const auto bound = [&](int layer, int channel) {
    double sum = 0;
    for (int l = 1; l <= layer; ++l) sum += share(l, channel);
    return sum;
  };
  // Writes the bounds in linnet's form, exports the model and imports it.
  folders.WriteModel(spec, [&](const TensorInfo& info, std::vector<float>& values) {
    if (!info.name.ends_with(".lower_bound")) return;
    const int layer = info.name[std::string("transformer.layers.").size()] - '0';
    for (int c = 0; c < kWidth; ++c) {
      const double b = bound(layer, c);
      values[c] = layer == 0 ? -100.0f : static_cast<float>(std::log(b / (1 - b)));
    }
  });
  WriteFla(Checkpoint::Open(folders.model), folders.theirs.string());
  EXPECT_EQ(folders.Config().at("use_lower_bound"), true);
  EXPECT_EQ(folders.Shapes().at("model.lower_bounds"), (Shape{kLayers, kWidth}));
  {
    const SafetensorsFile file =
        SafetensorsFile::Open((folders.theirs / "model.safetensors").string());
    const auto written = file.Get("model.lower_bounds").f32();
    for (int c = 0; c < kWidth; ++c) {
      double sum = 0;
      for (int l = 0; l < kLayers; ++l) sum += std::exp(double{written[l * kWidth + c]});
      for (int l = 0; l < kLayers; ++l) {
        EXPECT_NEAR(std::exp(double{written[l * kWidth + c]}) / sum, share(l, c), 1e-5);
      }
    }
  }
  const Checkpoint again = Checkpoint::Open(folders.Import());
  EXPECT_EQ(again.spec(), spec);
  for (int l = 0; l < kLayers; ++l) {
    const auto values = again.Tensor(StrCat("transformer.layers.", l, ".attention.lower_bound"));
    for (int c = 0; c < kWidth; ++c) {
      EXPECT_NEAR(1 / (1 + std::exp(-double{values[c]})), bound(l, c), l == 0 ? 1e-30 : 1e-6);
    }
  }
}

// Expects an import error of one line that begins with the folder's path and contains `part`.
void ExpectFault(const Folders& folders, const std::string& part) {
  const std::string fault = ImportFault(folders.theirs);
  EXPECT_NE(fault.find(part), fault.npos) << fault;
  EXPECT_TRUE(fault.starts_with(folders.theirs.string())) << fault;
  EXPECT_EQ(fault.find('\n'), fault.npos) << fault;
}

struct Refusal {
  const char* option;
  json value;
  const char* part;  // of the error message
};

TEST(FlaKinds, RefuseOptionsByName) {
  const std::map<std::string, std::vector<Refusal>> refusals = {
      {"mamba2",
       {{"use_bias", true, "use_bias = true is not supported"},
        {"use_conv_bias", false, "use_conv_bias = false is not supported"},
        {"rmsnorm", false, "rmsnorm = false is not supported"},
        {"rms_norm", false, "rms_norm = false is not supported"},
        {"norm_before_gate", true, "norm_before_gate = true is not supported"},
        {"D_has_hdim", true, "D_has_hdim = true is not supported"},
        {"dt_limit", {0.0, 0.1}, "dt_limit = [0.0,0.1] is not supported"},
        {"time_step_limit", {0.001, 0.1}, "time_step_limit = [0.001,0.1] is not supported"},
        {"hidden_act", "gelu", "hidden_act = \"gelu\" is not supported"},
        {"num_heads", 3, "num_heads x head_dim is not hidden_size x expand = 48"},
        {"head_dim", 7, "it must be a multiple of head_dim = 7"},
        {"head_dim", 0, "it must be a multiple of head_dim = 0"},
        {"n_groups", 3, "n_groups is 3; it must divide num_heads = 4"},
        {"n_groups", 0, "n_groups is 0"},
        {"conv_kernel", 0, "conv_kernel is 0"},
        {"state_size", 0, "query_dim is 0"},
        {"state_size", 6, "in_proj.weight' is F32 [120, 24]"},
        {"intermediate_size", 96, "unknown options 'intermediate_size'"}}},
      {"gated_deltaproduct",
       {{"use_forget_gate", false, "use_forget_gate = false is not supported"},
        {"use_forget_gate", nullptr, "use_forget_gate = false is not supported"},
        {"use_short_conv", false, "use_short_conv = false is not supported"},
        {"num_householder", 0, "householders is 0"},
        {"num_householder", 2, "k_proj.weight' is F32 [18, 24]"},
        {"num_heads", 0, "num_heads is 0; it must be at least 1"},
        {"num_v_heads", 4, "v_proj.weight' is F32 [72, 24]"},
        {"attn", {{"layers", {1}}}, "attn: num_heads is 0; it must divide hidden_size = 24"}}},
      {"hgrn",
       {{"use_lower_bound", true, "use_lower_bound needs expand_ratio = 1"},
        {"elementwise_affine", false, "elementwise_affine = false is not supported"},
        {"expand_ratio", 0, "hidden_size x expand_ratio is 0"},
        {"expand_ratio", 1, "i_proj.weight' is F32 [48, 24]"},
        {"use_short_conv", false, "does not know the tensors 'model.layers.0.attn.f_conv1d"},
        {"num_heads", 4, "unknown options 'num_heads'"}}},
      {"gla", {{"num_kv_heads", 3, "num_kv_heads is 3; it must divide num_heads = 4"}}},
      {"retnet",
       {{"num_kv_heads", 0, "num_kv_heads is 0; it must divide num_heads = 2"},
        {"num_kv_heads", 2, "k_proj.weight' is F32 [12, 24]"}}},
  };
  for (const KindCase& one : KindCases()) {
    if (refusals.count(one.type) == 0) continue;
    Folders folders;
    folders.WriteModel(SpecOf(one.mixer));
    WriteFla(Checkpoint::Open(folders.model), folders.theirs.string());
    const json config = folders.Config();
    for (const Refusal& refusal : refusals.at(one.type)) {
      SCOPED_TRACE(StrCat(one.type, ", ", refusal.option));
      json changed = config;
      changed[refusal.option] = refusal.value;
      folders.WriteConfig(changed.dump());
      ExpectFault(folders, refusal.part);
    }
    folders.WriteConfig(config.dump());
    EXPECT_EQ(ImportFault(folders.theirs), "none");
  }
}

TEST(FlaKinds, RefuseTensorsThatDoNotFit) {
  Folders folders;
  WriteTransformersMamba2(folders.theirs, {47, 8});
  ExpectFault(folders,
              "'backbone.layers.0.mixer.in_proj.weight' is F32 [47, 8], but the config "
              "needs F32, F16 or BF16 [48, 8]");
  folders.WriteConfig(R"({"model_type": "mamba2", "time_step_limit": [-Infinity, Infinity]})");
  ExpectFault(folders, "time_step_limit = [-1e+308,1e+308] is not supported");
  fs::remove_all(folders.theirs);

  folders.WriteModel(
      SpecOf({.kind = "hgrn", .short_convolution = 0, .heads = 3, .query_dim = 8, .value_dim = 8}));
  WriteFla(Checkpoint::Open(folders.model), folders.theirs.string());
  json config = folders.Config();
  config["use_lower_bound"] = true;
  folders.WriteConfig(config.dump());
  ExpectFault(folders, "the tensor 'model.lower_bounds' is missing");
}

// The export refuses models that flash-linear-attention cannot express.
TEST(FlaKinds, RefuseModelsWithoutACounterpart) {
  const std::pair<MixerSpec, const char*> cases[] = {
      {{.kind = "ssd", .short_convolution = 0, .heads = 4, .query_dim = 5, .value_dim = 12},
       "needs a short convolution"},
      {{.kind = "ssd", .heads = 3, .query_dim = 5, .value_dim = 12}, "a multiple of d_model"},
      {{.kind = "gated-delta-product",
        .short_convolution = 0,
        .heads = 2,
        .query_dim = 6,
        .value_dim = 6},
       "without a convolution"},
      {{.kind = "hgrn", .lower_bound = true, .heads = 2, .query_dim = 8, .value_dim = 8},
       "heads x value_dim = d_model = 24"}};
  for (const auto& [mixer, part] : cases) {
    Folders folders;
    folders.WriteModel(SpecOf(mixer));
    try {
      WriteFla(Checkpoint::Open(folders.model), folders.theirs.string());
      ADD_FAILURE() << part;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_FALSE(fs::exists(folders.theirs));
  }
}

}  // namespace
}  // namespace linnet
