#include "experiments/image_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "experiments/page.h"
#include "linnet/base/units.h"
#include "linnet/io/file.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kBuckets = 64;
constexpr int64_t kLeastSteps = 50;
// Share of a budget for trainings with their validations; the rest is for later measurements.
constexpr double kTrainingShare = 0.7;
constexpr double kValidations = 1.1;  // time of a training over the time of its updates

// Distinguishes data sets of the same name by a hash of their first test images.
std::string Fingerprint(const ImageSet& test) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const size_t bytes = std::min<size_t>(100, test.size()) * test.image_bytes();
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ test.pixels[i]) * 1099511628211u;
  return StrCat(test.size(), "-", hash);
}

// Finds the data set's folder if the user named none.
std::string FindData(const json& about) {
  const std::string dataset = about.at("dataset"), title = about.at("title");
  std::vector<fs::path> places = {fs::path("data") / dataset, dataset};
  if (const char* data = std::getenv("LINNET_DATA"); data != nullptr && *data != '\0') {
    places.insert(places.begin(), fs::path(data) / dataset);
  }
  std::error_code error;
  for (const fs::path& place : places) {
    if (fs::is_directory(place, error)) return place;
  }
  throw InputError("--data is missing: name ", title, "'s folder ('linnet data ", dataset,
                   " --to data/", dataset, "/' downloads it)");
}

}  // namespace

ImageLab::ImageLab(const Call& call)
    : call_(call),
      lab_(call.lab),
      about_(call.about),
      data_(call.options.at("data").is_null() ? FindData(about_)
                                              : call.options.at("data").get<std::string>()),
      test_(LoadImages(about_.at("dataset"), data_, Split::kTest)) {
  std::error_code error;
  if (!fs::exists(PlanFile(), error)) {
    plan_ = NewPlan();
    return;
  }
  plan_ = ReadRecord(PlanFile());
  CheckPlan();
  std::cerr << "going on with what was planned in " << PlanFile().string() << "\n";
}

json ImageLab::NewPlan() const {
  const auto scale = call_.Get<std::string>("scale", "small");
  const auto budget = call_.Get<std::string>("budget", "");
  const bool tiny = scale == "tiny", by_time = about_.at("by_time");
  double images = tiny ? 10 : about_.at("most_test_images").get<double>();
  if (!budget.empty()) {  // so that measuring takes a small part of the budget
    images = std::clamp(std::floor(ParseSeconds(budget) / (by_time ? 30 : 3)), 10.0, images);
  }
  return {{"dataset", about_.at("dataset")},
          {"data", Fingerprint(test_)},
          {"options", GivenOptions(call_.verb, {"--data", "--count", "--completions"})},
          {"scale", scale},
          {"budget", budget},
          {"equal_time", by_time && call_.options.at("steps").is_null() && !tiny &&
                             (!budget.empty() || scale != "paper")},
          {"pixel_above", call_.Get("pixel-above", scale != "paper")},
          {"seed", call_.Get("seed", 1)},
          {"precision", call_.Get<std::string>("precision", "fp32")},
          {"training_threads", call_.options.at("threads")},
          {"validation_images", tiny ? json(10) : about_.at("curve_images")},
          {"test_images", std::min(static_cast<size_t>(images), test_.size())},
          {"spent", 0.0}};
}

// Throws if an option was given that differs from the plan's.
void ImageLab::CheckOption(const char* option, const json& planned) const {
  const json& given = call_.options.at(option);
  if (given.is_null() || given == planned) return;
  throw InputError(PlanFile().string(), ": the trainings there were planned ",
                   planned == "" ? "without" : "with", " --", option, " ",
                   planned.is_string() ? planned.get<std::string>() : planned.dump(),
                   "; choose another --work");
}

void ImageLab::CheckPlan() const {
  const std::string path = PlanFile();
  try {
    CheckRecord(plan_, {{"options", "text"},
                        {"precision", "text"},
                        {"seed", "whole"},
                        {"spent", "0 or more"},
                        {"test_images", "whole"},
                        {"training_threads", "0 or more"},
                        {"validation_images", "whole"}});
    const std::string scale = plan_.at("scale"), budget = plan_.at("budget");
    bool whole = scale == "small" || scale == "paper" || scale == "tiny";
    whole = whole && plan_.at("equal_time").is_boolean() && plan_.at("pixel_above").is_boolean();
    for (const json& method : about_.at("methods")) {
      const std::string name = method.at("name");
      CheckRecord(plan_, {{"steps." + name, "whole"}, {"seconds." + name, "above 0"}});
    }
    if (!budget.empty()) ParseSeconds(budget);
    if (!whole) throw InputError("no plan");
  } catch (const std::exception&) {
    throw InputError(path, ": is no plan; remove it, or choose another --work");
  }
  if (plan_.at("dataset") != about_.at("dataset") || plan_.at("data") != Fingerprint(test_)) {
    throw InputError(path, ": the trainings there were planned with other data; choose another ",
                     "--work");
  }
  for (const char* option : {"scale", "precision", "seed"}) CheckOption(option, plan_.at(option));
  CheckOption("pixel-above", plan_.at("pixel_above"));
  const std::string planned = plan_.at("budget"), given = call_.Get<std::string>("budget", planned);
  if (planned.empty() || ParseSeconds(planned) != ParseSeconds(given)) {
    CheckOption("budget", planned);
  }
  for (const json& steps : plan_.at("steps")) CheckOption("steps", steps);
}

