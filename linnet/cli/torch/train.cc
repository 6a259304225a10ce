// linnet train: one subcommand for each task.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "linnet/cli/torch/config_flags.h"
#include "linnet/cli/torch/torch_verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/program/forks.h"
#include "linnet/program/signals.h"
#include "linnet/train/processes.h"
#include "linnet/train/run_folder.h"
#include "linnet/train/trainer.h"

namespace linnet {
namespace {

using train::TaskInfo;
using train::TrainConfig;

constexpr int kMostProcesses = 4096;

struct TrainCommand {
  const TaskInfo* task = nullptr;
  CLI::App* app = nullptr;
  std::string preset, config_file;
  bool resume = false, auto_resume = false;
  int processes = 1, sequence_parallel = 1;
  ConfigFlags flags;
};

// Returns the task's config with a preset applied.
TrainConfig WithPreset(const TaskInfo& task, const train::Preset& preset) {
  TrainConfig config;
  config.task = task.name;
  ApplyJson(preset.json, StrCat("preset ", preset.name), config);
  return config;
}

void Register(CLI::App& train, TrainCommand& command) {
  const TaskInfo& task = *command.task;
  CLI::App* app = command.app = train.add_subcommand(task.name, task.description);
  std::string presets = "start from a preset (flags and --config override it):";
  for (const train::Preset& preset : task.presets) {
    presets += StrCat("\n  ", preset.name, ": ", preset.description);
  }
  command.preset = task.presets[0].name;
  app->add_option("--preset", command.preset, presets)->capture_default_str();
  app->add_option("--config", command.config_file,
                  "JSON file of settings, e.g. a run's config.json");
  app->add_flag(
      "--resume", command.resume,
      "continue the run in --out with the settings of its config.json; flags override them");
  app->add_flag("--auto-resume", command.auto_resume,
                "continue the run in --out if there is one, otherwise start it; for commands that "
                "torchrun or a job scheduler starts again after a failure")
      ->excludes("--resume");
  app->add_option("--processes", command.processes,
                  "number of processes that train together on this machine, each with a part of "
                  "every batch; for several machines, see docs/distributed.md")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostProcesses).description(""));
  app->add_option(
         "--sequence-parallel", command.sequence_parallel,
         "number of processes that share each sequence, each with a piece of it, for "
         "sequences too long for one machine's memory; text only, with linear attention or "
         "gated recurrences (docs/distributed.md)")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostProcesses).description(""));
  const TrainConfig defaults = WithPreset(task, task.presets[0]);
  command.flags.Add(*app, &defaults, [&task](const std::string&, const std::string& tasks) {
    return train::Takes(tasks, task.name);
  });
  app->footer(
      StrCat("Defaults are those of the preset '", task.presets[0].name,
             "'. Ctrl-C writes a checkpoint and stops; continue with --resume.\n\nExample:\n  ",
             task.example, "\n"));
}

