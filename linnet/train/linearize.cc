#include "linnet/train/linearize.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <utility>

#include "linnet/base/thread_pool.h"
#include "linnet/error.h"
#include "linnet/model/checkpoint.h"
#include "linnet/nn/optimizer.h"
#include "linnet/train/metrics.h"
#include "linnet/train/run_folder.h"

namespace linnet::train {
namespace {

using torch::Tensor;

constexpr int kEvaluationBatches = 4;

nn::TransformerEncoderImpl& EncoderOf(const nn::Network& network) {
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto* encoder = module->as<nn::TransformerEncoderImpl>()) return *encoder;
  }
  throw RuntimeError("a network without an encoder");
}

bool ByChannel(const MixerSpec& mixer) {
  const auto gated = FindMixer(mixer.kind).gated;
  return gated != nullptr && gated(mixer).by_channel();
}

// Translates a tensor's name in a layer with the mixer `to` to its name in a layer with the mixer
// `from`: for `from` = full, "transformer.layers.3.attention.q_proj.weight" becomes
// "...query_projection.weight".
std::string NameIn(const MixerSpec& from, const MixerSpec& to, const std::string& name) {
  const std::vector<ProjectionInfo> of_from = MixerProjections(from), of_to = MixerProjections(to);
  std::vector<std::pair<std::string, std::string>> names = {
      {FindMixer(to.kind).out, FindMixer(from.kind).out}};
  const bool from_channels = ByChannel(from), to_channels = ByChannel(to);
  if (from_channels == to_channels) {
    for (size_t i = 0; i < 3; ++i) names.emplace_back(of_to[i].name, of_from[i].name);
  } else {  // a recurrence by channel (hgrn) has no queries and keys; its inputs act as values
    names.emplace_back(of_to[to_channels ? 0 : 2].name, of_from[from_channels ? 0 : 2].name);
  }
  for (const auto& [there, here] : names) {
    const std::string part = ".attention." + there + ".";
    const size_t at = name.find(part);
    if (at != name.npos)
      return std::string(name).replace(at, part.size(), ".attention." + here + ".");
  }
  return name;
}

class Matching {
 public:
  Matching(const TaskInfo& info, const TrainConfig& config, const MatchOptions& options,
           const TrainHooks& hooks)
      : config_(config), options_(options), hooks_(hooks) {
    if (config_.device != "cpu") throw InputError("--device ", config_.device, ": choose cpu");
    RunFolder(config_.out, /*resume=*/false);  // refuses a folder with a run or a model
    if (std::filesystem::exists(Path())) {
      throw InputError(Path(), ": this model already exists; choose another --out");
    }
    at::set_num_threads(config_.threads > 0 ? config_.threads : ThreadPool::AvailableProcessors());
    torch::manual_seed(config_.seed);
    given_ = nn::LoadNetwork(options_.model);
    task_ = info.make(config_);
    const ModelSpec spec = task_->Spec();
    CheckSpecs(given_->spec(), spec);
    model_ = nn::MakeNetwork(spec, {.precision = config_.precision});
    Inherit();
    task_->Prepare(*model_);
    given_->eval();
  }

  MatchResult Run() {
    const auto begin = std::chrono::steady_clock::now();
    result_.given = Validated(*given_, "given");
    result_.copied = Validated(*model_, "weights copied");
    result_.copied_losses = Evaluate();
    nn::Optimizer optimizer({.name = "adam", .weight_decay = 0}, Parameters());
    for (int64_t step = 0; step < options_.steps; ++step) {
      const Tensor losses = Losses(step, /*learn=*/true);
      const double mean = losses.mean().item<double>();
      if (!std::isfinite(mean)) {
        throw RuntimeError("the attention's loss is NaN or infinite at step ", step + 1,
                           "; nothing was written; try a lower --match-lr");
      }
      losses.mean().backward();
      const double done = static_cast<double>(step) / static_cast<double>(options_.steps);
      optimizer.Step(options_.lr * (1 + std::cos(std::numbers::pi * done)) / 2);
      if (hooks_.progress && hooks_.progress->Due()) {
        hooks_.progress->Update(StrCat("matching attention: step ", step + 1, "/", options_.steps,
                                       "  ", Show("loss", mean)));
      }
      if (hooks_.stop && hooks_.stop()) {
        result_.interrupted = true;
        return result_;
      }
    }
    result_.matched_losses = Evaluate();
    result_.matched = Validated(*model_, "attention matched");
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    RunFolder folder(config_.out, /*resume=*/false);
    folder.Open();
    result_.path = Path();
    nn::SaveModel(result_.path, *model_, "");
    return result_;
  }

 private:
  std::string Path() const { return config_.out + "/matched.safetensors"; }

