#include "linnet/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/nn/optimizer.h"
#include "linnet/rng.h"
#include "linnet/train/gradient_sums.h"
#include "linnet/train/laggard.h"
#include "linnet/train/metrics.h"
#include "linnet/train/run_folder.h"
#include "linnet/train/run_report.h"
#include "linnet/train/run_state.h"
#include "linnet/train/state_relay.h"
#include "linnet/train/update_graph.h"
#include "linnet/train/weight_averages.h"
#include "linnet/version.h"

namespace linnet::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

torch::Device DeviceNamed(const std::string& name, const std::string& precision) {
  if (name == "cpu") return torch::kCPU;
  if (!torch::cuda::is_available()) {
    throw InputError(
        "--device cuda: this libtorch finds no CUDA device; see docs/gpu.md on how to ",
        "build with a libtorch for CUDA");
  }
  // With --precision bf16, operands of matrix products are already in bf16, so TF32 loses nothing.
  // With fp32, TF32 is off, in convolutions and LSTMs (cuDNN) too.
  at::globalContext().setAllowTF32CuBLAS(precision == "bf16");
  at::globalContext().setAllowTF32CuDNN(precision == "bf16");
  return torch::kCUDA;
}

class Run {
 public:
  Run(const TaskInfo& info, const TrainConfig& config, bool resume, const TrainHooks& hooks)
      : config_(config),
        hooks_(hooks),
        processes_(hooks.processes != nullptr ? *hooks.processes : kAlone),
        folder_(config.out, resume) {
    if (config_.threads == 0) {
      config_.threads = std::max(1, ThreadPool::AvailableProcessors() / processes_.local_size());
    }
    at::set_num_threads(config_.threads);
    torch::manual_seed(config_.seed);
    task_ = info.make(config_);
    device_ = DeviceNamed(config_.device, config_.precision);
    CheckProcesses(config_, processes_.size(), hooks_.sequence_parallel);
    if (hooks_.sequence_parallel > 1) {
      relay_ = std::make_unique<StateRelay>(processes_, hooks_.sequence_parallel);
    }
    const ModelSpec spec = task_->Spec();
    ValidateSpec(spec);
    if (relay_ != nullptr) CheckPieces(spec);
    model_ = nn::MakeNetwork(spec, {.dropout = config_.dropout,
                                    .precision = config_.precision,
                                    .checkpoint_layers = config_.checkpoint_layers,
                                    .device = device_});
    if (config_.cuda_graph) StartGraph();
    if (!config_.init.empty() && !resume) Begin(nn::CopyWeights(config_.init, *model_));
    task_->Prepare(*model_);
    parameters_ = model_->parameters();
    if (processes_.size() > 1) sums_ = std::make_unique<GradientSums>(processes_, parameters_);
    averages_ = WeightAverages(config_.ema, parameters_);
    const nn::OptimizerOptions optimizer = {
        .name = config_.optimizer,
        .beta2 = config_.beta2,
        .weight_decay = config_.weight_decay,
        .clip = config_.clip,
        .precision = ops::PrecisionNamed(config_.precision, device_)};
    optimizer_ =
        std::make_unique<nn::Optimizer>(optimizer, parameters_, nn::HiddenMatrices(*model_));
    steps_ = config_.steps == 0 ? StepsOfEpochs() : config_.steps;
    if (processes_.first()) folder_.Open();
    if (resume) {
      progress_ = LoadRunState(folder_.state_path(), folder_.model_path(), task_->StepsPerEpoch(),
                               Tensors());
      saved_step_ = resumed_step_ = progress_.step;
    }
    done_ = progress_.step >= steps_ && folder_.ModelStep() == progress_.step;
    CompareProcesses(resume);  // waits until all have read the folder; the first then changes it
    if (!processes_.first()) return;
    folder_.RemoveLeftovers();
    // A resumed run keeps the old config.json until it has saved a checkpoint with the new
    // settings, because these may make the run fail.
    if (!resume) WriteConfig();
  }

