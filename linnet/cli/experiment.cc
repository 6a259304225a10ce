#include "linnet/cli/experiment.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/cli/child.h"
#include "linnet/cli/page.h"
#include "linnet/cli/program.h"
#include "linnet/cli/signals.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"

namespace linnet::cli {

namespace fs = std::filesystem;
using nlohmann::json;

std::string RunVerb(const std::string& experiment, const std::vector<std::string>& arguments) {
  const Interrupted stopped{
      StrCat(experiment, ": stopped; nothing is written",
             arguments[0] == "bench" ? "" : ", and the same command goes on with what is done")};
  ChildResult child;
  try {
    child = RunChild("linnet", arguments);
  } catch (const Interrupted&) {
    throw stopped;
  }
  if (child.exit_code == 130) throw stopped;
  if (child.exit_code == 2)
    throw InputError(experiment, ": nothing is written");  // it has said why
  if (child.exit_code != 0) {
    const std::string verb =
        arguments[0] + (arguments.size() > 1 && arguments[1][0] != '-' ? " " + arguments[1] : "");
    throw RuntimeError(experiment, ": 'linnet ", verb, "' failed",
                       child.signal != 0 ? StrCat(" (signal ", child.signal, ")") : "",
                       "; nothing is written");
  }
  return child.out;
}

json RunVerbJson(const std::string& experiment, const std::vector<std::string>& arguments) {
  return ParseRecord(RunVerb(experiment, arguments),
                     StrCat("what 'linnet ", arguments[0], "' wrote"));
}

json ParseRecord(const std::string& text, const std::string& where) {
  std::string fault;
  json value = ParseJson(text, 8, fault);
  if (!fault.empty()) throw InputError(where, ": ", fault);
  return value;
}

double Positive(const json& record, const char* field) {
  const double value = record.at(field);
  if (!(value > 0 && value < 1e18)) throw InputError("'", field, "' is no number that can be");
  return value;
}

json ReadRecord(const std::string& experiment, const std::string& text, const std::string& where,
                FunctionRef<void(const json&)> use) {
  json record = ParseRecord(text, where);
  try {
    const std::string of = record.value("experiment", experiment);
    if (of != experiment) throw InputError("is ", of, "'s record, not ", experiment, "'s");
    use(record);
  } catch (const json::exception&) {
    throw InputError(where, ": lacks a field, or has one of another type; give the ", experiment,
                     ".json that 'linnet reproduce ", experiment, "' wrote");
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what());
  }
  return record;
}

void AddExperimentOptions(CLI::App& verb, const std::string& name, ExperimentOptions& options) {
  verb.add_option("--from", options.from,
                  StrCat("Measure nothing: the ", name, ".json of an earlier run"))
      ->type_name("FILE");
  verb.add_option("--out", options.out,
                  StrCat("The folder for ", name, ".md, .json and the pictures"))
      ->type_name("DIR")
      ->capture_default_str();
  AddJsonFlag(&verb, options.json);
}

void CheckFrom(const CLI::App& verb, const std::vector<std::string>& allowed) {
  if (verb.get_option("--from")->count() == 0) return;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--from" || name == "--out" || name == "--json" ||
        name == "--work" || std::find(allowed.begin(), allowed.end(), name) != allowed.end()) {
      continue;
    }
    throw InputError("--from measures nothing, so ", name, " means nothing; give one");
  }
}

json Obtain(const std::string& experiment, const ExperimentOptions& options,
            const std::string& command, FunctionRef<json()> measure,
            FunctionRef<void(const json&)> use) {
  if (!options.from.empty()) {
    json kept = ReadRecord(experiment, ReadFile(options.from, size_t{1} << 26), options.from, use);
    kept["experiment"] = experiment;
    return kept;
  }
  json record = measure();
  record["experiment"] = experiment;
  if (!record.contains("command")) record["command"] = command;
  return record;
}

std::string CommandOf(const std::string& experiment, const json& record) {
  const auto found = record.find("command");
  if (found != record.end()) return found->get<std::string>();
  return StrCat("linnet reproduce ", experiment, " --from ", experiment,
                ".json   # what an earlier run wrote");
}

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

namespace {

constexpr int kTen = 10, kTimedTens = 3;  // behind one ten to warm up

json Trained(const fs::path& run, int64_t steps, const json& info, bool before) {
  std::vector<json> metrics = MetricsOf(run);
  const json seconds = metrics.empty() ? json(0.0) : metrics.back().value("seconds", json(0.0));
  return {{"run", run},
          {"steps", steps},
          {"seconds", seconds},
          {"before", before},
          {"metrics", std::move(metrics)},
          {"info", info}};
}

}  // namespace

Lab::Lab(std::string experiment, fs::path folder)
    : experiment_(std::move(experiment)), folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw InputError(folder_.string(), ": cannot make this folder: ", error.message());
}

