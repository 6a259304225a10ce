// Tests the import of flash-linear-attention's model folders, valid and invalid, and the export.
#include "linnet/model/fla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/vocabulary.h"
#include "tests/gated_models.h"

namespace linnet {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json ConfigOf(const GatedModel& golden) {
  return json::parse(ReadFile((golden.folder / "config.json").string()));
}

// Sets an option in config.json.
void Set(const GatedModel& golden, const std::string& name, const json& value) {
  json config = ConfigOf(golden);
  config[name] = value;
  golden.WriteText("config.json", config.dump());
}

// Rewrites the folder's tensors. change(name, shape, floats) may edit a tensor, or drop it by
// returning false.
void Rewrite(
    const GatedModel& golden,
    const std::function<bool(std::string&, std::vector<int64_t>&, std::vector<float>&)>& change) {
  const fs::path path = golden.folder / "model.safetensors";
  SafetensorsWriter writer;
  std::vector<std::vector<float>> all;
  {
    const SafetensorsFile file = SafetensorsFile::Open(path.string());
    for (const Tensor& tensor : file.tensors()) {
      std::string name = tensor.name;
      std::vector<int64_t> shape = tensor.shape;
      all.emplace_back(tensor.f32().begin(), tensor.f32().end());
      if (change(name, shape, all.back())) writer.Add(name, DType::kF32, shape, all.back().data());
    }
  }
  writer.Write(path.string());
}

std::string Fault(const GatedModel& golden, const std::string& tokenizer = "") {
  return ImportFault(golden.folder, tokenizer);
}

TEST(Fla, ReadsShards) {
  const std::vector<float> whole = AllTensors(GatedModel("gla").Import());
  const GatedModel golden("gla", /*shards=*/3);
  EXPECT_EQ(FlaModel::Open(golden.folder.string()).files(), 3u);
  EXPECT_EQ(AllTensors(golden.Import()), whole);
  fs::remove(golden.folder / "model-2.safetensors");
  EXPECT_NE(Fault(golden).find("model-2.safetensors"), std::string::npos) << Fault(golden);
}

TEST(Fla, ReadsTensorsOfOlderVersions) {
  const std::vector<float> whole = AllTensors(GatedModel("gla").Import());
  const GatedModel golden("gla");
  std::map<std::string, std::vector<float>> up;
  Rewrite(golden, [&](std::string& name, auto&, std::vector<float>& values) {
    if (name.find("up_proj") != name.npos) up[name] = values;
    return true;
  });
  Rewrite(golden, [&](std::string& name, std::vector<int64_t>& shape, std::vector<float>& values) {
    const size_t at = name.find("gate_proj");
    if (at != name.npos) {
      const auto& more = up.at(std::string(name).replace(at, 9, "up_proj"));
      values.insert(values.end(), more.begin(), more.end());
      shape[0] *= 2;
    }
    if (const size_t norm = name.find("g_norm_swish_gate"); norm != name.npos) {
      name.replace(norm, 17, "g_norm");
    }
    return name.find("up_proj") == name.npos;
  });
  EXPECT_EQ(AllTensors(golden.Import()), whole);
}

TEST(Fla, ReadsTiedEmbeddings) {
  const GatedModel golden("gla");
  Set(golden, "tie_word_embeddings", true);
  Rewrite(golden, [](const std::string& name, auto&, auto&) { return name != "lm_head.weight"; });
  const Checkpoint model = Checkpoint::Open(golden.Import());
  const auto embedding = model.Tensor("value_embedding.weight"),
             head = model.Tensor("predictor.weight");
  EXPECT_TRUE(std::equal(embedding.begin(), embedding.end(), head.begin(), head.end()));
}

// F16 and BF16 tensors are read exactly; BF16 matrices stay BF16 in linnet's model file.
TEST(Fla, ReadsNarrowTensors) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const GatedModel golden("gated_delta_net");
    const fs::path path = golden.folder / "model.safetensors";
    std::vector<std::vector<uint16_t>> all;
    std::vector<float> first;
    SafetensorsWriter writer;
    {
      const SafetensorsFile file = SafetensorsFile::Open(path.string());
      for (const Tensor& tensor : file.tensors()) {
        std::vector<uint16_t>& narrow = all.emplace_back(static_cast<size_t>(tensor.numel()));
        // Varied bit patterns; all are finite numbers.
        for (size_t i = 0; i < narrow.size(); ++i) {
          narrow[i] = static_cast<uint16_t>((i * 40503u) & (type == DType::kF16 ? 0xbbff : 0xbfff));
        }
        writer.Add(tensor.name, type, tensor.shape, narrow.data());
      }
    }
    writer.Write(path.string());
    const FlaModel model = FlaModel::Open(golden.folder.string());
    EXPECT_EQ(model.precision(), type == DType::kBF16 ? Precision::kBf16 : Precision::kF32);
    const Checkpoint checkpoint = Checkpoint::Open(golden.Import());
    EXPECT_EQ(checkpoint.precision(), model.precision());
    const auto got = checkpoint.Tensor("value_embedding.weight");
    for (size_t i = 0; i < 60; ++i) {
      const uint16_t bits =
          static_cast<uint16_t>((i * 40503u) & (type == DType::kF16 ? 0xbbff : 0xbfff));
      float want;
      if (type == DType::kF16) {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        want = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 1024),
                          std::max(exponent, 1) - 25);
        if (bits >> 15 != 0) want = -want;
      } else {
        const uint32_t wide = uint32_t{bits} << 16;
        std::memcpy(&want, &wide, sizeof(want));
      }
      EXPECT_EQ(got[i], want) << bits;
    }
  }
}

