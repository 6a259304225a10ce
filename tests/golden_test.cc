// Compares linnet with tensors written by fast-transformers and PyTorch. Reads every *.safetensors
// of a known kind in the folder LINNET_GOLDEN (default: tests/golden); each file has its shapes and
// settings (tests/golden/README.md).
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/nn/decoder.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/nn/transformer.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/lsh_attention.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nn::Mask;

class Golden {
 public:
  explicit Golden(const std::string& path) : file_(SafetensorsFile::Open(path)) {
    const auto config = file_.metadata().find("config");
    if (config != file_.metadata().end()) config_ = json::parse(config->second);
  }

  torch::Tensor Get(const std::string& name) const {
    const linnet::Tensor& tensor = file_.Get(name);
    if (tensor.dtype == DType::kI64) {
      return torch::from_blob(const_cast<int64_t*>(tensor.i64().data()), tensor.shape,
                              torch::kInt64)
          .clone();
    }
    return torch::from_blob(const_cast<float*>(tensor.f32().data()), tensor.shape, torch::kFloat32)
        .clone();
  }
  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  // The names that begin with the prefix, without the prefix.
  std::vector<std::string> Names(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const linnet::Tensor& tensor : file_.tensors()) {
      if (tensor.name.rfind(prefix, 0) == 0) names.push_back(tensor.name.substr(prefix.size()));
    }
    return names;
  }
  const json& config() const { return config_; }

 private:
  SafetensorsFile file_;
  json config_;
};

// Expects the largest difference to be at most `tolerance` times the largest magnitude, or times
// `floor` if that is larger.
void ExpectClose(const torch::Tensor& got, const torch::Tensor& want, double tolerance,
                 const std::string& what, double floor = 1e-30) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = std::max(want.abs().max().item<double>(), floor);
  const double off = (got - want).abs().max().item<double>() / scale;
  EXPECT_LE(off, tolerance) << what;
  EXPECT_TRUE(torch::isfinite(got).all().item<bool>()) << what;
}

torch::Tensor Leaf(const torch::Tensor& x) { return x.clone().requires_grad_(); }

// Compares the gradients of all parameters. Some are zero in theory (softmax is invariant to a bias
// of the keys) and hold rounding errors only, so below a thousandth of the largest gradient the
// tolerance is absolute.
void ExpectGradients(const Golden& golden,
                     const std::function<torch::Tensor(const std::string&)>& gradient) {
  const std::vector<std::string> names = golden.Names("grad.");
  ASSERT_FALSE(names.empty());
  double largest = 0;
  for (const std::string& name : names) {
    largest = std::max(largest, golden.Get("grad." + name).abs().max().item<double>());
  }
  for (const std::string& name : names) {
    ExpectClose(gradient(name), golden.Get("grad." + name), 1e-4, "grad." + name, 1e-3 * largest);
  }
}

void CausalProduct(const Golden& golden) {
  const auto read = [&](const char* name) { return Leaf(golden.Get(name)); };
  torch::Tensor q = read("q"), k = read("k"), v = read("v");
  // The files store [N, H, L, D]; the operation accepts any strides.
  const torch::Tensor out =
      ops::CausalLinearAttention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {},
                                 {kernels::FeatureMap::kIdentity, false, 0.0f})
          .transpose(1, 2);
  (out * golden.Get("grad_out")).sum().backward();
  ExpectClose(out, golden.Get("out"), 1e-5, "out");
  ExpectClose(q.grad(), golden.Get("grad_q"), 1e-5, "grad_q");
  ExpectClose(k.grad(), golden.Get("grad_k"), 1e-5, "grad_k");
  ExpectClose(v.grad(), golden.Get("grad_v"), 1e-5, "grad_v");
}

void RawAttention(const Golden& golden, const std::string& kind) {
  MixerSpec spec;
  spec.kind = kind == "full_causal" ? "full" : kind == "causal_linear" ? "causal-linear" : kind;
  spec.eps = golden.config().value("eps", 1e-6f);
  const auto read = [&](const char* name) { return Leaf(golden.Get(name)); };
  torch::Tensor q = read("q"), k = read("k"), v = read("v");
  const Mask mask{.causal = kind.find("causal") != std::string::npos,
                  .lengths = golden.Get("key_lengths")};
  const nn::MixerSizes sizes{q.size(2), q.size(3), v.size(3)};
  const torch::Tensor out = nn::MakeMixer(spec, sizes)->forward(q, k, v, mask);
  (out * golden.Get("grad_out")).sum().backward();
  ExpectClose(out, golden.Get("out"), 1e-5, "out");
  ExpectClose(q.grad(), golden.Get("grad_q"), 1e-5, "grad_q");
  ExpectClose(k.grad(), golden.Get("grad_k"), 1e-5, "grad_k");
  ExpectClose(v.grad(), golden.Get("grad_v"), 1e-5, "grad_v");
}