  TrainResult Train() {
    if (processes_.first()) log_.emplace(folder_.metrics_path(), progress_.step);
    TrainResult result;
    result.steps = steps_;
    result.model_path = folder_.model_path();
    if (done_) {
      result.step = progress_.step;
      result.nothing_to_do = true;
      return result;
    }
    const double began = Working() - progress_.seconds;
    report_.emplace(hooks_.progress, progress_, steps_, task_->StepsPerEpoch(), Working());
    Announce();
    // If the process was killed between writing its final state and its final model, the folder has
    // an older model or none.
    if (progress_.step >= steps_) SaveModel();
    if (progress_.step == 0 && !config_.init.empty()) {
      Aside([&] { result.validation = ValidateAndLog(); });  // validates initial weights
    }
    while (progress_.step < steps_) {
      const double rate = progress_.patience.scale * LearningRate(config_, progress_.step, steps_);
      const StepLoss loss = graph_ ? GraphUpdate(rate) : Update(rate);
      CountUpdate();
      averages_.Update(progress_.step);
      progress_.seconds = Working() - began;
      mean_.Add(loss.metrics);
      report_->Count(loss.tokens);
      const bool last = progress_.step == steps_;
      if (Every(config_.log_every) || last) LogUpdates(rate);
      if (report_->EstimateDue()) CheckUpdates();  // waits for a GPU
      report_->Show(loss, laggard_.Remark(), Working());
      if ((config_.validate_every > 0 && Every(config_.validate_every)) || last) {
        Aside([&] { result.validation = ValidateAndLog(); });
      }
      const bool alone = processes_.size() == 1;
      const bool stop = alone ? StopAsked() : stop_, due = alone ? SaveDue() : due_;
      if (Every(config_.checkpoint_every) || due || last || stop) Aside([&] { Save(); });
      if (stop && !last) {
        result.interrupted = true;
        break;
      }
    }
    result.step = progress_.step;
    return result;
  }

 private:
  bool Every(int64_t updates) const { return progress_.step % updates == 0; }
  bool StopAsked() const { return hooks_.stop && hooks_.stop(); }
  // Whether the last checkpoint, or else the start, is longer ago than --checkpoint-minutes.
  bool SaveDue() const {
    const double most = 60 * config_.checkpoint_minutes;
    return most > 0 && Now() - saved_at_ > most;
  }
  void Log(const ordered_json& record) {
    if (log_) log_->Write(record);
  }

  // The settings that all processes must share: all but those that may differ between machines.
  json SharedSettings() const {
    json config = json::parse(ToJson(config_));
    for (const char* local : {"out", "data", "dictionary", "validation"}) config.erase(local);
    // The rounding of muon's matrix products depends on the threads.
    if (config_.optimizer != "muon") config.erase("threads");
    return config;
  }

  // Waits for all processes, and throws if they would not make the same updates.
  void CompareProcesses(bool resume) const {
    if (processes_.size() == 1) return;
    int64_t size = 0;
    for (const torch::Tensor& p : parameters_) size += p.numel();
    const size_t settings = std::hash<std::string>()(SharedSettings().dump());
    const torch::Tensor mine =
        torch::tensor({static_cast<int64_t>(settings), steps_, progress_.step, int64_t{resume},
                       size, int64_t{done_}, int64_t{hooks_.sequence_parallel}},
                      torch::kInt64);
    const torch::Tensor first = mine.clone();
    processes_.Broadcast({first});
    const torch::Tensor differing = torch::tensor({mine.equal(first) ? 0.0 : 1.0});
    processes_.Sum({differing});
    if (differing.item<float>() > 0) {
      throw InputError("the processes have different settings, or different runs in ",
                       folder_.path(), "; start all of them with the same command");
    }
  }

  int64_t StepsOfEpochs() const {
    const double steps = std::round(config_.epochs * static_cast<double>(task_->StepsPerEpoch()));
    if (!(steps >= 1 && steps <= static_cast<double>(kMaxSteps))) {
      throw InputError("--epochs ", config_.epochs, " gives ", steps,
                       " updates; choose a number that gives 1 to ", kMaxSteps);
    }
    return static_cast<int64_t>(steps);
  }

  void CountUpdate() {
    ++progress_.step;
    if (task_->StepsPerEpoch() > 0) {
      progress_.epochs += 1.0 / static_cast<double>(task_->StepsPerEpoch());
    }
  }