TEST(Fla, WritesWhatItReads) {
  for (const char* name : {"gla", "gated_delta_net"}) {
    const GatedModel golden(name);
    fs::copy_file("tests/golden/tokenizer/byte_level.json", golden.folder / "tokenizer.json");
    EXPECT_NE(Fault(golden).find("vocabulary is 61; the tokenizer has 459 tokens"),
              std::string::npos);
    constexpr int kRows = 470;  // more than the tokenizer's 459 tokens
    Set(golden, "vocab_size", kRows);
    Rewrite(golden,
            [](const std::string&, std::vector<int64_t>& shape, std::vector<float>& values) {
              if (shape[0] == 61) shape[0] = kRows, values.resize(kRows * 32, 0.5f);
              return true;
            });
    const std::string first = golden.Import(), second = (golden.folder / "second").string();
    const fs::path again = golden.folder / "again";
    WriteFla(Checkpoint::Open(first), again.string());
    EXPECT_THROW(WriteFla(Checkpoint::Open(first), again.string()), InputError);  // not empty
    const FlaModel back = FlaModel::Open(again.string());
    EXPECT_EQ(back.spec(), Checkpoint::Open(first).spec());
    EXPECT_EQ(Vocabulary(*back.spec().text()).end(), 456);
    back.Write(second, "{}");
    EXPECT_EQ(AllTensors(second), AllTensors(first));
  }
  EXPECT_THROW(WriteFla(Checkpoint::Open("models/digits.safetensors"), "unused"), InputError);
  EXPECT_FALSE(fs::exists("unused"));
}

// The option "attn": softmax attention in layer 1, with 4 query heads of 8 dimensions and 2 heads
// of keys and values.
const json kSoftmax = {{"layers", {1}},
                       {"num_heads", 4},
                       {"num_kv_heads", 2},
                       {"window_size", 5},
                       {"rope_theta", 500.0}};