Activation ActivationOf(const json& config) {
  return ParseName<Activation>(config.value("activation", "relu"), "activation");
}

void Encoder(const Golden& golden) {
  const json& c = golden.config();
  const torch::Tensor x = Leaf(golden.Get("x"));
  const nn::Transformer built =
      nn::BuildTransformer({.pattern = {{.kind = c["attention_type"],
                                         .heads = c["n_heads"],
                                         .query_dim = c["query_dimensions"],
                                         .value_dim = c["value_dimensions"]}},
                            .layers = c["n_layers"],
                            .d_model = x.size(2),
                            .d_ff = c["feed_forward_dimensions"],
                            .activation = ActivationOf(c),
                            .final_norm = c["final_normalization"]});
  nn::TransformerEncoder encoder = built.batch;
  encoder->eval();
  auto parameters = encoder->named_parameters();
  const std::vector<std::string> names = golden.Names("param.");
  ASSERT_EQ(names.size(), parameters.size());
  {
    torch::NoGradGuard no_grad;
    for (const std::string& name : names) {
      ASSERT_TRUE(parameters.contains(name)) << name;
      parameters[name].copy_(golden.Get("param." + name));
    }
  }
  const bool causal = c["causal"];
  const torch::Tensor y = encoder->forward(x, {.causal = causal, .lengths = golden.Get("lengths")});
  (y * golden.Get("grad_out")).sum().backward();
  ExpectClose(y, golden.Get("y"), 1e-4, "y");
  ExpectClose(x.grad(), golden.Get("grad_x"), 1e-4, "grad_x");
  ExpectGradients(golden, [&](const std::string& name) { return parameters[name].grad(); });

  if (!golden.Has("y_recurrent")) return;
  torch::NoGradGuard no_grad;
  nn::RecurrentTransformerEncoder recurrent = built.recurrent;
  recurrent->eval();
  nn::RecurrentState state;
  std::vector<torch::Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) {
    outputs.push_back(recurrent->forward(x.select(1, t), state));
  }
  ExpectClose(torch::stack(outputs, 1), golden.Get("y_recurrent"), 1e-4, "y_recurrent");
  for (size_t i = 0; golden.Has("state." + std::to_string(i) + ".s"); ++i) {
    const std::string name = "state." + std::to_string(i);
    ExpectClose(state[i].tensors[0], golden.Get(name + ".s"), 1e-4, name + ".s");
    ExpectClose(state[i].tensors[1], golden.Get(name + ".z"), 1e-4, name + ".z");
  }
}

// The files store neither d_ff (it follows from a tensor's shape) nor the activation (relu).
void DecoderStack(const Golden& golden) {
  const json& c = golden.config();
  const torch::Tensor x = Leaf(golden.Get("x")), memory = Leaf(golden.Get("memory"));
  const int64_t width = x.size(2);
  const int heads = c["n_heads"], dim = static_cast<int>(width) / heads;
  const auto mixer = [&](const char* which) -> MixerSpec {
    return {.kind = c[which], .heads = heads, .query_dim = dim, .value_dim = dim};
  };
  nn::DecoderOptions options;
  options.transformer.pattern = {mixer("self_attention")};
  options.cross = {mixer("cross_attention")};
  options.transformer.layers = c["n_layers"];
  options.transformer.d_model = width;
  options.transformer.d_ff = golden.Get("param.layers.0.linear1.weight").size(0);
  options.transformer.activation = ActivationOf(c);
  const nn::Decoder built = nn::BuildDecoder(options);
  nn::TransformerDecoder decoder = built.batch;
  decoder->eval();
  auto parameters = decoder->named_parameters();
  const std::vector<std::string> names = golden.Names("param.");
  ASSERT_EQ(names.size(), parameters.size());
  {
    torch::NoGradGuard no_grad;
    for (const std::string& name : names) {
      ASSERT_TRUE(parameters.contains(name)) << name;
      parameters[name].copy_(golden.Get("param." + name));
    }
  }
  const torch::Tensor lengths = golden.Get("memory_lengths");
  const torch::Tensor y = decoder->forward(x, memory, {.lengths = lengths});
  (y * golden.Get("grad_out")).sum().backward();
  ExpectClose(y, golden.Get("y"), 1e-4, "y");
  ExpectClose(x.grad(), golden.Get("grad_x"), 1e-4, "grad_x");
  ExpectClose(memory.grad(), golden.Get("grad_memory"), 1e-4, "grad_memory");
  ExpectGradients(golden, [&](const std::string& name) { return parameters[name].grad(); });

  torch::NoGradGuard no_grad;
  nn::RecurrentTransformerDecoder recurrent = built.recurrent;
  recurrent->eval();
  nn::DecoderState state = recurrent->Begin(memory, lengths);
  std::vector<torch::Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) {
    outputs.push_back(recurrent->forward(x.select(1, t), state));
  }
  ExpectClose(torch::stack(outputs, 1), golden.Get("y_recurrent"), 1e-4, "y_recurrent");
}

