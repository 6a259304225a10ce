// linnet reproduce all: runs every experiment of the paper in turn, within a time budget.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "experiments/experiment.h"
#include "linnet/base/progress.h"
#include "linnet/base/units.h"
#include "linnet/cli/child.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

enum class Takes {
  kBudget,   // --budget, --work, --precision
  kCopy,     // --budget, --work
  kMinutes,  // --minutes of each training, --work, --precision
  kModels,   // reuses another experiment's trainings: --work
  kTables,   // reads the other experiments' records
  kTime      // none: its duration is fixed
};
struct Part {
  const char* name;
  Takes takes;
  double share;         // of the budget
  const char* data;     // folder under --data; or null
  const char* of;       // the experiment whose models it reuses
  const char* shorter;  // flags for a budget below kLong
};
constexpr double kLong = 4 * 3600, kLeast = 3600, kMost = 1e8;
// Table 3 trains four methods with one seed each. Its timings and lengths take about as long as two
// more trainings.
constexpr double kSpeechRuns = 4 + 2;
constexpr Part kParts[] = {
    {"table1", Takes::kBudget, 0.16, "mnist", nullptr, ""},
    {"table2", Takes::kBudget, 0.20, "cifar10", nullptr, ""},
    {"table3", Takes::kMinutes, 0.16, "an4", nullptr, ""},
    {"table4", Takes::kTime, 0.03, nullptr, nullptr, "--dataset mnist"},
    {"table5", Takes::kTime, 0.03, nullptr, nullptr, "--dataset mnist"},
    {"figure1", Takes::kTime, 0.04, nullptr, nullptr, "--max-n 4096"},
    {"figure2", Takes::kCopy, 0.24, nullptr, nullptr, ""},
    {"figure3", Takes::kModels, 0.01, "mnist", "table1", ""},
    {"figure4", Takes::kModels, 0.01, "cifar10", "table2", ""},
    {"figure5", Takes::kTables, 0, nullptr, nullptr, ""},
    {"figure6", Takes::kModels, 0.03, "mnist", "table1", "--count 16"},
    {"figure7", Takes::kModels, 0.02, "mnist", "table1", "--completions 4"},
    {"figure8", Takes::kModels, 0.04, "cifar10", "table2", "--count 2"},
    {"figure9", Takes::kModels, 0.03, "cifar10", "table2", "--completions 1"},
};

struct Options {
  std::string budget = "2h", data, work = "runs", out = ".", precision = "fp32";
  int threads = 0;
};

class All {
 public:
  // Throws InputError for invalid options, and for a saved state with other options.
  explicit All(const Options& options) : options_(options), budget_(ParseSeconds(options.budget)) {
    if (budget_ > kMost)
      throw InputError("--budget ", options.budget, " is more than ", FormatSeconds(kMost));
    if (budget_ < kLeast) {
      throw InputError("--budget ", options.budget, " is too little for everything: give ",
                       FormatSeconds(kLeast), " or more, or run one experiment");
    }
    if (options_.data.empty()) {
      const char* data = std::getenv("LINNET_DATA");
      options_.data = data != nullptr && *data != '\0' ? data : "data";
    }
    std::error_code error;
    if (!fs::is_directory(options_.data, error)) {
      throw InputError(options_.data,
                       ": no folder; name the one that holds mnist/, cifar10/ and an4/ "
                       "with --data ('linnet data' downloads them)");
    }
    const Results results("all", options_.out, {}, {});  // fails early if not writable
    fs::create_directories(options_.work, error);
    if (error) throw InputError(options_.work, ": cannot make this folder: ", error.message());
    state_ = {{"budget", budget_},
              {"precision", options_.precision},
              {"spent", 0.0},
              {"done", json::array()}};
    if (fs::exists(StateFile(), error)) ReadState();
    before_ = state_.value("spent", 0.0), begun_ = state_.value("begun", "");
    Keep(before_, begun_);
  }

  void Run() {
    std::string missing;
    size_t number = 0;
    for (const Part& part : kParts) {
      const std::string where = StrCat("[", ++number, "/", std::size(kParts), "] ", part.name);
      std::string why;
      if (IsDone(part.name)) {
        std::cerr << where << ": done before\n";
        continue;
      }
      if (part.of != nullptr && !IsDone(part.of)) {
        why = StrCat("since ", part.of, " is not done");
      } else if (part.takes != Takes::kTables && Spent() > budget_ && part.name != begun_) {
        why = "since the time is over";
      } else {
        std::cerr << where << ", after " << FormatSeconds(Spent()) << " of " << options_.budget
                  << "\n";
        if (Finishes(part, why)) continue;
      }
      if (!why.empty()) std::cerr << part.name << ": left out, " << why << "\n";
      missing += StrCat(missing.empty() ? "" : ", ", part.name);
    }
    Keep(0, "");  // a later call gives the missing parts a new budget
    if (!missing.empty()) {
      throw RuntimeError(
          "all: not reproduced: ", missing,
          "; mend what is said above, and the same command does these alone (where a "
          "budget is too little: another one, with another --work)");
    }
  }

 private:
  std::string StateFile() const { return fs::path(options_.work) / "all.json"; }