// Sets the option "attn", and gives the layers that it names tensors of softmax attention.
void MakeHybrid(const GatedModel& golden, const json& attn) {
  Set(golden, "attn", attn);
  const json bias = attn.value("qkv_bias", false);
  const std::vector<int> layers = attn.at("layers");
  SafetensorsWriter writer;
  std::vector<std::vector<float>> all;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    size_t count = 1;
    for (const int64_t n : shape) count *= static_cast<size_t>(n);
    std::vector<float>& values = all.emplace_back();
    for (size_t i = 0; i < count; ++i) {
      values.push_back(std::sin(static_cast<float>(i * all.size())) / 4);
    }
    writer.Add(name, DType::kF32, shape, values.data());
  };
  const fs::path path = golden.folder / "model.safetensors";
  {
    const SafetensorsFile file = SafetensorsFile::Open(path.string());
    for (const Tensor& tensor : file.tensors()) {
      const bool replaced = std::any_of(layers.begin(), layers.end(), [&](int i) {
        return tensor.name.starts_with(StrCat("model.layers.", i, ".attn."));
      });
      if (replaced) continue;
      all.emplace_back(tensor.f32().begin(), tensor.f32().end());
      writer.Add(tensor.name, DType::kF32, tensor.shape, all.back().data());
    }
  }
  for (const int i : layers) {
    for (const auto& [name, rows] :
         {std::pair<const char*, int64_t>{"q", 32}, {"k", 16}, {"v", 16}, {"o", 32}}) {
      const std::string tensor = StrCat("model.layers.", i, ".attn.", name, "_proj.");
      add(tensor + "weight", {rows, 32});
      if (bias == true && *name != 'o') add(tensor + "bias", {rows});
    }
  }
  writer.Write(path.string());
}

TEST(Fla, ReadsAndWritesHybrids) {
  for (const bool bias : {false, true}) {
    const GatedModel golden("gated_delta_net");
    json attn = kSoftmax;
    if (bias) attn["qkv_bias"] = true, attn.erase("window_size"), attn.erase("rope_theta");
    MakeHybrid(golden, attn);
    const FlaModel model = FlaModel::Open(golden.folder.string());
    const StackSpec& stack = model.spec().stack;
    ASSERT_EQ(stack.layers(), 2);
    ASSERT_EQ(stack.pattern.size(), 2u);
    EXPECT_EQ(stack.mixer(0).kind, "gated-delta-net");
    const MixerSpec& full = stack.mixer(1);
    EXPECT_EQ(full.kind, "full");
    EXPECT_EQ(full.heads, 4);
    EXPECT_EQ(full.key_heads, 2);
    EXPECT_EQ(full.query_dim, 8);
    EXPECT_EQ(full.window, bias ? 0 : 5);
    EXPECT_TRUE(full.rotary);
    EXPECT_EQ(full.rotary_base, bias ? 10000 : 500);
    EXPECT_EQ(full.qkv_bias, bias);
    EXPECT_FALSE(full.out_bias);
    const std::string first = golden.Import(), second = (golden.folder / "second").string();
    const Checkpoint checkpoint = Checkpoint::Open(first);
    EXPECT_EQ(checkpoint.spec(), model.spec());
    const SafetensorsFile file =
        SafetensorsFile::Open((golden.folder / "model.safetensors").string());
    const auto from = file.Get("model.layers.1.attn.k_proj.weight").f32();
    const auto to = checkpoint.Tensor("transformer.layers.1.attention.key_projection.weight");
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin(), to.end()));
    const fs::path again = golden.folder / "again";
    WriteFla(checkpoint, again.string());
    const FlaModel back = FlaModel::Open(again.string());
    EXPECT_EQ(back.spec(), model.spec());
    back.Write(second, "{}");
    EXPECT_EQ(AllTensors(second), AllTensors(first));
  }
}

TEST(Fla, RefusesHybridsThatDoNotFit) {
  const std::pair<const char*, std::pair<json, const char*>> cases[] = {
      {"layers", {{2}, "'layers' names the layer 2; the model has the layers 0 to 1"}},
      {"layers", {1, "'layers' cannot be 1"}},
      {"num_heads", {5, "num_heads is 5; it must divide hidden_size = 32"}},
      {"num_kv_heads", {3, "num_kv_heads is 3; it must divide num_heads = 4"}},
      {"num_kv_heads", {0, "num_kv_heads is 0; it must divide num_heads = 4"}},
      {"qk_norm", {true, "the option qk_norm = true is not supported"}},
      {"rope_theta", {nullptr, "the option rope_theta = null is not supported"}},
      {"rope_scaling", {2, "has the unknown options 'rope_scaling'"}},
  };
  for (const auto& [name, fault] : cases) {
    const GatedModel golden("gated_delta_net");
    json attn = kSoftmax;
    attn[name] = fault.first;
    Set(golden, "attn", attn);
    EXPECT_NE(Fault(golden).find(fault.second), std::string::npos) << Fault(golden);
  }
}

