// linnet reproduce all: every experiment of the paper, one after the other, within a budget of time.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/child.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/program.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  std::string budget = "2h", data, work = "runs", out = ".", precision = "fp32";
  int threads = 0;
};

enum class Takes {
  kBudget,   // --budget, --work, --precision
  kCopy,     // --budget, --work
  kMinutes,  // --minutes of each of its trainings, --work, --precision
  kModels,   // the trainings of another experiment: --work
  kTables,   // what others wrote
  kTime      // nothing: it measures for as long as that takes
};
struct Part {
  const char* name;
  Takes takes;
  double share;         // of the budget
  const char* data;     // folder under --data; or null
  const char* of;       // whose models it takes
  const char* shorter;  // flags where the budget is below kLong
};
constexpr double kLong = 4 * 3600, kLeast = 3600, kMost = 1e8;
// Of table 3: trainings of one seed each. Its timings and lengths take about as long as two.
constexpr double kSpeechRuns = 4 + 2;
constexpr Part kParts[] = {
    {"table1", Takes::kBudget, 0.16, "mnist", nullptr, nullptr},
    {"table2", Takes::kBudget, 0.20, "cifar10", nullptr, nullptr},
    {"table3", Takes::kMinutes, 0.16, "an4", nullptr, nullptr},
    {"table4", Takes::kTime, 0.03, nullptr, nullptr, "--dataset mnist"},
    {"table5", Takes::kTime, 0.03, nullptr, nullptr, "--dataset mnist"},
    {"figure1", Takes::kTime, 0.04, nullptr, nullptr, "--max-n 4096"},
    {"figure2", Takes::kCopy, 0.24, nullptr, nullptr, nullptr},
    {"figure3", Takes::kModels, 0.01, "mnist", "table1", nullptr},
    {"figure4", Takes::kModels, 0.01, "cifar10", "table2", nullptr},
    {"figure5", Takes::kTables, 0, nullptr, nullptr, nullptr},
    {"figure6", Takes::kModels, 0.03, "mnist", "table1", "--count 16"},
    {"figure7", Takes::kModels, 0.02, "mnist", "table1", "--completions 4"},
    {"figure8", Takes::kModels, 0.04, "cifar10", "table2", "--count 2"},
    {"figure9", Takes::kModels, 0.03, "cifar10", "table2", "--completions 1"},
};

void AddWords(const std::string& words, std::vector<std::string>& arguments) {
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    arguments.push_back(words.substr(at, end - at));
    at = end + 1;
  }
}

std::vector<std::string> Arguments(const Part& part, const Options& options, double budget) {
  std::vector<std::string> arguments = {"reproduce", part.name, "--out", options.out};
  const auto add = [&](const auto&... values) { (arguments.push_back(StrCat(values)), ...); };
  if (part.data != nullptr) add("--data", (fs::path(options.data) / part.data).string());
  const double seconds = part.share * budget;
  const auto work = [&](const char* of) { add("--work", (fs::path(options.work) / of).string()); };
  switch (part.takes) {
    case Takes::kBudget:
      add("--budget", std::lround(seconds), "--precision", options.precision);
      work(part.name);
      break;
    case Takes::kCopy:
      add("--budget", std::lround(seconds));
      work(part.name);
      break;
    case Takes::kMinutes:
      add("--minutes", seconds / 60 / kSpeechRuns, "--seeds", 1, "--precision", options.precision);
      work(part.name);
      break;
    case Takes::kModels:
      work(part.of);
      break;
    case Takes::kTables:
    case Takes::kTime:
      break;
  }
  if (part.shorter != nullptr && budget < kLong) AddWords(part.shorter, arguments);
  if (options.threads > 0 && part.takes != Takes::kTables) add("--threads", options.threads);
  return arguments;
}

