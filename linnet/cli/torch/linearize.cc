// linnet linearize: gives a trained model another kind of attention. Each new attention first
// learns the outputs of the one that it replaces; then the whole model is trained briefly.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "linnet/cli/torch/config_flags.h"
#include "linnet/cli/torch/torch_verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/checkpoint.h"
#include "linnet/program/program.h"
#include "linnet/program/signals.h"
#include "linnet/train/linearize.h"
#include "linnet/train/metrics.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using train::Metrics;
using train::TrainConfig;

struct LinearizeCommand {
  CLI::App* app = nullptr;
  std::string run, kind;
  train::MatchOptions match;
  ConfigFlags flags;
};

// Whether linearize has a flag for the setting. It has none for settings that the model determines
// or that linearize chooses (kKept), and none for settings of single tasks.
bool IsChosen(const std::string& name, const std::string& tasks) {
  static const char* const kKept[] = {
      "attention",  "layers",    "heads",      "d_model",    "d_ff",          "norm",
      "norm_first", "query_dim", "value_dim",  "init",       "convolution",   "feed_forward",
      "device",     "epochs",    "activation", "cuda_graph", "embedding_norm"};
  return tasks.empty() &&
         std::none_of(std::begin(kKept), std::end(kKept), [&](const char* k) { return name == k; });
}

// Sets the defaults of the final training, which is shorter and has a lower learning rate than
// training from random weights.
void SetDefaults(TrainConfig& config) {
  config.steps = 500;
  config.lr /= 3;
  config.lr_warmup = 0, config.lr_drop_at = 0, config.lr_patience = 0;
  config.lr_decay = 250, config.lr_decay_form = "cosine";
  config.validate_every = 0;
  config.device = "cpu", config.cuda_graph = false;
}

const train::TaskInfo& TaskOf(const std::string& config, const std::string& path) {
  const ordered_json object = ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  const bool named = object.is_object() && object.contains("task") && object["task"].is_string();
  const std::string name = named ? object["task"].get<std::string>() : "";
  for (const train::TaskInfo* task : train::Tasks()) {
    if (task->name == name) return *task;
  }
  throw InputError(path, ": its 'task' is not a task of 'linnet train'");
}

ordered_json ToJson(const Metrics& metrics) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : metrics) object[name] = value;
  return object;
}

// Writes OUT/linearize.json: the validation metrics of the given model and of the new model after
// each of the three steps (copy, match, train), and the error of each layer's attention before and
// after matching.
void WriteRecord(const LinearizeCommand& command, const TrainConfig& config,
                 const train::MatchResult& match, const Metrics& trained) {
  ordered_json layers = ordered_json::array();
  for (size_t i = 0; i < match.layers.size(); ++i) {
    layers.push_back({{"layer", match.layers[i]},
                      {"error_copied", std::sqrt(match.copied_losses[i])},
                      {"error_matched", std::sqrt(match.matched_losses[i])}});
  }
  ordered_json record = {{"model", ModelName(command.run)},
                         {"attention", config.attention},
                         {"match_steps", command.match.steps},
                         {"match_seconds", match.seconds},
                         {"steps", config.steps},
                         {"given", ToJson(match.given)},
                         {"copied", ToJson(match.copied)},
                         {"matched", ToJson(match.matched)},
                         {"layers", layers}};
  if (!trained.empty()) record["trained"] = ToJson(trained);
  WriteFileAtomically(config.out + "/linearize.json", record.dump(2) + "\n");
}

void PrintReport(const train::MatchResult& match, const Metrics& trained) {
  const auto line = [](const char* what, const Metrics& metrics) {
    std::cout << what << train::Show(metrics) << "\n";
  };
  line("given:               ", match.given);
  line("weights copied:      ", match.copied);
  line("attention matched:   ", match.matched);
  if (!trained.empty()) line("trained:             ", trained);
  std::cout << "error of the attention's output, after copying and after matching:\n";
  for (size_t i = 0; i < match.layers.size(); ++i) {
    std::printf("  layer %-3d %6.1f%% %6.1f%%\n", match.layers[i],
                100 * std::sqrt(match.copied_losses[i]), 100 * std::sqrt(match.matched_losses[i]));
  }
}