  // Describes the run on the terminal.
  void Announce() const {
    if (!hooks_.progress) return;
    hooks_.progress->Finish(Summary());
    if (!begin_.empty()) hooks_.progress->Finish(begin_);
    for (const std::string& remark : task_->Remarks()) hooks_.progress->Finish(remark);
  }

  // Logs the mean metrics of the updates since the last record.
  void LogUpdates(double rate) {
    CheckUpdates();
    const Metrics metrics = mean_.Take();
    if (!metrics.empty() && !std::isfinite(metrics[0].second)) {
      NotANumber("the loss", "by", progress_.step);
    }
    ordered_json record = {{"step", progress_.step}, {"seconds", progress_.seconds}, {"lr", rate}};
    for (const auto& [name, value] : metrics) record[name] = value;
    record["tokens_per_second"] = report_->TakeRate(Working());
    record["peak_memory"] = PeakMemory();
    Log(record);
    report_->SetMetrics(metrics);
  }

  void WriteConfig() const { WriteFileAtomically(folder_.config_path(), ToJson(config_)); }

  void StartGraph() {
    if (device_.is_cpu() || config_.accumulate > 1 || task_->BatchTensors(0).empty()) {
      throw InputError(
          "--cuda-graph needs --device cuda, --accumulate 1, and a task whose batches "
          "all have the same shape: images, copy, recall or text");
    }
    graph_.emplace();
  }

  // Sets begin_, the line that describes the weights of --init. `kept` names the buffers that were
  // not copied from that file (CopyWeights()).
  void Begin(const std::vector<std::string>& kept) {
    begin_ = "initial weights: " + config_.init;
    const auto any = [&](const char* end) {
      return std::any_of(kept.begin(), kept.end(),
                         [&](const std::string& name) { return name.ends_with(end); });
    };
    if (any(".omega")) begin_ += "; random features are drawn anew";
    if (any(".pe")) begin_ += "; the position table is not copied";
  }

  // A clock, in seconds, that stops during Aside(), which runs validations and checkpoints.
  double Working() const { return Now() - aside_; }
  template <typename Body>
  void Aside(Body body) {
    const double began = Now();
    body();
    aside_ += Now() - began;
  }

  [[noreturn]] void NotANumber(const std::string& what, const char* at, int64_t step) const {
    std::string says = StrCat(what, " is NaN or infinite ", at, " step ", step, "; ");
    if (saved_step_ < 0) {
      says += "there is no checkpoint yet";
    } else if (saved_step_ == resumed_step_) {  // nothing shows that it is good
      says += StrCat("the run was resumed from step ", saved_step_, " in ", folder_.path(),
                     ", and has not saved a checkpoint since");
    } else {
      says += StrCat("the checkpoint of step ", saved_step_, " in ", folder_.path(), " is intact");
    }
    throw RuntimeError(says, "; try a lower --lr");
  }

  // Throws InputError unless the task and the model can be computed in pieces whose states have a
  // constant size.
  void CheckPieces(const ModelSpec& spec) const {
    if (!task_->TakesPieces() || spec.encoder_decoder()) {
      throw InputError("--sequence-parallel does not support the task ", config_.task,
                       spec.encoder_decoder() ? " with an encoder" : "");
    }
    for (const MixerSpec& mixer : spec.stack.pattern) {
      const MixerInfo info = FindMixer(mixer);
      if (!info.recurrent || !info.constant_state || info.windows) {
        throw InputError("--sequence-parallel needs attention with a state of a constant size; '",
                         mixer.kind, "' has none");
      }
    }
  }

  // Part i of this process's `parts` parts of a batch. The processes of a sequence have the same
  // parts, and different pieces.
  Part PartOf(int i, int parts) {
    const int pieces = hooks_.sequence_parallel, group = processes_.rank() / pieces;
    return {group * parts + i, processes_.size() / pieces * parts, processes_.rank() % pieces,
            pieces, relay_.get()};
  }