void ImageLab::KeepPlan() const { WriteFileAtomically(PlanFile(), plan_.dump(1) + "\n"); }

std::string ImageLab::CommandOptions() const {
  return plan_.at("options").get<std::string>() +
         (lab_.folder() == about_.at("work").get<std::string>()
              ? ""
              : " --work " + lab_.folder().string());
}

std::vector<std::string> ImageLab::Flags(const json& method) const {
  std::vector<std::string> flags = {"images"};
  if (plan_.at("scale") == "paper") {
    Append(flags, "--preset", "paper", "--layers", about_.at("layers"));
  } else {
    Append(flags, "--preset", "small");
    if (plan_.at("scale") == "tiny") Append(flags, "--layers", 1, "--heads", 1, "--d-model", 32);
  }
  Append(flags, "--data", data_, "--dataset", about_.at("dataset"), "--attention",
         method.at("attention"), "--lsh-rounds", method.at("rounds"), "--lsh-buckets", kBuckets,
         "--lsh-chunk", about_.at("chunk"), "--batch", about_.at("batch"), "--precision",
         plan_.at("precision"), "--seed", plan_.at("seed"));
  if (plan_.at("pixel_above")) Append(flags, "--pixel-above");
  const json& threads = plan_.at("training_threads");
  if (threads > 0) Append(flags, "--threads", threads);
  return flags;
}

// At the small scale the learning rate decays to zero over four fifths of the updates; the paper's
// is constant.
std::vector<std::string> ImageLab::Schedule(int64_t steps) const {
  std::vector<std::string> flags;
  if (plan_.at("scale") != "paper") {
    Append(flags, "--lr-warmup", std::min<int64_t>(200, steps / 10), "--lr-decay", steps * 4 / 5,
           "--lr-decay-form", "cosine");
  }
  Append(flags, "--log-every", 20, "--validate-every", std::clamp<int64_t>(steps / 30, 20, 1000),
         "--validation-images", plan_.at("validation_images"), "--checkpoint-every", 250);
  return flags;
}

// The updates of a method if time is unlimited.
double ImageLab::Wanted(double seconds_an_update) const {
  const std::string scale = plan_.at("scale");
  const double small = about_.at("small"), batch = about_.at("batch");
  const double epoch = about_.at("train_images").get<double>() / batch;
  return !call_.options.at("steps").is_null() ? call_.options.at("steps").get<double>()
         : scale == "tiny"                    ? about_.at("tiny_steps").get<double>()
         : scale == "paper"                   ? about_.at("paper_epochs").get<double>() * epoch
         : plan_.at("equal_time")             ? 60 * small / seconds_an_update
                                              : small;
}

void ImageLab::Plan() {
  constexpr size_t kPublished = 10'000;
  if (test_.size() != kPublished) {
    std::cerr << "note: " << data_ << " has " << test_.size()
              << " test images, where the published set has " << kPublished << "\n";
  }
  const json& methods = about_.at("methods");
  std::vector<double> seconds, wanted;
  for (const json& method : methods) {
    seconds.push_back(lab_.SecondsAnUpdate(method.at("label"), method.at("name"), Flags(method)));
    wanted.push_back(Wanted(seconds.back()));
  }
  const Budget budget = {plan_.at("budget"), kTrainingShare / kValidations, watch_.Seconds()};
  const std::vector<int64_t> steps =
      StepsWithin(budget, seconds, wanted, plan_.at("equal_time"), kLeastSteps);
  double all = 0;
  for (size_t m = 0; m < methods.size(); ++m) {
    const std::string name = methods[m].at("name");
    plan_["seconds"][name] = seconds[m], plan_["steps"][name] = steps[m];
    all += static_cast<double>(steps[m]) * seconds[m] * kValidations;
  }
  std::cerr << "planned: about " << FormatSeconds(all) << " of training";
  if (!budget.text.empty()) {
    std::cerr << ", " << FormatSeconds(SecondsLeft()) << " of the budget left";
  }
  std::cerr << "\n";
  KeepPlan();
}

