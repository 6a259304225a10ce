#include "linnet/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/file.h>
#include <torch/cuda.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "linnet/base/error.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/base/version.h"
#include "linnet/io/file.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/nn/optimizer.h"
#include "linnet/train/update_graph.h"

namespace linnet::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ordered_json Record(const Metrics& metrics) {
  ordered_json record = ordered_json::object();
  for (const auto& [name, value] : metrics) record[name] = value;
  return record;
}

std::string Show(const std::string& name, double value) {
  char text[64];
  if (name == "accuracy") {
    std::snprintf(text, sizeof(text), "%.2f%% right", 100 * value);
  } else if (name == "bits_per_dim") {
    std::snprintf(text, sizeof(text), "%.4f bits/dim", value);
  } else if (name == "bits_per_token") {
    std::snprintf(text, sizeof(text), "%.4f bits/token", value);
  } else if (name == "phone_error_rate") {
    std::snprintf(text, sizeof(text), "%.2f%% of phones wrong", 100 * value);
  } else if (name == "skipped") {
    std::snprintf(text, sizeof(text), "%.2g skipped (no room for their phones)", value);
  } else {
    std::snprintf(text, sizeof(text), "%s %.4f", name.c_str(), value);
  }
  return text;
}

std::string Show(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    if (name == "skipped" && value == 0) continue;
    text += (text.empty() ? "" : "  ") + Show(name, value);
  }
  return text;
}

// Adds `more` to `sums`, in double precision.
void Add(const DeviceMetrics& more, DeviceMetrics& sums) {
  torch::NoGradGuard no_grad;
  if (sums.empty()) {
    for (const auto& [name, value] : more) sums.emplace_back(name, value.to(torch::kFloat64));
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) sums[i].second = sums[i].second + more[i].second;
}

// The means of the metrics of several batches.
class Mean {
 public:
  void Add(const DeviceMetrics& metrics) {
    train::Add(metrics, sums_);
    ++count_;
  }
  Metrics Take() {
    Metrics means = Read(sums_);
    for (auto& [name, sum] : means) sum /= count_;
    sums_.clear();
    count_ = 0;
    return means;
  }

 private:
  DeviceMetrics sums_;
  int count_ = 0;
};

torch::Device DeviceNamed(const std::string& name, const std::string& precision) {
  if (name == "cpu") return torch::kCPU;
  if (!torch::cuda::is_available()) {
    throw InputError("--device cuda: this libtorch finds no CUDA device; docs/gpu.md says how to ",
                     "build with one that does");
  }
  // In bf16 the layers' inputs are already rounded and lose nothing in TF32. fp32 stays exact.
  at::globalContext().setAllowTF32CuBLAS(precision == "bf16");
  return torch::kCUDA;
}