  // Computes the losses of this process's parts of the next batch and, if `backward`, their
  // gradients. Returns the sums of the metrics and tokens over all parts and processes;
  // StepLoss::value stays empty. Throws RuntimeError if a loss is not finite; the message names the
  // time by `at` and `step`, as in "after step 10". If `backward` is true, a loss on a GPU is not
  // checked, because that would wait for the GPU.
  StepLoss BatchLoss(bool backward, const char* at, int64_t step) {
    const double began = Now();
    StepLoss total;
    const int parts = config_.accumulate;
    bool finite = true;
    for (int i = 0; i < parts; ++i) {
      const StepLoss loss = task_->Loss(*model_, progress_.step, PartOf(i, parts));
      if (device_.is_cpu() || !backward) finite &= std::isfinite(loss.value.item<double>());
      // All processes make the same calls, whatever their losses are.
      if (!finite && processes_.size() == 1) break;
      const torch::Tensor value = relay_ != nullptr ? relay_->Tie(loss.value) : loss.value;
      // A layer that is computed again may compute a parameter's gradient in several parts.
      if (backward && sums_ != nullptr && i + 1 == parts && !config_.checkpoint_layers) {
        sums_->Begin();
      }
      if (backward) value.backward();
      total.tokens += loss.tokens;
      Add(loss.metrics, total.metrics);
    }
    if (!SumOverProcesses(finite, Now() - began, total)) NotANumber("the loss", at, step);
    return total;
  }

  // Adds up metrics and tokens over all processes. Sets stop_ if one of them has been asked to
  // stop, and due_ if the first finds that a checkpoint is due. `seconds`: how long this process
  // has computed. Returns whether all losses were finite.
  bool SumOverProcesses(bool finite, double seconds, StepLoss& total) {
    if (processes_.size() == 1) return finite;
    constexpr int64_t kFlags = 4;
    const torch::Tensor known = torch::zeros({kFlags + processes_.size()}, torch::kFloat64);
    auto* const facts = known.data_ptr<double>();
    facts[0] = finite ? 0.0 : 1.0, facts[1] = StopAsked() ? 1.0 : 0.0;
    facts[2] = static_cast<double>(total.tokens);
    facts[3] = processes_.first() && SaveDue() ? 1.0 : 0.0;
    facts[kFlags + processes_.rank()] = seconds;
    processes_.Sum({known});
    // Processes that share sequences wait for each other while they compute.
    if (relay_ == nullptr) laggard_.Add({facts + kFlags, facts + known.numel()});
    if (known[0].item<double>() > 0) return false;
    stop_ = known[1].item<double>() > 0;
    due_ = known[3].item<double>() > 0;
    total.tokens = std::llround(known[2].item<double>());
    std::vector<torch::Tensor> values;
    for (auto& [name, value] : total.metrics) values.push_back(value);
    processes_.Sum(values);
    return true;
  }

  // Seeds dropout in a process other than the first, by its rank and the step. A checkpoint stores
  // only the first one's random state, so a resumed run must be able to derive the others' seeds.
  void SeedDropout() const {
    const auto rank = static_cast<uint64_t>(processes_.rank());
    torch::manual_seed(Philox(config_.seed, rank, static_cast<uint64_t>(progress_.step)).Next64());
  }

  // Throws if a gradient was not finite. On a GPU, where updates are asynchronous, gradients are
  // checked only here; an update with a bad gradient has changed nothing.
  void CheckUpdates() {
    try {
      optimizer_->Check();
    } catch (const Error&) {
      NotANumber("a gradient", "by", progress_.step);
    }
  }

  StepLoss Update(double rate) {
    if (!processes_.first()) SeedDropout();
    const StepLoss loss = BatchLoss(/*backward=*/true, "at", progress_.step + 1);
    if (sums_ != nullptr) sums_->Finish();
    try {
      optimizer_->Step(rate);
    } catch (const Error&) {
      NotANumber("a gradient", "at", progress_.step + 1);
    }
    return loss;
  }

