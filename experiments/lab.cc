#include "experiments/lab.h"

#include <algorithm>
#include <iostream>
#include <numeric>
#include <sstream>

#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/child.h"
#include "linnet/cli/program.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kTen = 10, kTimedTens = 3;  // after one block of ten for warm-up

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

json Trained(const fs::path& run, int64_t steps, const json& info, bool before) {
  const std::vector<json> metrics = MetricsOf(run);
  const json seconds = metrics.empty() ? json(0.0) : metrics.back().value("seconds", json(0.0));
  return {{"run", run},       {"steps", steps},     {"seconds", seconds},
          {"before", before}, {"metrics", metrics}, {"info", info}};
}

}  // namespace

json ParseRecord(const std::string& text, const std::string& where) {
  std::string fault;
  json value = ParseJson(text, 8, fault);
  if (!fault.empty()) throw InputError(where, ": ", fault);
  return value;
}

json ReadRecord(const fs::path& path) { return ParseRecord(ReadFile(path, size_t{1} << 26), path); }

std::vector<json> MetricsOf(const fs::path& run) {
  const std::string path = run / "metrics.jsonl";
  std::istringstream in(ReadFile(path, size_t{1} << 28));
  std::vector<json> records;
  for (std::string line; std::getline(in, line);) {
    records.push_back(ParseRecord(line, path));
    if (!records.back().is_object()) throw InputError(path, ": has a line that is no record");
  }
  return records;
}

json CurveOf(const json& metrics, const std::vector<std::string>& fields) {
  json curve = json::array();
  for (const json& record : metrics) {
    if (!record.contains(fields[0])) continue;
    json& point = curve.emplace_back(json::array({record.at("step")}));
    for (const std::string& field : fields) point.push_back(record.at(field));
  }
  return curve;
}

std::vector<int64_t> StepsWithin(const Budget& budget, const std::vector<double>& seconds,
                                 const std::vector<double>& wanted, bool equal_time,
                                 int64_t least) {
  const auto methods = static_cast<double>(seconds.size()), fewest = static_cast<double>(least);
  const double together = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double total = budget.text.empty() ? 1e18 : ParseSeconds(budget.text);
  std::vector<int64_t> steps;
  for (size_t m = 0; m < seconds.size(); ++m) {
    const double round = equal_time ? methods * seconds[m] : together;  // an update of each method
    const double fit = (budget.share * total - budget.spent) / round;
    if (fit < fewest) {
      throw InputError("--budget ", budget.text, " is too little: ", least,
                       " updates of each method, and measuring them, take about ",
                       FormatSeconds((fewest * round + budget.spent) / budget.share));
    }
    steps.push_back(std::max(least, static_cast<int64_t>(std::min(wanted[m], fit))));
  }
  return steps;
}

void Lab::MakeFolder(const fs::path& folder) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InputError(folder.string(), ": cannot make this folder: ", error.message());
}

std::string Lab::RunVerb(const std::vector<std::string>& arguments) const {
  const cli::Interrupted stopped{
      StrCat(experiment_,
             ": stopped; nothing is written, and the same command goes on with what is done")};
  cli::ChildResult child;
  try {
    child = cli::RunChild("linnet", arguments);
  } catch (const cli::Interrupted&) {
    throw stopped;
  }
  if (child.exit_code == 130) throw stopped;
  if (child.exit_code == 2)
    throw InputError(experiment_, ": nothing is written");  // the verb has printed the reason
  if (child.exit_code != 0) {
    const std::string verb =
        arguments[0] + (arguments.size() > 1 && arguments[1][0] != '-' ? " " + arguments[1] : "");
    throw RuntimeError(experiment_, ": 'linnet ", verb, "' failed",
                       child.signal != 0 ? StrCat(" (signal ", child.signal, ")") : "",
                       "; nothing is written");
  }
  return child.out;
}

json Lab::Run(const std::vector<std::string>& arguments) const {
  return ParseRecord(RunVerb(arguments), StrCat("what 'linnet ", arguments[0], "' wrote"));
}