const train::Preset& PresetOf(const TrainCommand& command) {
  std::string known;
  for (const train::Preset& preset : command.task->presets) {
    if (command.preset == preset.name) return preset;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  throw InputError("unknown preset '", command.preset, "'; choose one of ", known);
}

TrainConfig Resolve(const TrainCommand& command) {
  const TaskInfo& task = *command.task;
  TrainConfig config;
  config.task = task.name;
  if (command.resume) {
    const std::string& out = command.flags.values().out;
    if (out.empty()) throw InputError("--resume needs --out, the folder of the run");
    if (command.auto_resume) {
      PresetOf(command);  // throws on an unknown name, which the first start would refuse
    } else if (command.app->get_option("--preset")->count() > 0) {
      throw InputError("--resume uses the settings of the run; leave out --preset");
    }
    ApplyJson(train::ReadRunConfig(out), out + "/config.json", config);
  } else {
    config = WithPreset(task, PresetOf(command));
  }
  const std::string init = config.init;  // of a resumed run: the model that it started from
  const int held_out = config.held_out;
  const std::string optimizer = config.optimizer;
  std::set<std::string> in_file;
  if (!command.config_file.empty()) {
    in_file = ApplyJson(ReadFile(command.config_file, 1 << 20), command.config_file, config);
    // A number of epochs overrides the preset's number of updates.
    if (in_file.contains("epochs") && !in_file.contains("steps")) config.steps = 0;
  }
  command.flags.Apply(*command.app, config);
  // A preset's value that does not suit the chosen settings is replaced, unless it is chosen too.
  const auto chosen = [&](const char* name, const char* flag) {
    const CLI::Option* option = command.app->get_option_no_throw(flag);
    return command.resume || in_file.contains(name) || (option != nullptr && option->count() > 0);
  };
  if (!chosen("convolution", "--convolution") && train::HasShortConvolutions(config)) {
    config.convolution = 0;  // two convolutions in a row learn slowly
  }
  if (!chosen("patch_convolution", "--patch-convolution")) {
    const int most = config.patch > 1 ? config.patch : 0;
    config.patch_convolution = std::min(config.patch_convolution, most);
  }
  if (command.resume && config.init != init) {
    throw InputError("--init ", config.init, ": a resumed run already has weights",
                     init.empty() ? "" : StrCat(" (it was initialized from ", init, ")"),
                     "; leave out --init, or start another run without --resume");
  }
  if (command.resume && config.held_out != held_out) {
    throw InputError("--held-out ", config.held_out, ": this run began with ", held_out,
                     ", so it may have been trained on these images; leave out --held-out, or "
                     "start another run without --resume");
  }
  if (command.resume && config.optimizer != optimizer &&
      (config.optimizer == "muon" || optimizer == "muon")) {
    throw InputError("--optimizer ", config.optimizer, ": this run began with ", optimizer,
                     ", and they average gradients differently; keep ", optimizer,
                     ", or start another run with --init");
  }
  // --epochs on the command line overrides a number of updates from a preset or a file.
  const CLI::Option* epochs = command.app->get_option_no_throw("--epochs");
  if (epochs != nullptr && epochs->count() > 0) {
    if (command.app->get_option("--steps")->count() > 0 && config.steps > 0) {
      throw InputError(
          "--steps and --epochs both set the number of updates; give only one of them");
    }
    config.steps = 0;
  }
  return config;
}

// Trains in this process, alone or together with others (`processes`). Only the first process
// reports.
int TrainTogether(const TrainCommand& command, const TrainConfig& config,
                  const train::Processes& processes) {
  std::signal(SIGPIPE, SIG_IGN);  // training continues if the reader of the progress exits
  ProgressLine progress(std::cerr, isatty(STDERR_FILENO) == 1);
  const train::TrainResult result = Train(*command.task, config, command.resume,
                                          {.stop = cli::StopAsked,
                                           .progress = processes.first() ? &progress : nullptr,
                                           .processes = &processes,
                                           .sequence_parallel = command.sequence_parallel});
  if (!processes.first()) return result.interrupted ? cli::kStopped : 0;
  if (result.interrupted) {
    progress.Finish(StrCat(
        "stopped at step ", result.step, " of ", result.steps, "; continue with: linnet train ",
        command.task->name, " --resume --out ", config.out,
        command.processes > 1 ? StrCat(" --processes ", command.processes) : "",
        command.sequence_parallel > 1 ? StrCat(" --sequence-parallel ", command.sequence_parallel)
                                      : ""));
    return cli::kStopped;
  }
  if (result.nothing_to_do) {
    progress.Finish(StrCat("nothing to do: ", result.model_path, " has been trained for ",
                           result.step, " of ", result.steps, " updates; raise --steps for more"));
    return 0;
  }
  progress.Finish(StrCat("wrote ", result.model_path));
  return 0;
}

// A new folder, which the process that made it removes in the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (std::filesystem::temp_directory_path(error) / "linnet-processes.XXXXXX").string();
    if (error || mkdtemp(path_.data()) == nullptr) {
      throw RuntimeError(path_, ": cannot be created; is TMPDIR a folder with space?");
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const pid_t owner_ = getpid();
};

// Trains in forks of this process, which find each other through a file.
int TrainInForks(const TrainCommand& command, const TrainConfig& config) {
  const TemporaryFolder folder;
  const cli::Forks forks = cli::Fork(command.processes);
  if (forks.parent()) return forks.exit_code;
  // Outside the try block: its connections must stay open while the catch block sleeps.
  train::Processes processes;
  try {
    processes =
        train::Processes::OnThisMachine(forks.rank, command.processes, folder.path() + "/store");
    return TrainTogether(command, config, processes);
  } catch (...) {
    // Most errors occur in all processes, but are to be reported once. So only rank 0 reports at
    // once. When it exits, the parent ends the others, which are still asleep.
    if (forks.rank > 0) std::this_thread::sleep_for(train::Processes::kParentsTime);
    throw;
  }
}

int RunTraining(TrainCommand& command) {
  const std::string& out = command.flags.values().out;
  if (command.auto_resume) command.resume = !out.empty() && train::HoldsRun(out);
  const TrainConfig config = Resolve(command);
  if (command.processes == 1) {
    cli::StopAtSignals();
    return TrainTogether(command, config, train::Processes::FromEnvironment());
  }
  Validate(config);  // before the fork, so that an error is reported once
  CheckProcesses(config, command.processes, command.sequence_parallel);
  if (train::Processes::Launched()) {
    throw InputError("--processes: this process was started by torchrun or a job scheduler ",
                     "(WORLD_SIZE is set); let that start the other processes");
  }
  return TrainInForks(command, config);
}

// The commands of all tasks. They outlive the app, since CLI11 keeps references to them.
std::vector<TrainCommand>& Commands() {
  static std::vector<TrainCommand> commands(train::Tasks().size());
  return commands;
}

}  // namespace

void AddTrain(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("train", "Train a model");
  verb->require_subcommand(1);
  std::string examples = "\nExamples:\n";
  for (const TaskInfo* task : train::Tasks()) examples += StrCat("  ", task->example, "\n");
  verb->footer(examples);
  for (size_t i = 0; i < Commands().size(); ++i) {
    TrainCommand& command = Commands()[i];
    command.task = train::Tasks()[i];
    Register(*verb, command);
    command.app->callback(
        [&] { exit_code = WithTorchErrors([&] { return RunTraining(command); }); });
  }
}

}  // namespace linnet