double Lab::SecondsAnUpdate(const std::string& label, const std::string& name,
                            const std::vector<std::string>& flags) {
  const fs::path plan = folder_ / StrCat("update-", name, ".json");
  std::error_code error;
  if (fs::exists(plan, error)) {
    const json kept = ParseRecord(ReadFile(plan, 1 << 16), plan);
    const bool same = kept.is_object() && kept.value("flags", json()) == json(flags);
    if (same && kept.contains("seconds") && kept.at("seconds").is_number()) {
      return Positive(kept, "seconds");
    }
    // Timings of a plan that came to nothing are no reason to refuse another one.
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      const std::string run_name = entry.path().filename();
      if (run_name.starts_with(name) && fs::exists(entry.path() / "state.safetensors", error)) {
        throw InputError(plan.string(), ": of other settings; choose another --work");
      }
    }
  }
  std::cerr << "timing updates of " << label << "\n";
  const fs::path run = folder_ / StrCat("update-", name);
  fs::remove_all(run, error);
  std::vector<std::string> arguments = {"train"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  for (const std::string& argument :
       std::vector<std::string>{"--steps", std::to_string(kTen * (1 + kTimedTens)), "--log-every",
                                std::to_string(kTen), "--validate-every", "0", "--out", run}) {
    arguments.push_back(argument);
  }
  RunVerb(experiment_, arguments);
  std::vector<double> tens;
  double before = 0;
  for (const json& record : MetricsOf(run)) {
    if (!record.contains("lr") || record.at("step").get<int>() % kTen != 0) continue;
    const double now = record.at("seconds");
    if (record.at("step") > kTen) tens.push_back(now - before);
    before = now;
  }
  fs::remove_all(run, error);
  // The median: a neighbour that comes for a moment does not count.
  std::sort(tens.begin(), tens.end());
  const double each = tens.empty() ? 0 : tens[tens.size() / 2] / kTen;
  if (!(each > 0)) throw RuntimeError(experiment_, ": updates of ", label, " take no time");
  WriteFileAtomically(plan, json{{"flags", flags}, {"seconds", each}}.dump() + "\n");
  return each;
}

json Lab::Train(const std::string& label, const std::string& name,
                const std::vector<std::string>& flags, int64_t steps) {
  const fs::path run = folder_ / name;
  const std::string model = run / "model.safetensors";
  std::vector<std::string> arguments = {"train"};
  std::error_code error;
  const auto another = [&](const std::string& were) {
    return InputError(run.string(), ": is a training of ", were, " updates, not ", steps,
                      "; choose another --work");
  };
  if (fs::exists(run / "state.safetensors", error)) {
    const std::string path = run / "config.json";
    const json config = ParseRecord(ReadFile(path, 1 << 20), path);
    const json planned = config.is_object() ? config.value("steps", json()) : json();
    if (planned != steps) throw another(planned.dump());
    if (fs::exists(model, error)) {
      const json info = RunVerbJson(experiment_, {"info", model, "--json"});
      if (info.at("training").at("steps") == steps) {
        std::cerr << label << ": trained before, " << steps << " updates\n";
        return Trained(run, steps, info, /*before=*/true);
      }
    }
    arguments.insert(arguments.end(), {flags[0], "--resume"});
  } else {
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--steps", std::to_string(steps)});
  }
  std::cerr << "training " << label << ": " << steps << " updates\n";
  arguments.insert(arguments.end(), {"--out", run});
  RunVerb(experiment_, arguments);
  const json info = RunVerbJson(experiment_, {"info", model, "--json"});
  if (info.at("training").at("steps") != steps) {
    throw another(info.at("training").at("steps").dump());
  }
  return Trained(run, steps, info, /*before=*/false);
}

Results::Results(const std::string& name, const std::string& folder,
                 const std::vector<std::string>& pictures, const std::vector<std::string>& images)
    : folder_(folder), pictures_(pictures), images_(images) {
  std::error_code error;
  std::vector<fs::path> made;  // to try, and taken away again: a signal may end what measures
  for (fs::path path = fs::absolute(folder).lexically_normal();
       !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
    if (path.has_filename()) made.push_back(path);
  }
  fs::create_directories(folder, error);
  if (error) throw InputError(folder, ": cannot make this folder: ", error.message());
  page_ = fs::path(folder) / (name + ".md"), records_ = fs::path(folder) / (name + ".json");
  std::vector<std::string> files = {page_, records_};
  for (const std::string& picture : pictures) {
    for (const std::string& file : PictureFiles(folder, picture)) files.push_back(file);
  }
  for (const std::string& image : images_) files.push_back(fs::path(folder) / (image + ".png"));
  for (const std::string& file : files) AtomicFile probe(file);
  for (const fs::path& path : made) fs::remove(path, error);
}

void Results::Write(const std::string& records, const std::string& page,
                    const std::vector<plot::Figure>& figures, const std::vector<Image>& images) {
  const SignalsHeld held;
  fs::create_directories(folder_);
  // Pictures are drawn beside their places: one that cannot be drawn leaves all of them as they were.
  struct Aside {
    fs::path folder;
    ~Aside() {
      std::error_code error;
      fs::remove_all(folder, error);
    }
  };
  const Aside aside{fs::path(folder_) / StrCat(".drawing.", getpid())};
  fs::create_directory(aside.folder);
  std::vector<std::string> written = {page_, records_};
  for (size_t i = 0; i < figures.size(); ++i) DrawPictures(figures[i], aside.folder, pictures_[i]);
  const auto png = [&](size_t i) { return images_[i] + ".png"; };
  for (size_t i = 0; i < images.size(); ++i) WritePng(aside.folder / png(i), images[i]);
  const auto take = [&](const fs::path& file) {
    fs::rename(aside.folder / file.filename(), file);
    written.push_back(file);
  };
  for (size_t i = 0; i < figures.size(); ++i) {
    for (const std::string& file : PictureFiles(folder_, pictures_[i])) take(file);
  }
  for (size_t i = 0; i < images.size(); ++i) take(fs::path(folder_) / png(i));
  WriteFileAtomically(records_, records);
  WriteFileAtomically(page_, page);
  written_ = std::move(written);
}

void Results::Print(bool json) const {
  if (json) return PrintJson({{"out", written_}});
  for (const std::string& file : written_) std::cout << "wrote " << file << "\n";
}

}  // namespace linnet::cli