TEST(Fla, RefusesUnknownOptionsByName) {
  const std::pair<const char*, json> cases[] = {
      {"model_type", "mamba"},     {"model_type", nullptr},    {"hidden_act", "gelu"},
      {"attn", {{"layers", {1}}}}, {"num_kv_heads", 3},        {"feature_map", "elu"},
      {"use_short_conv", true},    {"use_output_gate", false}, {"use_gv", true},
      {"norm_eps", "small"},       {"num_heads", 0},           {"num_heads", 3},
      {"expand_k", 1e9},           {"hidden_size", -1},        {"num_hidden_layers", 0},
      {"vocab_size", 1 << 29},     {"residual_in_fp8", true},  {"eos_token_id", "two"},
  };
  for (const auto& [name, value] : cases) {
    const GatedModel golden("gla");
    Set(golden, name, value);
    const std::string fault = Fault(golden);
    EXPECT_NE(fault, "none") << name << " " << value;
    EXPECT_TRUE(fault.starts_with(golden.folder.string())) << fault;
    EXPECT_EQ(fault.find('\n'), fault.npos) << fault;
  }
  const GatedModel golden("gla");
  Set(golden, "residual_in_fp8", true);
  EXPECT_NE(Fault(golden).find("has the unknown options 'residual_in_fp8'"), std::string::npos);
  Set(golden, "residual_in_fp8", false);  // accepted: false turns it off
  EXPECT_EQ(Fault(golden), "none");
}

TEST(Fla, RefusesTensorsThatDoNotFit) {
  {
    const GatedModel golden("gla");
    Rewrite(golden, [](const std::string& name, auto&, auto&) {
      return name != "model.layers.1.attn.o_proj.weight";
    });
    EXPECT_NE(Fault(golden).find("'model.layers.1.attn.o_proj.weight' is missing"),
              std::string::npos);
  }
  {
    const GatedModel golden("gla");
    Rewrite(golden, [](const std::string& name, std::vector<int64_t>& shape, auto&) {
      if (name == "model.norm.weight") shape = {2, 16};
      return true;
    });
    EXPECT_NE(Fault(golden).find("'model.norm.weight' is F32 [2, 16]"), std::string::npos);
  }
  {
    const GatedModel golden("gla");
    Rewrite(golden, [](std::string& name, auto&, auto&) {
      if (name == "model.layers.1.attn.o_proj.weight") name = "model.layers.2.attn.o_proj.weight";
      return true;
    });
    EXPECT_NE(Fault(golden).find("missing"), std::string::npos);
  }
  {
    const GatedModel golden("gla");
    Set(golden, "num_hidden_layers", 1);
    EXPECT_NE(Fault(golden).find("does not know the tensors 'model.layers.1"), std::string::npos);
  }
  {
    const GatedModel golden("gla");
    Rewrite(golden, [](const std::string&, auto&, std::vector<float>& values) {
      values.back() = HUGE_VALF;
      return true;
    });
    EXPECT_THROW(golden.Import(), InputError);
    EXPECT_FALSE(fs::exists(golden.folder / "linnet.safetensors"));
  }
}

TEST(Fla, RefusesAnIndexThatLeavesTheFolder) {
  const GatedModel golden("gla", 2);
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", ""}) {
    golden.WriteText("model.safetensors.index.json",
                     json({{"weight_map", {{"model.norm.weight", name}}}}).dump());
    EXPECT_NE(Fault(golden).find("the name of a file in this folder"), std::string::npos) << name;
  }
}

TEST(Fla, RefusesOtherTokenizers) {
  const GatedModel golden("gla");
  golden.WriteText("tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  EXPECT_NE(Fault(golden).find("'Unigram'; only BPE is supported"), std::string::npos);
  EXPECT_NE(Fault(golden, "no-such-file.json").find("no-such-file.json"), std::string::npos);
}

}  // namespace
}  // namespace linnet