// The state of a device's random generator, for checkpoints.
torch::Tensor RandomState(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void SetRandomState(torch::Device device, const torch::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

class MetricsLog {
 public:
  // Keeps the earlier records of the run up to `step`: later updates will be repeated and logged
  // again.
  MetricsLog(const std::string& path, int64_t step) : path_(path) {
    std::string kept;
    if (std::ifstream old(path); old) {
      for (std::string line; std::getline(old, line);) {
        const json record = json::parse(line, nullptr, false);
        const json at = record.is_object() ? record.value("step", json()) : json();
        if (at.is_number() && at <= step) kept += line + "\n";
      }
    }
    WriteFileAtomically(path, kept);
    out_.open(path, std::ios::app);
  }

  void Write(const ordered_json& record) {
    out_ << record.dump() << '\n' << std::flush;
    if (!out_) throw RuntimeError(path_, ": cannot write; is the disk full?");
  }

 private:
  std::string path_;
  std::ofstream out_;
};

// Locks a folder against a second run for the lifetime of this object.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd_);
      throw InputError(folder, ": another training is at work there; choose another --out");
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

class Run {
 public:
  Run(const TaskInfo& info, const TrainConfig& config, bool resume, const TrainHooks& hooks)
      : config_(config), hooks_(hooks), folder_(config.out) {
    if (config_.threads == 0) config_.threads = ThreadPool::AvailableProcessors();
    std::error_code error;
    const bool exists = fs::exists(StatePath(), error);
    if (resume && !exists) {
      throw InputError(StatePath(), ": not there, so there is no run to resume; start one without ",
                       "--resume");
    }
    if (!resume && exists) {
      throw InputError(folder_.string(),
                       ": holds a run already; continue it with --resume or choose another --out");
    }
    if (!resume && fs::exists(ModelPath(), error)) {
      throw InputError(ModelPath(), ": a model is there already; choose another --out");
    }
    at::set_num_threads(config_.threads);
    torch::manual_seed(config_.seed);
    task_ = info.make(config_);
    device_ = DeviceNamed(config_.device, config_.precision);
    const ModelSpec spec = task_->Spec();
    ValidateSpec(spec);
    model_ = nn::MakeNetwork(spec, {.dropout = config_.dropout,
                                    .precision = config_.precision,
                                    .checkpoint_layers = config_.checkpoint_layers,
                                    .device = device_});
    if (config_.cuda_graph) StartGraph();
    if (!config_.init.empty() && !resume) Begin(nn::CopyWeights(config_.init, *model_));
    task_->Prepare(*model_);
    parameters_ = model_->parameters();
    if (config_.ema > 0) {
      for (const torch::Tensor& p : parameters_) averages_.push_back(p.detach().clone());
    }
    optimizer_ =
        std::make_unique<nn::Optimizer>(nn::OptimizerOptions{.name = config_.optimizer,
                                                             .beta2 = config_.beta2,
                                                             .weight_decay = config_.weight_decay,
                                                             .clip = config_.clip},
                                        parameters_);
    steps_ = config_.steps;
    if (steps_ == 0) {
      const double steps = std::round(config_.epochs * static_cast<double>(task_->StepsPerEpoch()));
      if (!(steps >= 1 && steps <= static_cast<double>(kMaxSteps))) {
        throw InputError("--epochs ", config_.epochs, " makes ", steps,
                         " updates; give a number that makes 1 to ", kMaxSteps);
      }
      steps_ = static_cast<int64_t>(steps);
    }
    fs::create_directories(folder_, error);
    if (error) throw InputError(folder_.string(), ": cannot make this folder: ", error.message());
    lock_.emplace(folder_.string());
    if (resume) Load();
    RemoveLeftovers();
    // A resumed run keeps its old settings until it has a checkpoint with the new ones, which may
    // turn out to be bad.
    if (!resume) WriteConfig();
  }

  TrainResult Train() {
    MetricsLog log((folder_ / "metrics.jsonl").string(), step_);
    TrainResult result;
    result.steps = steps_;
    result.model_path = ModelPath();
    if (step_ >= steps_ && ModelStep() == step_) {
      result.step = step_;
      result.nothing_to_do = true;
      return result;
    }
    const double began = Working() - trained_seconds_;
    double window_began = Working();
    int64_t window_tokens = 0, first_step = step_;
    double tokens_per_second = 0;
    const double loop_began = Working();
    Mean mean;
    if (hooks_.progress) hooks_.progress->Finish(Summary());
    if (hooks_.progress && !begin_.empty()) hooks_.progress->Finish(begin_);
    for (const std::string& remark : task_->Remarks()) {
      if (hooks_.progress) hooks_.progress->Finish(remark);
    }
    // A run killed between writing its last two files still lacks the model file.
    if (step_ >= steps_) SaveModel();
    if (step_ == 0 && !config_.init.empty()) {
      Aside([&] { result.validation = ValidateAndLog(log); });  // validates initial weights
    }
    while (step_ < steps_) {
      const double rate = patience_.scale * LearningRate(config_, step_, steps_);
      const StepLoss loss = graph_ ? GraphUpdate(rate) : Update(rate);
      ++step_;
      if (task_->StepsPerEpoch() > 0) epochs_ += 1.0 / static_cast<double>(task_->StepsPerEpoch());
      UpdateAverages();
      trained_seconds_ = Working() - began;
      mean.Add(loss.metrics);
      window_tokens += loss.tokens;
      const bool last = step_ == steps_;
      if (step_ % config_.log_every == 0 || last) {
        CheckUpdates();
        const Metrics metrics = mean.Take();
        if (!metrics.empty() && !std::isfinite(metrics[0].second)) {
          NotANumber("the loss", "by", step_);
        }
        tokens_per_second = static_cast<double>(window_tokens) / (Working() - window_began);
        window_began = Working();
        window_tokens = 0;
        ordered_json record = {{"step", step_}, {"seconds", trained_seconds_}, {"lr", rate}};
        record.update(Record(metrics));
        record["tokens_per_second"] = tokens_per_second;
        record["peak_memory"] = PeakMemory();
        log.Write(record);
        shown_ = Show(metrics);
      }
      if (hooks_.progress && step_ == first_step + kWarmUp && step_ < steps_) {
        CheckUpdates();
        const double a_step = (Working() - loop_began) / static_cast<double>(kWarmUp);
        hooks_.progress->Finish(StrCat("an update takes ", FormatSeconds(a_step), ": about ",
                                       FormatSeconds(a_step * static_cast<double>(steps_ - step_)),
                                       " to go, validation not counted"));
      }
      if (hooks_.progress && hooks_.progress->Due()) {
        if (shown_.empty()) shown_ = Show(Read(loss.metrics));
        std::string text = StrCat("step ", step_, "/", steps_, Epoch(), "  ", shown_);
        if (tokens_per_second > 0) text += "  " + FormatCount(tokens_per_second) + " tokens/s";
        if (const int64_t made = step_ - first_step; made >= 3) {  // the first updates take longer
          const double a_step = (Working() - loop_began) / static_cast<double>(made);
          text += "  " + FormatSeconds(a_step * static_cast<double>(steps_ - step_)) + " left";
        }
        hooks_.progress->Update(text);
      }
      if ((config_.validate_every > 0 && step_ % config_.validate_every == 0) || last) {
        Aside([&] { result.validation = ValidateAndLog(log); });
      }
      const bool stop = hooks_.stop && hooks_.stop();
      if (step_ % config_.checkpoint_every == 0 || last || stop) Aside([&] { Save(); });
      if (stop && !last) {
        result.interrupted = true;
        break;
      }
    }
    result.step = step_;
    return result;
  }

 private:
  std::string StatePath() const { return (folder_ / "state.safetensors").string(); }
  std::string ModelPath() const { return (folder_ / "model.safetensors").string(); }
  void WriteConfig() const {
    WriteFileAtomically((folder_ / "config.json").string(), ToJson(config_));
  }

  void StartGraph() {
    if (device_.is_cpu() || config_.accumulate > 1 || task_->BatchTensors(0).empty()) {
      throw InputError(
          "--cuda-graph needs --device cuda, --accumulate 1, and a task whose batches "
          "have one shape: images");
    }
    graph_.emplace();
  }

  // Describes the weights that the run begins with; `kept` names those not taken from the model.
  void Begin(const std::vector<std::string>& kept) {
    begin_ = "begins with the weights of " + config_.init;
    const auto any = [&](const char* end) {
      return std::any_of(kept.begin(), kept.end(),
                         [&](const std::string& name) { return name.ends_with(end); });
    };
    if (any(".omega")) begin_ += "; random features are drawn anew";
    if (any(".pe")) begin_ += "; positions are this run's own";
  }

  // Time spent on updates, without validation and other work in Aside().
  double Working() const { return Now() - aside_; }
  template <typename Body>
  void Aside(Body body) {
    const double began = Now();
    body();
    aside_ += Now() - began;
  }

  // The update of the model file, or -1.
  int64_t ModelStep() const {
    std::error_code error;
    if (!fs::exists(ModelPath(), error)) return -1;
    const Checkpoint checkpoint = Checkpoint::Open(ModelPath());
    const json record = json::parse(checkpoint.training(), nullptr, false);
    const json step = record.is_object() ? record.value("steps", json()) : json();
    return step.is_number_integer() ? step.get<int64_t>() : -1;
  }

  [[noreturn]] void NotANumber(const std::string& what, const char* at, int64_t step) const {
    throw RuntimeError(what, " is no longer a number ", at, " step ", step, "; ",
                       saved_step_ >= 0 ? StrCat("the checkpoint of step ", saved_step_, " in ",
                                                 folder_.string(), " is whole")
                                        : "there was no checkpoint yet",
                       "; try a lower --lr");
  }

  // The loss of all parts of update step_'s batch; `at` and `step` are for the error message if it
  // is not finite.
  StepLoss BatchLoss(bool backward, const char* at, int64_t step) {
    StepLoss total;
    for (Part part{0, config_.accumulate}; part.index < part.count; ++part.index) {
      const StepLoss loss = task_->Loss(*model_, step_, part);
      if ((device_.is_cpu() || !backward) && !std::isfinite(loss.value.item<double>())) {
        NotANumber("the loss", at, step);
      }
      if (backward) loss.value.backward();
      total.tokens += loss.tokens;
      Add(loss.metrics, total.metrics);
    }
    return total;
  }

  // On a GPU, where updates run beside the host, their gradients are checked only from time to
  // time. An update with a bad gradient has changed nothing.
  void CheckUpdates() {
    try {
      optimizer_->Check();
    } catch (const Error&) {
      NotANumber("a gradient", "by", step_);
    }
  }

  StepLoss Update(double rate) {
    const StepLoss loss = BatchLoss(/*backward=*/true, "at", step_ + 1);
    try {
      optimizer_->Step(rate);
    } catch (const Error&) {
      NotANumber("a gradient", "at", step_ + 1);
    }
    return loss;
  }

  StepLoss GraphUpdate(double rate) {
    const std::vector<torch::Tensor> batch = task_->BatchTensors(step_);
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

  void UpdateAverages() {
    if (averages_.empty()) return;
    // New averages forget faster, because they begin as random weights.
    const double t = static_cast<double>(step_);
    const double decay = std::min(config_.ema, (1 + t) / (10 + t));
    torch::NoGradGuard no_grad;
#if TORCH_VERSION_MAJOR >= 2
    if (!device_.is_cpu()) return at::_foreach_lerp_(averages_, parameters_, 1 - decay);
#endif
    for (size_t i = 0; i < averages_.size(); ++i) averages_[i].lerp_(parameters_[i], 1 - decay);
  }

  // Swaps the model's weights and their averages.
  void SwapAverages() {
    for (size_t i = 0; i < averages_.size(); ++i) {
      const torch::Tensor weights = parameters_[i].data();
      parameters_[i].set_data(averages_[i]);
      averages_[i] = weights;
    }
  }

  // Removes unfinished files of a killed process.
  void RemoveLeftovers() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const std::string name = entry.path().filename().string();
      for (const char* file :
           {"state.safetensors", "model.safetensors", "config.json", "metrics.jsonl"}) {
        if (name.starts_with(std::string(file) + ".tmp.")) fs::remove(entry.path(), ignored);
      }
    }
  }

  std::string Epoch() const {
    if (task_->StepsPerEpoch() == 0) return "";
    char text[32];
    std::snprintf(text, sizeof(text), " (epoch %.2f)", epochs_);
    return text;
  }

  // Describes the run in one line.
  std::string Summary() const {
    const ModelSpec& spec = model_->spec();
    std::string text = StrCat(
        "training ", FormatCount(static_cast<double>(ParameterCount(spec))), " parameters (",
        spec.network == NetworkKind::kTransformer ? spec.stack.mixer().kind : NameOf(spec.network),
        ", ", spec.stack.layers(), " x ", spec.stack.d_model, ", ", config_.precision, ", ",
        config_.threads, config_.threads == 1 ? " thread" : " threads", ") on ", task_->Data(),
        "; ", steps_, " updates of ", config_.batch);
    if (task_->StepsPerEpoch() > 0) {
      char epochs[32];
      const double rest = static_cast<double>(steps_ - step_);
      std::snprintf(epochs, sizeof(epochs), ", %.2f epochs",
                    epochs_ + rest / static_cast<double>(task_->StepsPerEpoch()));
      text += StrCat(epochs, " of ",
                     FormatCount(static_cast<double>(task_->StepsPerEpoch()) *
                                 static_cast<double>(task_->TokensPerStep())),
                     " tokens");
    }
    return step_ > 0 ? StrCat(text, "; from step ", step_) : text;
  }

  // A remark if the first metric of a validation (less is better) was better before.
  std::string Worse(const std::string& name, double value) {
    if (value <= best_) {
      if (value < best_) best_step_ = step_;
      best_ = value;
      return "";
    }
    return StrCat("; it was better at step ", best_step_, ": ", Show(name, best_));
  }

  // Lowers the rate after --lr-patience validations without an improvement.
  bool LosePatience(double value) {
    if (config_.lr_patience == 0) return false;
    if (value < patience_.best) {
      patience_.best = value, patience_.worse = 0;
      return false;
    }
    if (++patience_.worse < config_.lr_patience) return false;
    patience_.worse = 0;
    patience_.scale *= config_.lr_patience_factor;
    return true;
  }

  Metrics ValidateAndLog(MetricsLog& log) {
    CheckUpdates();
    const Metrics metrics = Validate();
    for (const auto& [name, value] : metrics) {
      if (!std::isfinite(value)) NotANumber("the validation's " + name, "after", step_);
    }
    ordered_json record = {{"step", step_}, {"seconds", trained_seconds_}};
    for (const auto& [name, value] : metrics) record["validation_" + name] = value;
    log.Write(record);
    const bool slower = LosePatience(metrics[0].second);
    if (hooks_.progress) {
      hooks_.progress->Finish(
          StrCat("step ", step_, Epoch(), ": validation ", Show(metrics), " after ",
                 FormatSeconds(trained_seconds_), " of training",
                 Worse(metrics[0].first, metrics[0].second),
                 slower ? StrCat("; the rate is multiplied by ", config_.lr_patience_factor) : ""));
    }
    return metrics;
  }

  Metrics Validate() {
    torch::NoGradGuard no_grad;
    SwapAverages();
    model_->eval();
    Metrics metrics = task_->Validate(*model_);
    model_->train();
    SwapAverages();
    return metrics;
  }

  // Calls visit(name, tensor) for all tensors that an update reads or changes.
  void VisitState(const std::function<void(const std::string&, torch::Tensor)>& visit) {
    for (const auto& item : model_->named_parameters()) visit("model." + item.key(), item.value());
    for (const auto& item : model_->named_buffers()) visit("model." + item.key(), item.value());
    for (size_t i = 0; i < optimizer_->first_moments().size(); ++i) {
      visit("optimizer.first." + std::to_string(i), optimizer_->first_moments()[i]);
      visit("optimizer.second." + std::to_string(i), optimizer_->second_moments()[i]);
    }
    for (size_t i = 0; i < averages_.size(); ++i) {
      visit("average." + std::to_string(i), averages_[i]);
    }
  }

  // Throws if the next loss is not finite. The update before it has ruined the weights and must not
  // replace a good checkpoint.
  void CheckWeights() {
    model_->eval();  // does not change the random state
    BatchLoss(/*backward=*/false, "after", step_);
    model_->train();
  }

  void Save() {
    torch::NoGradGuard no_grad;
    CheckUpdates();
    CheckWeights();
    SafetensorsWriter writer;
    std::vector<torch::Tensor> kept;
    const auto add = [&](const std::string& name, DType dtype, const torch::Tensor& tensor) {
      kept.push_back(tensor.detach().to(torch::kCPU).contiguous());
      writer.Add(name, dtype, tensor.sizes().vec(), kept.back().data_ptr());
    };
    VisitState(
        [&](const std::string& name, torch::Tensor tensor) { add(name, DType::kF32, tensor); });
    add("rng", DType::kU8, RandomState(torch::kCPU));
    if (!device_.is_cpu()) add("rng_device", DType::kU8, RandomState(device_));
    ordered_json progress = {{"step", step_}, {"seconds", trained_seconds_}, {"epochs", epochs_}};
    if (std::isfinite(patience_.best)) {
      progress["patience"] = {patience_.best, patience_.worse, patience_.scale};
    }
    writer.SetMetadata("progress", progress.dump());
    writer.SetMetadata("model", linnet::ToJson(model_->spec()));
    try {
      writer.Write(StatePath());
      SaveModel();
    } catch (const Error& error) {
      if (saved_step_ < 0) throw;
      throw Error(error.kind(), StrCat(error.what(), "; the checkpoint of step ", saved_step_,
                                       " is whole, --resume continues from it"));
    }
    saved_step_ = step_;
    WriteConfig();
  }

  void SaveModel() {
    SwapAverages();
    if (!averages_.empty()) CheckWeights();
    nn::SaveModel(ModelPath(), *model_, TrainingRecord());
    SwapAverages();
  }

  void Load() {
    torch::NoGradGuard no_grad;
    const SafetensorsFile file = SafetensorsFile::Open(StatePath());
    const auto metadata = [&](const char* name) -> const std::string& {
      const auto found = file.metadata().find(name);
      if (found == file.metadata().end()) {
        throw InputError(StatePath(), ": not the state of a run (no '", name, "')");
      }
      return found->second;
    };
    const ModelSpec there = FromJson(metadata("model"), StatePath());
    if (const auto difference = FirstDifference(there, model_->spec())) {
      const bool takes = !nn::NetworkDifference(there, model_->spec());
      throw InputError(StatePath(), ": ", difference->field, " is ", difference->a,
                       " in this run and ", difference->b,
                       " in the settings; a run keeps its model: leave that setting out, or begin "
                       "another run",
                       takes ? " with --init " + ModelPath() : "");
    }
    const json progress = json::parse(metadata("progress"), nullptr, false);
    const json step = progress.is_object() ? progress.value("step", json()) : json();
    const json seconds = progress.is_object() ? progress.value("seconds", json()) : json();
    if (!step.is_number_integer() || step < 0 || step > kMaxSteps || !seconds.is_number() ||
        seconds < 0 || seconds > kMaxSeconds) {
      throw InputError(StatePath(), ": not the state of a run (its 'progress' is malformed)");
    }
    step_ = saved_step_ = step;
    trained_seconds_ = seconds;
    const json epochs = progress.value("epochs", json());
    if (epochs.is_number() && epochs >= 0) {
      epochs_ = epochs;
    } else if (task_->StepsPerEpoch() > 0) {  // older state files have no epochs
      epochs_ = static_cast<double>(step_) / static_cast<double>(task_->StepsPerEpoch());
    }
    const json patience = progress.value("patience", json());
    if (patience.is_array() && patience.size() == 3 && patience[0].is_number() &&
        patience[1].is_number_integer() && patience[2].is_number()) {
      patience_ = {patience[0], patience[1], patience[2]};
    }
    const bool has_averages = file.Find("average.0") != nullptr;
    VisitState([&](const std::string& name, torch::Tensor tensor) {
      if (!has_averages && name.starts_with("average.")) return;
      const linnet::Tensor& stored = file.Get(name);
      if (stored.shape != tensor.sizes().vec()) {
        throw InputError(StatePath(), ": '", name, "' is ", FormatShape(stored.shape), ", not ",
                         FormatShape(tensor.sizes().vec()));
      }
      tensor.copy_(torch::from_blob(const_cast<float*>(stored.f32().data()), tensor.sizes(),
                                    torch::kFloat32));
      if (!torch::isfinite(tensor).all().item<bool>()) {
        throw InputError(StatePath(), ": '", name, "' holds values that are no numbers; the file ",
                         "is damaged");
      }
    });
    if (!has_averages) {  // averaging begins here
      for (size_t i = 0; i < averages_.size(); ++i) averages_[i].copy_(parameters_[i]);
    }
    optimizer_->set_steps(step_);
    LoadRandomState(file, "rng", torch::kCPU);
    // A run that was on the CPU so far has no such state.
    if (!device_.is_cpu() && file.Find("rng_device") != nullptr) {
      LoadRandomState(file, "rng_device", device_);
    }
  }

  void LoadRandomState(const SafetensorsFile& file, const char* name, torch::Device device) {
    const std::span<const uint8_t> stored = file.Get(name).values<uint8_t>();
    const int64_t size = static_cast<int64_t>(stored.size());
    if (size != RandomState(device).numel()) {
      throw InputError(StatePath(), ": its random state is none of this libtorch's");
    }
    SetRandomState(
        device,
        torch::from_blob(const_cast<uint8_t*>(stored.data()), {size}, torch::kUInt8).clone());
  }

  // JSON for the model file: settings, training data, and progress.
  std::string TrainingRecord() const {
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::tm utc;
    std::strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    ordered_json record = {{"data", task_->Data()}, {"steps", step_}};
    if (task_->StepsPerEpoch() > 0) {
      record["epochs"] = epochs_;
    }
    record["seconds"] = std::llround(trained_seconds_);
    record["date"] = date;
    record["linnet"] = LINNET_VERSION;
    json config = json::parse(ToJson(config_));
    for (const char* local : {"out", "data", "dictionary", "validation", "threads"}) {
      config.erase(local);
    }
    // Keeps only the name of the initial model, not its folder.
    if (config_.init.empty()) {
      config.erase("init");
    } else {
      config["init"] = fs::path(config_.init).filename().string();
    }
    record["config"] = config;
    return record.dump();
  }

  static constexpr int64_t kMaxSteps = 1'000'000'000'000;
  static constexpr double kMaxSeconds = 1e10;
  static constexpr int64_t kWarmUp = 5;

  TrainConfig config_;
  const TrainHooks& hooks_;
  fs::path folder_;
  std::optional<FolderLock> lock_;
  std::unique_ptr<Task> task_;
  torch::Device device_ = torch::kCPU;
  std::shared_ptr<nn::Network> model_;
  std::vector<torch::Tensor> parameters_, averages_;  // averages_: empty without --ema
  std::unique_ptr<nn::Optimizer> optimizer_;
  std::optional<UpdateGraph> graph_;   // with --cuda-graph
  std::vector<torch::Tensor> inputs_;  // of graph_
  StepLoss recorded_;                  // of graph_
  int64_t step_ = 0, steps_ = 0, saved_step_ = -1;
  double trained_seconds_ = 0, aside_ = 0, epochs_ = 0;
  // The best validation since the start or the last resumption.
  double best_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = 0;
  // The state of --lr-patience; part of state.safetensors.
  struct {
    double best = std::numeric_limits<double>::infinity();
    int worse = 0;  // validations since the best one
    double scale = 1;
  } patience_;
  std::string shown_, begin_;
};

}  // namespace

TrainResult Train(const TaskInfo& task, const TrainConfig& config, bool resume,
                  const TrainHooks& hooks) {
  Validate(config);
  return Run(task, config, resume, hooks).Train();
}

std::string ReadRunConfig(const std::string& folder) {
  return ReadFile((fs::path(folder) / "config.json").string(), 1 << 20);
}

}  // namespace linnet::train