  void CheckSpecs(const ModelSpec& given, const ModelSpec& spec) {
    ValidateSpec(spec);
    if (spec.encoder_decoder() || spec.network != NetworkKind::kTransformer) {
      throw InputError(options_.model, ": only models with one stack of transformer layers can be ",
                       "linearized");
    }
    if (const auto difference = nn::NetworkDifference(given, spec)) {
      throw InputError(options_.model,
                       ": its network differs from the new one: ", difference->field, " is ",
                       difference->a, " in this file and ", difference->b,
                       " in the new one; only attention may differ");
    }
    for (int i = 0; i < spec.stack.layers(); ++i) {
      const auto layer = static_cast<size_t>(i);
      if (!SameMixer(given.stack.mixer(layer), spec.stack.mixer(layer)))
        result_.layers.push_back(i);
    }
    if (result_.layers.empty()) {
      throw InputError(options_.model,
                       ": has this attention already: ", Describe(spec.stack.mixer()));
    }
  }

  // Copies the given model's weights to new tensors of the same shape and the same name (NameIn()).
  void Inherit() {
    torch::NoGradGuard no_grad;
    const std::map<std::string, Tensor> from = nn::ModelTensors(*given_);
    for (auto& [name, to] : nn::ModelTensors(*model_)) {
      std::string there = name;
      for (const int i : result_.layers) {
        if (name.find(StrCat(".layers.", i, ".attention.")) == name.npos) continue;
        const auto layer = static_cast<size_t>(i);
        there = NameIn(given_->spec().stack.mixer(layer), model_->spec().stack.mixer(layer), name);
      }
      const auto found = from.find(there);
      if (found != from.end() && found->second.sizes() == to.sizes()) {
        Tensor(to).copy_(found->second);
      }
    }
  }

  nn::TransformerEncoderLayerImpl& Layer(nn::Network& network, int i) const {
    return *EncoderOf(network).layers[static_cast<size_t>(i)]->as<nn::TransformerEncoderLayer>();
  }

  // The trainable parameters: the attention of the layers that change.
  std::vector<Tensor> Parameters() const {
    std::vector<Tensor> all;
    for (const int i : result_.layers) {
      for (const Tensor& p : Layer(*model_, i).attention->parameters()) all.push_back(p);
    }
    return all;
  }

  // The loss of each layer that changes, over the batch of update `step`.
  Tensor Losses(int64_t step, bool learn) {
    std::vector<Tensor> losses;
    Tensor given_carried, carried;  // values for later layers, of each model (rwkv7)
    nn::TransformerEncoderImpl& encoder = EncoderOf(*given_);
    encoder.observer = [&](size_t i, const Tensor& x, const nn::Mask& mask) {
      if (losses.size() == result_.layers.size()) return;
      const int layer = static_cast<int>(i);
      auto &given = Layer(*given_, layer), &own = Layer(*model_, layer);
      if (result_.layers[losses.size()] != layer) {  // untrained; later layers may read its values
        if (given.attention->carries()) given.Attended(x, mask, &given_carried);
        if (own.attention->carries()) own.Attended(x, mask, &carried);
        return;
      }
      const Tensor target = given.Attended(x, mask, &given_carried);
      torch::AutoGradMode grad(learn);
      const Tensor out = own.Attended(x, mask, &carried);
      losses.push_back((out - target).square().sum() / target.square().sum());
    };
    {
      torch::NoGradGuard no_grad;
      task_->Loss(*given_, step, {});
    }
    encoder.observer = nullptr;
    return torch::stack(losses);
  }

  std::vector<double> Evaluate() {
    torch::NoGradGuard no_grad;
    std::vector<double> means(result_.layers.size());
    for (int64_t i = 0; i < kEvaluationBatches; ++i) {
      const Tensor losses = Losses(options_.steps + i, /*learn=*/false);
      for (size_t k = 0; k < means.size(); ++k) {
        means[k] += losses[static_cast<int64_t>(k)].item<double>() / kEvaluationBatches;
      }
    }
    return means;
  }

  Metrics Validated(nn::Network& network, const char* what) const {
    torch::NoGradGuard no_grad;
    network.eval();
    const Metrics metrics = task_->MetricsOf(task_->ValidationSums(network, {}));
    if (&network == model_.get()) network.train();
    if (hooks_.progress) hooks_.progress->Finish(StrCat(what, ": validation ", Show(metrics)));
    return metrics;
  }

  const TrainConfig& config_;
  const MatchOptions& options_;
  const TrainHooks& hooks_;
  std::unique_ptr<Task> task_;
  std::shared_ptr<nn::Network> given_, model_;
  MatchResult result_;
};

}  // namespace

MatchResult MatchAttention(const TaskInfo& task, const TrainConfig& config,
                           const MatchOptions& options, const TrainHooks& hooks) {
  Validate(config);
  return Matching(task, config, options, hooks).Run();
}

}  // namespace linnet::train
