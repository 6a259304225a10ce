// linnet reproduce figure2: the copy task (§4.1.1). Softmax, linear and Reformer attention learn to
// repeat a sequence.
#include <algorithm>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "linnet/base/units.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"

namespace linnet::experiments {
namespace {

using nlohmann::json;

struct Method {
  const char *name, *label, *attention;
};
constexpr Method kMethods[] = {{"softmax", "softmax", "full"},
                               {"lsh-4", "LSH-4", "reformer"},
                               {"linear", "linear", "causal-linear"}};

struct Scale {
  const char *name, *describes;
  std::vector<std::string> flags;
  int max_length;
  // The learning rate drops to a tenth after `drop_at` updates: 3,000 in the paper, three quarters
  // of all at the small scale.
  int64_t steps, drop_at;
};
const std::vector<Scale>& Scales() {
  static const std::vector<Scale> scales = {
      // Sequences shrink with the model: half the heads distinguish fewer positions.
      {"small",
       "4 layers of 4 heads of 32, a quarter of the paper's weights",
       {"--d-model", "128", "--heads", "4"},
       32,
       8000,
       6000},
      {"paper", "4 layers of 8 heads of 32", {}, 128, 10000, 3000},
  };
  return scales;
}
const Scale& ScaleNamed(const std::string& name) {
  for (const Scale& scale : Scales()) {
    if (scale.name == name) return scale;
  }
  throw InputError("no scale ", name);
}

// Reformer: nine chunks (of 32 at the paper's length), and 16 buckets, the next power of two.
constexpr int kBuckets = 16;
int Chunk(int max_length) { return (max_length + 3) / 4; }

// The first update with a loss below `loss`, or null.
json FirstBelow(const json& curve, double loss) {
  for (const json& point : curve) {
    if (point.at(1).get<double>() < loss) return point.at(0);
  }
  return nullptr;
}

class Figure2 : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    cli::AddOption(&verb, "--scale", scale_, "NAME",
                   "small: 128 wide, lengths to 32, 8,000 updates; paper: 256, 128 and 10,000",
                   CLI::IsMember({"small", "paper"}));
    cli::AddOption(&verb, "--steps", steps_, "N", "Updates of each method (default: the scale's)",
                   cli::Between(100, 1e7));
    cli::AddOption(&verb, "--budget", budget_, "TIME",
                   "Time for all of it, as 30m or 2h: fewer updates, as many of each method");
    cli::AddOption(&verb, "--max-length", max_length_, "N",
                   "Sequences of fewer than so many tokens (default: the scale's)",
                   cli::Between(12, 4096));
    cli::AddOption(&verb, "--seed", seed_, "N", "Of weights and data", cli::Between(0, 1e9));
    cli::AddThreadsOption(&verb, threads_);
  }

  std::vector<std::string> Pictures() const override { return {"figure2"}; }

  json Measure(const Lab& lab) override {
    const Scale& scale = ScaleNamed(scale_);
    if (max_length_ == 0) max_length_ = scale.max_length;
    std::vector<double> seconds;
    double together = 0;
    for (const Method& method : kMethods) {
      seconds.push_back(lab.SecondsAnUpdate(method.label, method.name, Flags(method)));
      together += seconds.back();
    }
    const int64_t steps = Steps(together);
    std::cerr << steps << " updates of each: about "
              << FormatSeconds(static_cast<double>(steps) * together / 0.9) << " in all\n";
    const int64_t drop_at =
        std::max<int64_t>(1, std::min(scale.drop_at, steps * scale.drop_at / scale.steps));
    json runs = json::array();
    for (size_t m = 0; m < std::size(kMethods); ++m) {
      std::vector<std::string> flags = Flags(kMethods[m]);
      Append(flags, "--lr-drop-at", drop_at, "--log-every", 20, "--validate-every", 100);
      const json trained = lab.Train(kMethods[m].label, kMethods[m].name, flags, steps);
      json curve = json::array();
      for (const json& record : trained.at("metrics")) {
        if (!record.contains("validation_loss")) continue;
        curve.push_back(
            {record.at("step"), record.at("validation_loss"), record.at("validation_accuracy")});
      }
      runs.push_back({{"method", kMethods[m].name},
                      {"seconds_an_update", seconds[m]},
                      {"parameters", trained.at("info").at("parameters")},
                      {"curve", curve}});
    }
    return {{"machine", cli::MachineName()},
            {"date", cli::Today()},
            {"scale", scale_},
            {"steps", steps},
            {"drop_at", drop_at},
            {"seed", seed_},
            {"max_length", max_length_},
            {"threads", threads_},
            {"runs", runs}};
  }