void SimpleReformer(const Golden& golden) {
  const json& c = golden.config();
  const torch::Tensor q = Leaf(golden.Get("q")), v = Leaf(golden.Get("v"));
  // The file stores [rounds, N, L, H]; the operation needs [rounds, N, H, L].
  const torch::Tensor order = golden.Get("sorted_index").transpose(2, 3).contiguous();
  const ops::LshOptions options{
      .buckets = 2 * c["bits"].get<int64_t>(), .chunk = c["chunk_size"], .causal = c["causal"]};
  const torch::Tensor out = ops::SimpleLshAttention(q, v, {}, order, options, c["masked"]);
  (out * golden.Get("grad_out")).sum().backward();
  ExpectClose(out, golden.Get("out"), 1e-5, "out");
  ExpectClose(q.grad(), golden.Get("grad_q"), 1e-4, "grad_q");
  ExpectClose(v.grad(), golden.Get("grad_v"), 1e-5, "grad_v");
  // The stored order must also sort the positions by linnet's buckets.
  const torch::Tensor planes = golden.Get("planes").transpose(1, 2);  // [rounds, D, bits]
  const torch::Tensor sorted = ops::LshBuckets(q, planes, options.buckets).gather(3, order);
  const int64_t length = sorted.size(3);
  EXPECT_TRUE(
      (sorted.narrow(3, 1, length - 1) >= sorted.narrow(3, 0, length - 1)).all().item<bool>());
}

void MixtureOfLogistics(const Golden& golden) {
  const torch::Tensor logits = Leaf(golden.Get("logits"));
  const torch::Tensor nats = nn::MixtureOfLogisticsNats(logits, golden.Get("pixels")).mean();
  nats.backward();
  ExpectClose(nats.view({1}), golden.Get("nats_per_dim"), 1e-4, "nats_per_dim");
  ExpectClose(logits.grad(), golden.Get("grad_logits"), 1e-4, "grad_logits");
}

void Ctc(const Golden& golden) {
  const torch::Tensor log_probs = Leaf(golden.Get("log_probs")), want = golden.Get("loss");
  const torch::Tensor nats =
      nn::CtcNats(log_probs.transpose(0, 1), golden.Get("targets"), golden.Get("input_lengths"),
                  golden.Get("target_lengths"), golden.config()["blank"]);
  const torch::Tensor fits = torch::isfinite(want);
  EXPECT_TRUE(torch::equal(torch::isfinite(nats), fits));
  ExpectClose(nats.masked_select(fits), want.masked_select(fits), 1e-5, "loss");
  nats.masked_select(fits).sum().backward();
  // The stored gradients are in fp32: their rounding error is 9e-6, so the tolerance is wider.
  ExpectClose(log_probs.grad(), golden.Get("grad_log_probs"), 2e-5, "grad_log_probs");
  const torch::Tensor wide = Leaf(golden.Get("log_probs").to(torch::kFloat64));
  nn::CtcNats(wide.transpose(0, 1), golden.Get("targets"), golden.Get("input_lengths"),
              golden.Get("target_lengths"), golden.config()["blank"])
      .masked_select(fits)
      .sum()
      .backward();
  ExpectClose(log_probs.grad().to(torch::kFloat64), wide.grad(), 1e-6, "gradients in fp32");
}

void ImageModel(const Golden& golden) {
  const json& c = golden.config();
  const torch::Tensor images = golden.Get("images");
  const torch::Tensor value_embedding = golden.Get("param.value_embedding.weight");
  ModelSpec spec;
  const int d_model = c["d_model"], heads = c["n_heads"], dim = d_model / heads;
  spec.stack.pattern = {{.heads = heads, .query_dim = dim, .value_dim = dim}};
  spec.stack.repeat = c["n_layers"];
  spec.stack.d_model = d_model;
  spec.stack.d_ff =
      static_cast<int>(golden.Get("param.transformer.layers.0.linear1.weight").size(0));
  spec.stack.activation = ActivationOf(c);
  spec.head.mixtures = c["mixtures"];
  spec.input.max_length = c["sequence_length"];
  spec.input.value_embedding = static_cast<int>(value_embedding.size(1));
  spec.part = ImageSpec{.width = spec.input.max_length + 1, .height = 1};
  nn::SequenceModel model(spec);
  const std::vector<std::string> names = golden.Names("param.");
  ASSERT_EQ(names.size() + 1, TensorTable(spec).size());  // all but first_value.probability
  std::map<std::string, torch::Tensor> tensors = nn::ModelTensors(*model);
  for (const std::string& name : names) {
    torch::NoGradGuard no_grad;
    const torch::Tensor want = golden.Get("param." + name);
    // linnet computes position tables instead of reading them from a file; they must match.
    if (IsBuffer(name)) {
      ExpectClose(tensors.at(name), want, 1e-5, name);
    } else {
      tensors.at(name).copy_(want);
    }
  }
  const int64_t length = spec.input.max_length;
  const torch::Tensor logits = model->forward(images.narrow(1, 0, length));
  const torch::Tensor nats = nn::MixtureOfLogisticsNats(logits, images.narrow(1, 1, length)).mean();
  nats.backward();
  ExpectClose(logits, golden.Get("y_hat"), 1e-4, "y_hat");
  ExpectClose(nats.view({1}), golden.Get("nats_per_dim"), 1e-4, "nats_per_dim");
  ExpectGradients(golden, [&](const std::string& name) { return tensors.at(name).grad(); });
}

