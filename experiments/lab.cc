#include "experiments/lab.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "experiments/record.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kBlock = 5,
              kTimedBlocks = 3;  // updates per block; blocks timed (one more runs first)

void Append(std::vector<std::string>& arguments, const json& value) {
  if (value.is_array()) {
    for (const json& element : value) Append(arguments, element);
  } else {
    arguments.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string DataRoot() {
  const char* root = std::getenv("LINNET_DATA");
  return root != nullptr && *root != '\0' ? root : "data";
}

cli::ChildResult RunLinnet(const std::vector<std::string>& arguments, const std::string& stopped) {
  try {
    const cli::ChildResult child = cli::RunChild("linnet", arguments);
    if (child.exit_code != 130) return child;
  } catch (const cli::Interrupted&) {
  }
  throw cli::Interrupted{stopped};
}

std::string Lab::RunVerb(const std::vector<std::string>& arguments) const {
  const cli::ChildResult child =
      RunLinnet(arguments, experiment_ +
                               ": stopped; no page is written; the same command resumes with "
                               "the results so far");
  // The verb has printed the reason, unless a signal ended it.
  if (child.exit_code == 2) throw InputError(experiment_, ": no page is written");
  if (child.exit_code != 0) {
    const std::string by = child.signal != 0 ? StrCat(" (signal ", child.signal, ")") : "";
    throw RuntimeError(experiment_, ": 'linnet ", arguments[0], "' failed", by,
                       "; no page is written");
  }
  return child.out;
}

json Lab::Run(const std::vector<std::string>& arguments) const {
  return ParseRecord(RunVerb(arguments), StrCat("the output of 'linnet ", arguments[0], "'"));
}

json Lab::Kept(const fs::path& file, const json& question, FunctionRef<json()> measure) const {
  if (Exists(folder_ / file)) {
    std::string fault;  // ignored: measures again if the file is unreadable
    const json kept = ParseJson(ReadFile(folder_ / file, size_t{1} << 26), 9, fault);
    if (kept.is_object() && kept.value("question", json()) == question && kept.contains("answer")) {
      return kept.at("answer");
    }
  }
  const json answer = measure();
  MakeFolder((folder_ / file).parent_path());
  WriteRecord(folder_ / file, {{"question", question}, {"answer", answer}});
  return answer;
}

json Lab::Measure(const std::string& name, const std::vector<std::string>& arguments) const {
  const std::string file = "measured/" + name + ".json";
  bool before = true;
  kept_.push_back(folder_ / file);
  const json answer = Kept(file, {cli::MachineName(), arguments}, [&] {
    before = false;
    return Run(arguments);
  });
  if (before) std::cerr << name << ": measured before\n";
  return answer;
}

void Lab::Finish() const {
  std::error_code ignored;
  for (const fs::path& file : kept_) fs::remove(file, ignored);
  if (kept_.empty()) return;
  // fs::remove() deletes a folder only if it is empty.
  for (const fs::path& path : {folder_ / "measured", folder_, folder_.parent_path()})
    fs::remove(path, ignored);
}

double Lab::SecondsAnUpdate(const std::string& label, const std::string& name,
                            const std::vector<std::string>& flags) const {
  return Kept(StrCat("update-", name, ".json"), flags, [&]() -> json {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      const std::string run = entry.path().filename();
      if (run.starts_with(name) && Exists(entry.path() / "state.safetensors")) {
        throw InputError(entry.path().string(),
                         ": was trained with other settings; choose another --work");
      }
    }
    std::cerr << "timing updates of " << label << "\n";
    return TimeUpdates(label, folder_ / StrCat("update-", name), flags);
  });
}

double Lab::TimeUpdates(const std::string& label, const fs::path& run,
                        const std::vector<std::string>& flags) const {
  std::error_code error;
  fs::remove_all(run, error);
  std::vector<std::string> arguments = {"train"};
  Append(arguments, {flags, "--steps", kBlock * (1 + kTimedBlocks), "--log-every", kBlock,
                     "--validate-every", 0, "--out", run.string()});
  MakeFolder(folder_);
  RunVerb(arguments);
  const plot::RunLog log = plot::ReadRunLog(run);
  const plot::Track* const updates = log.Find("lr");
  std::vector<double> blocks;
  double before = 0;
  for (size_t i = 0; updates != nullptr && i < updates->step.size(); ++i) {
    if (std::llround(updates->step[i]) % kBlock != 0) continue;
    if (updates->step[i] > kBlock) blocks.push_back(updates->seconds[i] - before);
    before = updates->seconds[i];
  }
  fs::remove_all(run, error);
  // The median ignores a short burst of other load.
  std::sort(blocks.begin(), blocks.end());
  const double each = blocks.empty() ? 0 : blocks[blocks.size() / 2] / kBlock;
  if (each > 0) return each;
  throw RuntimeError(experiment_, ": the updates of ", label, " could not be timed");
}

json Lab::Train(const std::string& label, const std::string& name,
                const std::vector<std::string>& flags, int64_t steps,
                const std::vector<std::string>& curve) const {
  MakeFolder(folder_);
  const fs::path run = folder_ / name;
  const auto info = [&] { return Run({"info", ModelOf(name), "--json"}); };
  const bool begun = Exists(run / "state.safetensors");
  if (begun) {
    const json config = ReadRecord(run / "config.json");
    const json planned = config.is_object() ? config.value("steps", json()) : json();
    if (planned != steps) {
      throw InputError(run.string(), ": is a training of ", planned.dump(), " updates, not ", steps,
                       "; choose another --work");
    }
  }
  if (begun && Exists(ModelOf(name)) && info().at("training").at("steps") == steps) {
    std::cerr << label << ": trained before, " << steps << " updates\n";
  } else {
    std::cerr << "training " << label << ": " << steps << " updates\n";
    std::vector<std::string> arguments = {"train"};
    Append(arguments, begun ? json{flags[0], "--resume"} : json{flags, "--steps", steps});
    Append(arguments, {"--out", run.string()});
    RunVerb(arguments);
  }
  const json trained = info();
  const plot::RunLog log = plot::ReadRunLog(run);
  double memory = 0, seconds = 0;
  if (const plot::Track* track = log.Find("peak_memory")) {
    memory = *std::max_element(track->value.begin(), track->value.end());
  }
  for (const plot::Track& track : log.tracks) seconds = std::max(seconds, track.seconds.back());
  return {{"steps", steps},
          {"training_seconds", seconds},
          {"epochs", trained.at("training").value("epochs", json())},
          {"parameters", trained.at("parameters")},
          {"peak_memory", memory},
          {"curve", CurveOf(log, curve)}};
}

}  // namespace linnet::experiments