  Drawing Draw(const json& record) const override {
    const int max_length = record.at("max_length");
    const Scale& scale = ScaleNamed(record.at("scale"));
    json rows = json::array();
    std::vector<Curve> curves;
    for (const Method& method : kMethods) {
      const json* run = FindRecord(record.at("runs"), "method", method.name);
      if (run == nullptr) continue;
      const double each = Positive(*run, "seconds_an_update");
      const json& points = run->at("curve");
      if (points.empty()) throw InputError("holds a run without a validation");
      Curve curve{.label = method.label};
      for (const json& point : points) {
        curve.step.push_back(point.at(0));
        curve.minutes.push_back(curve.step.back() * each / 60);
        curve.value.push_back(point.at(1));
      }
      rows.push_back({{"label", method.label},
                      {"last", points.back().at(1)},
                      {"lowest", *std::min_element(curve.value.begin(), curve.value.end())},
                      {"accuracy", points.back().at(2)},
                      {"until_2", FirstBelow(points, 1e-2)},
                      {"until_3", FirstBelow(points, 1e-3)},
                      {"seconds", each},
                      {"parameters", run->at("parameters")}});
      curves.push_back(std::move(curve));
    }
    if (rows.empty()) throw InputError("holds no run");
    return {.values = {{"rows", rows},
                       {"longest", max_length - 1},
                       {"network", scale.describes},
                       {"buckets", kBuckets},
                       {"chunk", Chunk(max_length)}},
            .figures = {
                {"figure2", DrawCurves(StrCat("Repeating up to ", max_length - 1, " tokens"),
                                       StrCat("the copy task, ", scale.describes),
                                       {"validation loss, nats a token", /*log=*/true}, curves)}}};
  }

 private:
  std::vector<std::string> Flags(const Method& method) const {
    std::vector<std::string> flags = {"copy", "--preset", "paper", "--attention", method.attention};
    const Scale& scale = ScaleNamed(scale_);
    flags.insert(flags.end(), scale.flags.begin(), scale.flags.end());
    Append(flags, "--lsh-buckets", kBuckets, "--lsh-chunk", Chunk(max_length_), "--max-length",
           max_length_, "--seed", seed_, "--checkpoint-every", 500);
    if (threads_ > 0) Append(flags, "--threads", threads_);
    return flags;
  }

  // Updates of each method; one update of every method takes `together` seconds.
  int64_t Steps(double together) const {
    const int64_t steps = steps_ > 0 ? steps_ : ScaleNamed(scale_).steps;
    if (budget_.empty()) return steps;
    constexpr int64_t kLeast = 100;
    // Reserves a tenth of the time for validation.
    const auto fit = static_cast<int64_t>(std::min(0.9 * ParseSeconds(budget_) / together, 1e7));
    if (fit < kLeast) {
      throw InputError("--budget ", budget_, " is too little: ", kLeast,
                       " updates of each method take ",
                       FormatSeconds(static_cast<double>(kLeast) * together / 0.9));
    }
    return std::min(steps, fit);
  }

  std::string scale_ = "small", budget_;
  int64_t steps_ = 0;
  int seed_ = 1, threads_ = 0, max_length_ = 0;
};

}  // namespace

const Row kFigure2 = {"figure2",
                      "The copy task: loss against updates and time, by three attentions",
                      "Trains softmax, LSH-4 and linear attention to repeat sequences, "
                      "as many updates each.\n"
                      "Stopped, it goes on where it was.",
                      "  linnet reproduce figure2 --out docs/results\n"
                      "  linnet reproduce figure2 --scale paper --budget 2h\n",
                      Make<Figure2>};

}  // namespace linnet::experiments