int Linearize(const LinearizeCommand& command) {
  const std::string config_path = command.run + "/config.json";
  if (!fs::is_directory(command.run)) {
    throw InputError(command.run, ": not the folder of a training; 'linnet train' writes one");
  }
  const std::string text = train::ReadRunConfig(command.run);
  const train::TaskInfo& task = TaskOf(text, config_path);
  TrainConfig config;
  config.task = task.name;
  ApplyJson(text, config_path, config);
  config.attention = command.kind;
  DropUnusedOptions(config);
  config.out.clear(), config.init.clear();
  SetDefaults(config);
  command.flags.Apply(*command.app, config);
  if (config.steps > 0 && command.app->get_option("--lr-decay")->count() == 0) {
    config.lr_decay = config.steps / 2;
  }

  cli::StopAtSignals();
  std::signal(SIGPIPE, SIG_IGN);
  ProgressLine progress(std::cerr, isatty(STDERR_FILENO) == 1);
  const train::TrainHooks hooks = {.stop = cli::StopAsked, .progress = &progress};
  train::MatchOptions match = command.match;
  match.model = command.run + "/model.safetensors";
  TrainConfig matching = config;
  // The number of steps does not matter here, but 0 would mean a number of epochs.
  if (matching.steps == 0) matching.steps = 1;
  const train::MatchResult matched = MatchAttention(task, matching, match, hooks);
  if (matched.interrupted) {
    progress.Finish("stopped while matching; nothing was written");
    return 130;
  }
  WriteRecord(command, config, matched, {});
  progress.Finish("wrote " + matched.path);
  Metrics trained;
  if (config.steps > 0) {
    config.init = matched.path;
    const train::TrainResult result = Train(task, config, /*resume=*/false, hooks);
    if (result.interrupted) {
      progress.Finish(StrCat("stopped at step ", result.step, " of ", result.steps,
                             "; continue with: linnet train ", task.name, " --resume --out ",
                             config.out));
      return 130;
    }
    trained = result.validation;
    WriteRecord(command, config, matched, trained);
    progress.Finish("wrote " + result.model_path);
  }
  PrintReport(matched, trained);
  return 0;
}

}  // namespace

void AddLinearize(CLI::App& root, int& exit_code) {
  static LinearizeCommand command;
  CLI::App* app = command.app =
      root.add_subcommand("linearize", "Give a trained model another kind of attention");
  app->add_option("FOLDER", command.run, "Folder of the run of 'linnet train' that made the model")
      ->type_name("")
      ->required();
  app->add_option("--to", command.kind,
                  "Attention of the new model: a kind, or a pattern that its layers repeat "
                  "(gated-delta-net:3,full: three layers of gated-delta-net, then one of softmax)")
      ->type_name("KIND")
      ->required();
  cli::AddOption(app, "--match-steps", command.match.steps, "N",
                 "Number of updates in step 2 (see below)", CLI::Range(1.0, 1e9).description(""));
  cli::AddOption(app, "--match-lr", command.match.lr, "RATE", "Learning rate in step 2 (see below)",
                 CLI::PositiveNumber.description(""));
  command.flags.Add(*app, nullptr, IsChosen);
  for (const auto& [name, help] :
       {std::pair{"--steps", "number of updates in step 3; 0: none (default: 500)"},
        {"--lr", "learning rate in step 3 (default: a third of the run's learning rate)"},
        {"--lr-decay",
         "lower the rate to zero over the last N updates; 0: off (default: half of --steps)"},
        {"--lr-decay-form", "form of --lr-decay: linear or cosine (default: cosine)"},
        {"--validate-every", "updates between validations; 0: only at the end (default: 0)"}}) {
    app->get_option(name)->description(help);
  }
  app->footer(
      R"(1. Copy: the weights that both models have are copied from the given model to the new one.
2. Match: each new attention learns the outputs of the attention that it replaces, in all layers at
   the same time. The result is OUT/matched.safetensors.
3. Train: the whole network is trained. The result is OUT/model.safetensors.
All other settings come from FOLDER/config.json, except that the defaults of --lr-warmup,
--lr-drop-at and --lr-patience are 0. Runs on the CPU. The command prints the validation metrics of
the given model and of the result of each step, and the error of each layer's attention. It writes
the same numbers to OUT/linearize.json.

Example:
  linnet linearize runs/softmax --to gated-delta-net --out runs/gated
)");
  app->callback([&] { exit_code = WithTorchErrors([] { return Linearize(command); }); });
}

}  // namespace linnet