  StepLoss GraphUpdate(double rate) {
    const std::vector<torch::Tensor> batch = task_->BatchTensors(progress_.step);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (inputs_.size() == i) {
        inputs_.push_back(torch::empty(batch[i].sizes(), batch[i].options().device(device_)));
      }
      inputs_[i].copy_(batch[i].pin_memory(), /*non_blocking=*/true);
    }
    const auto work = [&] {
      recorded_ = task_->LossOf(*model_, inputs_);
      recorded_.value.backward();
      recorded_.value = recorded_.value.detach();
      optimizer_->Finish();
    };
    if (optimizer_->Begin(rate)) {
      graph_->Run(work);
    } else {
      work();
    }
    return recorded_;
  }

  // Describes the run in one line.
  std::string Summary() const {
    const ModelSpec& spec = model_->spec();
    std::string text = StrCat(
        "training ", FormatCount(static_cast<double>(ParameterCount(spec))), " parameters (",
        spec.network == NetworkKind::kTransformer ? spec.stack.mixer().kind : NameOf(spec.network),
        ", ", spec.stack.layers(), " x ", spec.stack.d_model, ", ", config_.precision, ", ",
        processes_.size() > 1 ? StrCat(processes_.size(), " processes of ") : "", config_.threads,
        config_.threads == 1 ? " thread" : " threads", ") on ", task_->Data(), "; ", steps_,
        " updates of ", config_.batch);
    if (task_->StepsPerEpoch() > 0) {
      char epochs[32];
      const double rest = static_cast<double>(steps_ - progress_.step);
      std::snprintf(epochs, sizeof(epochs), ", %.2f epochs",
                    progress_.epochs + rest / static_cast<double>(task_->StepsPerEpoch()));
      text += StrCat(epochs, " of ",
                     FormatCount(static_cast<double>(task_->StepsPerEpoch()) *
                                 static_cast<double>(task_->TokensPerStep())),
                     " tokens");
    }
    return progress_.step > 0 ? StrCat(text, "; from step ", progress_.step) : text;
  }

  // Lowers the rate after --lr-patience validations without an improvement. Returns whether it did.
  bool LosePatience(double value) {
    Patience& patience = progress_.patience;
    if (config_.lr_patience == 0) return false;
    if (value < patience.best) {
      patience.best = value, patience.worse = 0;
      return false;
    }
    if (++patience.worse < config_.lr_patience) return false;
    patience.worse = 0;
    patience.scale *= config_.lr_patience_factor;
    return true;
  }

  Metrics ValidateAndLog() {
    CheckUpdates();
    const Metrics metrics = Validate();
    for (const auto& [name, value] : metrics) {
      if (!std::isfinite(value)) NotANumber("the validation's " + name, "after", progress_.step);
    }
    ordered_json record = {{"step", progress_.step}, {"seconds", progress_.seconds}};
    for (const auto& [name, value] : metrics) record["validation_" + name] = value;
    Log(record);
    const bool slower = LosePatience(metrics[0].second);
    report_->ShowValidation(
        metrics,
        slower ? StrCat("; the learning rate is multiplied by ", config_.lr_patience_factor) : "");
    return metrics;
  }

  // Each process validates on a part of the validation set.
  Metrics Validate() {
    torch::NoGradGuard no_grad;
    averages_.Swap();
    model_->eval();
    std::vector<double> sums = task_->ValidationSums(*model_, PartOf(0, 1));
    if (relay_ != nullptr) relay_->Forget();
    model_->train();
    averages_.Swap();
    const torch::Tensor total = torch::tensor(sums, torch::kFloat64);
    processes_.Sum({total});
    sums.assign(total.data_ptr<double>(), total.data_ptr<double>() + total.numel());
    return task_->MetricsOf(sums);
  }

  // Throws if the loss of the next batch is not finite: the last update has then ruined the
  // weights, which must not replace a good checkpoint.
  void CheckWeights() {
    model_->eval();  // no dropout, so the loss draws no random numbers
    BatchLoss(/*backward=*/false, "after", progress_.step);
    model_->train();
  }

  RunTensors Tensors() { return {*model_, *optimizer_, parameters_, averages_.tensors(), device_}; }

  // The end of an error message about a failed save: names the last good checkpoint.
  std::string LastCheckpoint() const {
    if (saved_step_ < 0) return "";
    return StrCat("; the checkpoint of step ", saved_step_,
                  " is intact; --resume continues from it");
  }

  void Save() {
    torch::NoGradGuard no_grad;
    CheckUpdates();
    CheckWeights();
    try {
      if (processes_.first()) SaveRunState(folder_.state_path(), Tensors(), progress_);
      SaveModel();
    } catch (const InputError& error) {
      throw InputError(error.what(), LastCheckpoint());
    } catch (const RuntimeError& error) {
      throw RuntimeError(error.what(), LastCheckpoint());
    }
    saved_step_ = progress_.step;
    saved_at_ = Now();
    if (processes_.first()) WriteConfig();
  }

  void SaveModel() {
    averages_.Swap();
    if (!averages_.tensors().empty()) CheckWeights();
    if (processes_.first()) nn::SaveModel(folder_.model_path(), *model_, TrainingRecord());
    averages_.Swap();
  }

  // JSON for the model file: settings, training data, and progress.
  std::string TrainingRecord() const {
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::tm utc;
    std::strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    ordered_json record = {{"data", task_->Data()}, {"steps", progress_.step}};
    if (task_->StepsPerEpoch() > 0) {
      record["epochs"] = progress_.epochs;
    }
    record["seconds"] = std::llround(progress_.seconds);
    record["date"] = date;
    record["linnet"] = LINNET_VERSION;
    json config = SharedSettings();
    // Keeps only the name of the initial model, not its folder.
    if (config_.init.empty()) {
      config.erase("init");
    } else {
      config["init"] = fs::path(config_.init).filename().string();
    }
    record["config"] = config;
    return record.dump();
  }

  inline static const Processes kAlone;

  TrainConfig config_;
  const TrainHooks& hooks_;
  const Processes& processes_;
  std::unique_ptr<StateRelay> relay_;  // null unless processes share sequences
  Laggard laggard_{processes_.size()};
  std::unique_ptr<GradientSums> sums_;  // null if there is one process
  RunFolder folder_;
  std::optional<MetricsLog> log_;  // in the first process
  std::unique_ptr<Task> task_;
  torch::Device device_ = torch::kCPU;
  std::shared_ptr<nn::Network> model_;
  std::vector<torch::Tensor> parameters_;
  WeightAverages averages_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  std::optional<UpdateGraph> graph_;   // with --cuda-graph
  std::vector<torch::Tensor> inputs_;  // the batch that graph_ reads
  StepLoss recorded_;                  // the loss that graph_ writes
  RunProgress progress_;
  int64_t steps_ = 0, saved_step_ = -1, resumed_step_ = -1;
  bool done_ = false;  // resumed, and nothing is left to do
  bool stop_ = false;  // one of several processes has been asked to stop
  bool due_ = false;   // the first of several processes finds a checkpoint due
  double saved_at_ = Now();
  double aside_ = 0;                 // seconds in Aside()
  std::optional<RunReport> report_;  // in Train()
  MeanMetrics mean_;                 // since the last record
  std::string begin_;                // see Begin()
};

}  // namespace