json Lab::Measure(const std::string& name, const std::vector<std::string>& arguments) const {
  const fs::path file = folder_ / "measured" / (name + ".json");
  const json question = {cli::MachineName(), arguments};
  kept_.push_back(file);
  if (Exists(file)) {
    std::string fault;  // an unreadable file is measured again
    const json kept = ParseJson(ReadFile(file, size_t{1} << 26), 9, fault);
    if (kept.is_object() && kept.value("question", json()) == question && kept.contains("answer")) {
      std::cerr << name << ": measured before\n";
      return kept.at("answer");
    }
  }
  const json answer = Run(arguments);
  MakeFolder(file.parent_path());
  WriteFileAtomically(file, json{{"question", question}, {"answer", answer}}.dump(1) + "\n");
  return answer;
}

void Lab::Finish() const {
  std::error_code ignored;
  for (const fs::path& file : kept_) fs::remove(file, ignored);
  if (kept_.empty()) return;
  // Removes these folders only if they are empty.
  for (const fs::path& path : {folder_ / "measured", folder_, folder_.parent_path()})
    fs::remove(path, ignored);
}

double Lab::SecondsAnUpdate(const std::string& label, const std::string& name,
                            const std::vector<std::string>& flags) const {
  MakeFolder(folder_);
  const fs::path plan = folder_ / StrCat("update-", name, ".json");
  std::error_code error;
  if (Exists(plan)) {
    const json kept = ReadRecord(plan);
    const bool same = kept.is_object() && kept.value("flags", json()) == json(flags);
    const json seconds = same ? kept.value("seconds", json()) : json();
    if (seconds.is_number() && seconds > 0 && seconds < 1e9) return seconds;
    // Timings alone do not block another plan; a training that has begun does.
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      const std::string run_name = entry.path().filename();
      if (run_name.starts_with(name) && Exists(entry.path() / "state.safetensors")) {
        throw InputError(plan.string(), ": of other settings; choose another --work");
      }
    }
  }
  std::cerr << "timing updates of " << label << "\n";
  const fs::path run = folder_ / StrCat("update-", name);
  fs::remove_all(run, error);
  std::vector<std::string> arguments = {"train"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  Append(arguments, "--steps", kTen * (1 + kTimedTens), "--log-every", kTen, "--validate-every", 0,
         "--out", run.string());
  RunVerb(arguments);
  std::vector<double> tens;
  double before = 0;
  for (const json& record : MetricsOf(run)) {
    if (!record.contains("lr") || record.at("step").get<int>() % kTen != 0) continue;
    const double now = record.at("seconds");
    if (record.at("step") > kTen) tens.push_back(now - before);
    before = now;
  }
  fs::remove_all(run, error);
  // The median ignores a short burst of other load.
  std::sort(tens.begin(), tens.end());
  const double each = tens.empty() ? 0 : tens[tens.size() / 2] / kTen;
  if (!(each > 0)) throw RuntimeError(experiment_, ": updates of ", label, " take no time");
  WriteFileAtomically(plan, json{{"flags", flags}, {"seconds", each}}.dump() + "\n");
  return each;
}

json Lab::Train(const std::string& label, const std::string& name,
                const std::vector<std::string>& flags, int64_t steps) const {
  MakeFolder(folder_);
  const fs::path run = folder_ / name;
  const std::string model = run / "model.safetensors";
  const auto check = [&](const json& planned) {
    if (planned == steps) return;
    throw InputError(run.string(), ": is a training of ", planned.dump(), " updates, not ", steps,
                     "; choose another --work");
  };
  std::vector<std::string> arguments = {"train"};
  if (Exists(run / "state.safetensors")) {
    const json config = ReadRecord(run / "config.json");
    check(config.is_object() ? config.value("steps", json()) : json());
    if (Exists(model)) {
      const json info = Run({"info", model, "--json"});
      if (info.at("training").at("steps") == steps) {
        std::cerr << label << ": trained before, " << steps << " updates\n";
        return Trained(run, steps, info, /*before=*/true);
      }
    }
    Append(arguments, flags[0], "--resume");
  } else {
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Append(arguments, "--steps", steps);
  }
  std::cerr << "training " << label << ": " << steps << " updates\n";
  Append(arguments, "--out", run.string());
  RunVerb(arguments);
  const json info = Run({"info", model, "--json"});
  check(info.at("training").at("steps"));
  return Trained(run, steps, info, /*before=*/false);
}

}  // namespace linnet::experiments