json ImageLab::Train() {
  if (!plan_.contains("steps")) Plan();
  const auto estimate = [&](const std::string& name) {
    return plan_["steps"][name].get<double>() * plan_["seconds"][name].get<double>() * kValidations;
  };
  json runs = json::array();
  double left = 0;
  for (const json& method : about_.at("methods")) left += estimate(method.at("name"));
  for (const json& method : about_.at("methods")) {
    const std::string name = method.at("name");
    const int64_t steps = plan_["steps"][name];
    std::vector<std::string> flags = Flags(method);
    for (const std::string& flag : Schedule(steps)) flags.push_back(flag);
    const json trained = lab_.Train(method.at("label"), name, flags, steps);
    left -= estimate(name);
    if (left > 1 && !trained.at("before").get<bool>()) {
      std::cerr << "about " << FormatSeconds(left) << " of training left\n";
    }
    const json& info = trained.at("info");
    runs.push_back({{"method", name},
                    {"steps", steps},
                    {"seconds_an_update", plan_["seconds"][name]},
                    {"training_seconds", trained.at("seconds")},
                    {"epochs", info.at("training").at("epochs")},
                    {"parameters", info.at("parameters")},
                    {"bits_per_dim", BitsPerDim(name, info.at("training"))},
                    {"curve", CurveOf(trained.at("metrics"), {"validation_bits_per_dim"})}});
  }
  plan_["spent"] = plan_["spent"].get<double>() + watch_.Seconds();
  watch_ = Stopwatch();
  KeepPlan();
  return runs;
}

// The result is kept beside the model for other experiments.
double ImageLab::BitsPerDim(const std::string& method, const json& training) const {
  const fs::path kept = lab_.folder() / StrCat("bits-", method, ".json");
  std::error_code error;
  if (fs::exists(kept, error)) {
    try {
      const json result = ReadRecord(kept);
      CheckRecord(result, {{"bits_per_dim", "above 0"}});
      if (result.at("training") == training) return result.at("bits_per_dim");
    } catch (const std::exception&) {  // unreadable: measures again
    }
  }
  const std::string images = plan_.at("test_images").dump();
  std::cerr << "measuring bits/dim of " << method << " over " << images << " test images\n";
  const json eval = lab_.Run({"eval", ModelOf(method), "--data", data_, "--dataset",
                              about_.at("dataset"), "--limit", images, "--json"});
  const json bits = eval.at("bits_per_dim");
  WriteFileAtomically(kept, json{{"training", training}, {"bits_per_dim", bits}}.dump() + "\n");
  return bits;
}

std::string ImageLab::ModelOf(const std::string& method) const {
  return lab_.folder() / method / "model.safetensors";
}

json ImageLab::Settings() const {
  json settings;
  for (const char* field : {"scale", "equal_time", "pixel_above", "seed", "precision",
                            "training_threads", "validation_images", "test_images"}) {
    settings[field] = plan_.at(field);
  }
  return settings;
}

double ImageLab::SecondsLeft() const {
  const std::string budget = plan_.at("budget");
  if (budget.empty()) return 1e9;
  const double spent = plan_.at("spent").get<double>() + watch_.Seconds();
  return std::max(0.0, ParseSeconds(budget) - spent);
}

std::string Trainings(const json& about, const json& record) {
  const Scope outer{about};
  return Fill(about.at("trainings").get<std::string>(), {record, &outer});
}

json TimeGeneration(const Call& call, const std::string& name, const Generation& what) {
  std::vector<std::string> bench = {"bench", "generate", "--json"};
  Append(bench, what.source, "--precision", what.precision, "--batch", what.together);
  if (what.source[0] == "--random") {
    Append(bench, "--attention", what.method.at("attention"));
    if (what.method.at("attention") == "reformer") {
      Append(bench, "--lsh-rounds", what.method.at("rounds"), "--lsh-chunk", what.chunk);
    }
  }
  if (what.stateless) Append(bench, "--stateless");
  if (what.whole) Append(bench, "--whole");
  call.AppendThreads(bench);
  json record = FindRecord(call.lab.Measure(name, bench), "name", "generate");
  if (record.is_null()) {
    throw RuntimeError("'linnet bench generate' wrote no record; nothing is written");
  }
  record["method"] = what.method.at("name");
  return record;
}

}  // namespace linnet::experiments