void Run(Options options) {
  const double budget = ParseSeconds(options.budget);
  if (budget > kMost) {
    throw InputError("--budget ", options.budget, " is more than ", FormatSeconds(kMost));
  }
  if (budget < kLeast) {
    throw InputError("--budget ", options.budget, " is too little for everything: give ",
                     FormatSeconds(kLeast), " or more, or run one experiment");
  }
  if (options.data.empty()) {
    const char* data = std::getenv("LINNET_DATA");
    options.data = data != nullptr && *data != '\0' ? data : "data";
  }
  std::error_code error;
  if (!fs::is_directory(options.data, error)) {
    throw InputError(options.data,
                     ": no folder; name the one that holds mnist/, cifar10/ and an4/ "
                     "with --data ('linnet data' downloads them)");
  }
  const Results results("all", options.out, {});  // that it can be written
  fs::create_directories(options.work, error);
  if (error) throw InputError(options.work, ": cannot make this folder: ", error.message());
  // What is done stays done.
  const std::string path = fs::path(options.work) / "all.json";
  json state = {{"budget", budget},
                {"precision", options.precision},
                {"spent", 0.0},
                {"done", json::array()}};
  if (fs::exists(path, error)) {
    const json kept = ParseRecord(ReadFile(path, 1 << 20), path);
    if (!kept.is_object() || kept.value("budget", json()) != state["budget"] ||
        kept.value("precision", json()) != state["precision"] ||
        !kept.value("done", json()).is_array()) {
      throw InputError(path,
                       ": was begun with another --budget or --precision; choose another "
                       "--work, or remove the file to measure everything again");
    }
    const json spent = kept.value("spent", json(0.0));  // of before there was one
    if (!spent.is_number() || !(spent >= 0) || !kept.value("begun", json("")).is_string()) {
      throw InputError(path,
                       ": is no record of 'linnet reproduce all'; remove it to measure all again");
    }
    state = kept;
  }
  const Stopwatch watch;
  const double before = state.value("spent", 0.0);     // by calls that were stopped,
  const std::string begun = state.value("begun", "");  // and what the last of them was at
  const auto spent = [&] { return before + watch.Seconds(); };
  const auto keep = [&](double seconds, const std::string& part) {
    state["spent"] = seconds, state["begun"] = part;
    WriteFileAtomically(path, state.dump(1) + "\n");
  };
  keep(before, begun);
  const auto is_done = [&](const std::string& name) {
    const json& done = state["done"];
    std::error_code none;
    return std::find(done.begin(), done.end(), name) != done.end() &&
           fs::exists(fs::path(options.out) / (name + ".json"), none);
  };
  std::string missing;
  const auto leave_out = [&](const Part& part, const std::string& why) {
    if (!why.empty()) std::cerr << part.name << ": left out, " << why << "\n";
    missing += StrCat(missing.empty() ? "" : ", ", part.name);
  };
  size_t count = 0;
  for (const Part& part : kParts) {
    ++count;
    if (is_done(part.name)) {
      std::cerr << "[" << count << "/" << std::size(kParts) << "] " << part.name
                << ": done before\n";
      continue;
    }
    // What others wrote may have changed, and takes no time.
    const bool drawn = part.takes == Takes::kTables;
    if (part.of != nullptr && !is_done(part.of)) {
      leave_out(part, StrCat("since ", part.of, " is not done"));
      continue;
    }
    if (!drawn && spent() > budget && part.name != begun) {
      leave_out(part, "since the time is over");
      continue;
    }
    std::cerr << "[" << count << "/" << std::size(kParts) << "] " << part.name << ", after "
              << FormatSeconds(spent()) << " of " << options.budget << "\n";
    const Interrupted stopped{"all: stopped; the same command goes on with what is done"};
    ChildResult child;
    try {
      child = RunChild("linnet", Arguments(part, options, budget));
    } catch (const Interrupted&) {
      child.exit_code = 130;
    }
    if (child.exit_code == 130) {
      keep(spent(), part.name);
      throw stopped;
    }
    if (child.exit_code == 0) {
      std::cout << child.out << std::flush;
      if (!drawn) state["done"].push_back(part.name);
    } else {  // it has said why, but where a signal ended it
      leave_out(part, child.signal != 0 ? StrCat("ended by signal ", child.signal) : "");
    }
    keep(spent(), "");
  }
  keep(0, "");  // what is missing gets a budget of its own
  if (!missing.empty()) {
    throw RuntimeError("all: not reproduced: ", missing,
                       "; mend what is said above, and the same command does these alone (where a "
                       "budget is too little: another one, with another --work)");
  }
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  verb.add_option(
          "--budget", options->budget,
          "Time for all of it, over all calls until it ends, 1h at least, as 2h or 8h; what has "
          "begun goes to its end")
      ->type_name("TIME")
      ->capture_default_str();
  verb.add_option(
          "--data", options->data,
          "The folder that holds mnist/, cifar10/ and an4/ (default: $LINNET_DATA, or data)")
      ->type_name("DIR");
  verb.add_option("--precision", options->precision,
                  "Of the trainings: fp32, or bf16, where the processor has it")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  AddThreadsOption(&verb, options->threads);
  verb.add_option("--work", options->work,
                  "Folder for trainings; a command that was stopped goes on with what is there")
      ->type_name("DIR")
      ->capture_default_str();
  verb.add_option("--out", options->out, "The folder for all pages and pictures")
      ->type_name("DIR")
      ->capture_default_str();
  verb.callback([options] { Run(*options); });
}

}  // namespace

const Experiment kAll = {
    "all", "Everything: the paper's tables and figures within a budget of time",
    "Runs each experiment at its small scale, trainings with a share of the budget; below four "
    "hours\n"
    "those that only measure leave out CIFAR-10 and long sequences, and figures show fewer "
    "images.\n"
    "What fails, or has no time left, is named in the end; the same command then does these alone, "
    "with as\n"
    "much time again.",
    "  linnet reproduce all --budget 2h --out docs/results\n", Add};

}  // namespace linnet::cli
