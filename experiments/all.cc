// linnet reproduce all: runs every experiment of the paper in turn, within a time budget.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/measure.h"
#include "linnet/base/progress.h"
#include "linnet/base/units.h"
#include "linnet/io/file.h"
#include "linnet/program/program.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kLong = 4 * 3600, kLeast = 3600, kMost = 1e8;  // seconds; "short" below kLong

class All {
 public:
  // Throws InputError for invalid options, and for a saved state with other options.
  All(const json& about, json options) : about_(about), options_(std::move(options)) {
    const std::string budget = options_.at("budget"), work = options_.at("work");
    budget_ = ParseSeconds(budget);
    if (budget_ < kLeast || budget_ > kMost) {
      throw InputError("--budget ", budget, " is outside the range for all experiments: give ",
                       FormatSeconds(kLeast), " to ", FormatSeconds(kMost),
                       ", or run one experiment");
    }
    if (options_["data"].is_null()) options_["data"] = DataRoot();
    options_["seconds"] = budget_, options_["short"] = budget_ < kLong;
    if (!Exists(options_["data"].get<std::string>())) {
      throw InputError(options_["data"].get<std::string>(),
                       ": no such folder; name the folder with mnist/, cifar10/ and "
                       "an4/ with --data ('linnet data' downloads the first two)");
    }
    CheckWritableFolder(options_.at("out"));
    MakeFolder(work);
    state_file_ = fs::path(work) / "all.json";
    state_ = {{"budget", budget_},
              {"precision", options_.at("precision")},
              {"spent", 0.0},
              {"begun", ""},
              {"done", json::array()}};
    if (Exists(state_file_)) ReadState();
    before_ = state_.at("spent"), begun_ = state_.at("begun");
    Keep(before_, begun_);
  }

  void Run() {
    const json& parts = about_.at("parts");
    std::string missing;
    for (size_t p = 0; p < parts.size(); ++p) {
      const json& part = parts[p];
      const std::string name = part.at("name"), of = part.value("of", "");
      const std::string where = StrCat("[", p + 1, "/", parts.size(), "] ", name);
      if (IsDone(name)) {
        std::cerr << where << ": done before\n";
        continue;
      }
      std::string why;
      if (!of.empty() && !IsDone(of)) {
        why = StrCat("since ", of, " is not done");
      } else if (!part.contains("redraws") && Spent() > budget_ && name != begun_) {
        why = "since the budget is used up";
      } else {
        std::cerr << where << ", after " << FormatSeconds(Spent()) << " of "
                  << options_.at("budget").get<std::string>() << "\n";
        if (Finishes(part, why)) continue;
      }
      if (!why.empty()) std::cerr << name << ": left out, " << why << "\n";
      missing += (missing.empty() ? "" : ", ") + name;
    }
    Keep(0, "");  // a later call gives the missing parts a new budget
    if (!missing.empty()) {
      throw RuntimeError("all: not reproduced: ", missing,
                         "; correct the errors above and repeat the command, which runs only these "
                         "(if --budget was too small, choose a larger one and another --work)");
    }
  }

 private:
  void ReadState() {
    const json kept = ReadRecord(state_file_);
    CheckFile(state_file_, "; choose another --work, or remove the file to measure all again", [&] {
      CheckRecord(kept, {{"spent?", "0 or more"}, {"begun?", "text"}, {"done.*", "text"}});
      if (kept.at("budget") != state_["budget"] || kept.at("precision") != state_["precision"]) {
        throw InputError("belongs to another --budget or --precision");
      }
    });
    state_.update(kept);  // files of older versions lack fields
  }

  double Spent() const { return before_ + watch_.Seconds(); }

  void Keep(double seconds, const std::string& part) {
    state_["spent"] = seconds, state_["begun"] = part;
    WriteRecord(state_file_, state_);
  }

  bool IsDone(const std::string& name) const {
    const json& done = state_["done"];
    return std::find(done.begin(), done.end(), name) != done.end() &&
           Exists(fs::path(options_.at("out").get<std::string>()) / (name + ".json"));
  }

  // Runs a part (an experiment) and returns whether it succeeded. A part that fails prints the
  // reason itself; if a signal ended it, `why` receives the reason.
  bool Finishes(const json& part, std::string& why) {
    const std::string name = part.at("name");
    const Scope options{options_}, scope{part, &options};
    cli::ChildResult child;
    try {
      child =
          RunLinnet(Command(about_.at("command"), scope), "all: stopped; the same command resumes");
    } catch (const cli::Interrupted&) {
      Keep(Spent(), name);
      throw;
    }
    if (child.signal != 0) why = StrCat("ended by signal ", child.signal);
    const bool finished = child.exit_code == 0;
    if (finished) std::cout << child.out << std::flush;
    // Parts that draw figures from other experiments' records are never marked as done: the records
    // may change, and drawing is fast.
    if (finished && !part.contains("redraws")) state_["done"].push_back(name);
    Keep(Spent(), "");
    return finished;
  }

  const json about_;
  json options_;
  std::string state_file_;
  double budget_ = 0;
  const Stopwatch watch_;
  json state_;
  double before_ = 0;  // seconds used by earlier, interrupted calls
  std::string begun_;  // the part at which the last call was interrupted
};

}  // namespace

void AddAll(CLI::App& app) {
  const json about = Describe("all");
  const auto options = std::make_shared<json>();
  AddDescribedVerb(app, "all", about, *options)->callback([=] { All(about, *options).Run(); });
}

}  // namespace linnet::experiments