  void ReadState() {
    const std::string path = StateFile();
    const json kept = ReadRecord(path);
    if (!kept.is_object() || kept.value("budget", json()) != state_["budget"] ||
        kept.value("precision", json()) != state_["precision"] ||
        !kept.value("done", json()).is_array()) {
      throw InputError(path,
                       ": was begun with another --budget or --precision; choose another "
                       "--work, or remove the file to measure everything again");
    }
    const json spent = kept.value("spent", json(0.0));  // absent in the first version's files
    if (!spent.is_number() || !(spent >= 0) || !kept.value("begun", json("")).is_string()) {
      throw InputError(path,
                       ": is no record of 'linnet reproduce all'; remove it to measure all again");
    }
    state_ = kept;
  }

  double Spent() const { return before_ + watch_.Seconds(); }

  void Keep(double seconds, const std::string& part) {
    state_["spent"] = seconds, state_["begun"] = part;
    WriteFileAtomically(StateFile(), state_.dump(1) + "\n");
  }

  bool IsDone(const std::string& name) const {
    const json& done = state_["done"];
    std::error_code error;
    return std::find(done.begin(), done.end(), name) != done.end() &&
           fs::exists(fs::path(options_.out) / (name + ".json"), error);
  }

  // Runs a part and returns whether it succeeded. On failure the part has printed the reason, or,
  // if a signal ended it, `why` holds the reason.
  bool Finishes(const Part& part, std::string& why) {
    cli::ChildResult child;
    try {
      child = cli::RunChild("linnet", Arguments(part));
    } catch (const cli::Interrupted&) {
      child.exit_code = 130;
    }
    if (child.exit_code == 130) {
      Keep(Spent(), part.name);
      throw cli::Interrupted{"all: stopped; the same command goes on with what is done"};
    }
    if (child.signal != 0) why = StrCat("ended by signal ", child.signal);
    const bool finished = child.exit_code == 0;
    if (finished) std::cout << child.out << std::flush;
    // Figures from other experiments' records are always redrawn: records may change, drawing is
    // fast.
    if (finished && part.takes != Takes::kTables) state_["done"].push_back(part.name);
    Keep(Spent(), "");
    return finished;
  }

  std::vector<std::string> Arguments(const Part& part) const {
    std::vector<std::string> arguments = {"reproduce", part.name, "--out", options_.out};
    const bool trains =
        part.takes == Takes::kBudget || part.takes == Takes::kCopy || part.takes == Takes::kMinutes;
    const double seconds = part.share * budget_;
    if (part.data != nullptr)
      Append(arguments, "--data", (fs::path(options_.data) / part.data).string());
    if (part.takes == Takes::kMinutes) {
      Append(arguments, "--minutes", seconds / 60 / kSpeechRuns, "--seeds", 1);
    } else if (trains) {
      Append(arguments, "--budget", std::lround(seconds));
    }
    if (trains && part.takes != Takes::kCopy) Append(arguments, "--precision", options_.precision);
    if (trains || part.of != nullptr) {
      Append(arguments, "--work",
             (fs::path(options_.work) / (part.of != nullptr ? part.of : part.name)).string());
    }
    if (budget_ < kLong) {
      std::istringstream words(part.shorter);
      for (std::string word; words >> word;) arguments.push_back(word);
    }
    if (options_.threads > 0 && part.takes != Takes::kTables)
      Append(arguments, "--threads", options_.threads);
    return arguments;
  }

  Options options_;
  const double budget_;
  const Stopwatch watch_;
  json state_;
  double before_ = 0;  // seconds used by interrupted calls
  std::string begun_;  // the part at which the last call was interrupted
};

}  // namespace

void AddAll(CLI::App& app) {
  CLI::App& verb = *cli::AddVerb(
      app, "all", "Everything: the paper's tables and figures within a budget of time",
      R"(Runs each experiment at its small scale, trainings with a share of the budget; below four hours
those that only measure leave out CIFAR-10 and long sequences, and figures show fewer images.
What fails, or has no time left, is named in the end; the same command then does these alone, with as
much time again.)",
      "  linnet reproduce all --budget 2h --out docs/results\n");
  auto options = std::make_shared<Options>();
  cli::AddOption(&verb, "--budget", options->budget, "TIME",
                 "Time for all of it, over all calls until it ends, 1h at least, as 2h or 8h; an "
                 "experiment that has begun goes to its end");
  cli::AddOption(
      &verb, "--data", options->data, "DIR",
      "The folder that holds mnist/, cifar10/ and an4/ (default: $LINNET_DATA, or data)");
  cli::AddOption(&verb, "--precision", options->precision, "P",
                 "Of the trainings: fp32, or bf16, where the processor has it",
                 CLI::IsMember({"fp32", "bf16"}));
  cli::AddThreadsOption(&verb, options->threads);
  cli::AddOption(&verb, "--work", options->work, "DIR",
                 "Folder for trainings; a stopped command goes on with those it holds");
  cli::AddOption(&verb, "--out", options->out, "DIR", "The folder for all pages and pictures");
  verb.callback([options] { All(*options).Run(); });
}

}  // namespace linnet::experiments