void OptimizerTrajectory(const Golden& golden, const std::string& which) {
  const json& c = golden.config();
  const json clip = c.value("per_tensor_grad_clip", json());
  nn::OptimizerOptions options;
  options.name = which.rfind("radam", 0) == 0 ? "radam" : "adam";
  options.weight_decay = c["weight_decay"];
  options.clip = clip.is_null() ? 0.0 : clip.get<double>();
  std::vector<torch::Tensor> parameters;
  for (size_t i = 0; golden.Has("start." + std::to_string(i)); ++i) {
    parameters.push_back(Leaf(golden.Get("start." + std::to_string(i))));
  }
  ASSERT_FALSE(parameters.empty());
  nn::Optimizer optimizer(options, parameters);
  const int64_t steps = golden.Get("grads_0").size(0);
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = golden.Get("grads_" + std::to_string(i))[step].clone();
    }
    optimizer.Step(c["lr"]);
    for (size_t i = 0; i < parameters.size(); ++i) {
      ExpectClose(parameters[i].detach(), golden.Get("params_" + std::to_string(i))[step], 1e-5,
                  StrCat("parameter ", i, " at step ", step));
    }
  }
}

// Sets `rest` to the part of `stem` after the prefix. Returns false if `stem` lacks the prefix.
bool Behind(const std::string& stem, const std::string& prefix, std::string* rest) {
  if (stem.rfind(prefix, 0) != 0) return false;
  *rest = stem.substr(prefix.size());
  return true;
}

bool Known(const std::string& stem) {
  std::string rest;
  if (Behind(stem, "attention_", &rest)) {
    return rest == "full" || rest == "full_causal" || rest == "linear" || rest == "causal_linear";
  }
  return Behind(stem, "causal_product_", &rest) || Behind(stem, "encoder_", &rest) ||
         Behind(stem, "optimizer_", &rest) || Behind(stem, "decoder_", &rest) ||
         Behind(stem, "reformer_reference_", &rest) || stem == "mixture_of_logistics" ||
         stem == "image_model" || stem == "ctc" || stem == "ctc_short_input";
}

std::vector<std::string> Files() {
  const char* folder = std::getenv("LINNET_GOLDEN");
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder ? folder : "tests/golden", error)) {
    if (entry.path().extension() == ".safetensors" && Known(entry.path().stem().string())) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class GoldenFile : public testing::TestWithParam<std::string> {};

TEST_P(GoldenFile, Agrees) {
  const Golden golden(GetParam());
  const std::string stem = fs::path(GetParam()).stem().string();
  torch::manual_seed(0);
  std::string rest;
  if (Behind(stem, "causal_product_", &rest)) return CausalProduct(golden);
  if (Behind(stem, "attention_", &rest)) return RawAttention(golden, rest);
  if (Behind(stem, "encoder_", &rest)) return Encoder(golden);
  if (Behind(stem, "decoder_", &rest)) return DecoderStack(golden);
  if (Behind(stem, "reformer_reference_", &rest)) return SimpleReformer(golden);
  if (Behind(stem, "optimizer_", &rest)) return OptimizerTrajectory(golden, rest);
  if (stem == "mixture_of_logistics") return MixtureOfLogistics(golden);
  if (stem == "image_model") return ImageModel(golden);
  if (stem == "ctc" || stem == "ctc_short_input") return Ctc(golden);
  FAIL() << "no comparison for " << stem;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenFile, testing::ValuesIn(Files()),
                         [](const auto& info) { return fs::path(info.param).stem().string(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenFile);

TEST(Golden, FilesExist) {
  EXPECT_FALSE(Files().empty())
      << "no golden files; set LINNET_GOLDEN to their folder, or run from "
         "the top of the source tree";
}

}  // namespace
}  // namespace linnet