TrainResult Train(const TaskInfo& task, const TrainConfig& config, bool resume,
                  const TrainHooks& hooks) {
  Validate(config);
  return Run(task, config, resume, hooks).Train();
}

void CheckProcesses(const TrainConfig& config, int count, int sequence_parallel) {
  if (sequence_parallel > 1 && config.checkpoint_layers) {
    throw InputError("--checkpoint-layers does not work with --sequence-parallel");
  }
  if (count % sequence_parallel != 0) {
    throw InputError("--sequence-parallel ", sequence_parallel, ": the number of processes, ",
                     count, ", is not a multiple of it; give --processes ", sequence_parallel);
  }
  if (count == 1) return;
  if (config.device != "cpu") {
    throw InputError("--device ", config.device,
                     ": training with several processes works only on CPUs");
  }
  const int groups = count / sequence_parallel;
  if (config.batch / groups < config.accumulate) {
    throw InputError("--batch ", config.batch, " is too small for ", groups,
                     sequence_parallel > 1 ? " groups of processes" : " processes",
                     " with --accumulate ", config.accumulate);
  }
  if (sequence_parallel > 1 && config.context < sequence_parallel) {
    throw InputError("--context ", config.context, " is too short for --sequence-parallel ",
                     sequence_parallel);
  }
}

std::string ReadRunConfig(const std::string& folder) {
  return ReadFile((fs::path(folder) / "config.json").string(), 1 << 20);
}

}  // namespace linnet::train
