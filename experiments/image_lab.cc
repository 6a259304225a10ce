#include "experiments/image_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "experiments/experiment.h"
#include "linnet/base/units.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

const ImageSetup& MnistSetup() {
  static const ImageSetup setup = {.dataset = "mnist",
                                   .title = "MNIST",
                                   .table = "table1",
                                   .layers = 8,
                                   .batch = 10,
                                   .chunk = 29,
                                   .chunks = 27,
                                   .equal_time = false,
                                   .small = 3000,
                                   .test_images = 10000,
                                   .train_images = 60'000,
                                   .paper_bits = {0.621, 0.745, 0.676, 0.644},
                                   .paper_images = {0.45, 0.68, 0.27, 142.8}};
  return setup;
}
const ImageSetup& CifarSetup() {
  static const ImageSetup setup = {.dataset = "cifar10",
                                   .title = "CIFAR-10",
                                   .table = "table2",
                                   .layers = 16,
                                   .batch = 4,
                                   .chunk = 37,
                                   .chunks = 83,
                                   .equal_time = true,
                                   .small = 6,
                                   .test_images = 1000,
                                   .train_images = 50'000,
                                   .paper_bits = {3.47, 3.39, 3.51, 3.40},
                                   .paper_images = {0.004, 0.015, 0.005, 17.85}};
  return setup;
}

namespace {

constexpr int kBuckets = 64, kPaperEpochs = 250;
constexpr size_t kMethods = kImageMethods.size();
constexpr int64_t kLeastSteps = 50, kTinySteps = 50;
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
std::string FindData(const ImageSetup& setup) {
  std::vector<fs::path> places = {fs::path("data") / setup.dataset, setup.dataset};
  if (const char* data = std::getenv("LINNET_DATA"); data != nullptr && *data != '\0') {
    places.insert(places.begin(), fs::path(data) / setup.dataset);
  }
  std::error_code error;
  for (const fs::path& place : places) {
    if (fs::is_directory(place, error)) return place;
  }
  throw InputError("--data is missing: name ", setup.title, "'s folder ('linnet data ",
                   setup.dataset, " --to data/", setup.dataset, "/' downloads it)");
}

}  // namespace

void ImageOptions::Add(CLI::App& to, const ImageSetup& setup) {
  verb = &to;
  cli::AddOption(&to, "--data", data, "DIR",
                 StrCat(setup.title, "'s folder (default: $LINNET_DATA/", setup.dataset, ", data/",
                        setup.dataset, " or ", setup.dataset, ", whichever is there)"));
  const std::string much =
      setup.equal_time ? StrCat(setup.small, " minutes") : StrCat(setup.small, " updates");
  cli::AddOption(&to, "--scale", scale, "NAME",
                 StrCat("small: 4 layers of 4 heads of 32, ", much,
                        " each (default); paper: ", setup.layers, " layers of 8 heads of 32, ",
                        kPaperEpochs, " epochs, or what --budget allows; tiny: ", kTinySteps,
                        " updates of a layer of one head, to try the command"),
                 CLI::IsMember({"small", "paper", "tiny"}));
  CLI::Option* budget_option =
      cli::AddOption(&to, "--budget", budget, "TIME",
                     "Time for all of it, as 10m or 2h: trains less, measures on fewer images");
  to.add_option("--steps", steps, "Updates of each method (default: the scale's)")
      ->type_name("N")
      ->check(cli::Between(static_cast<double>(kLeastSteps), 1e7))
      ->excludes(budget_option);
  cli::AddOption(&to, "--precision", precision, "P",
                 "Of the trainings: fp32 (default), or bf16, where the processor has it",
                 CLI::IsMember({"fp32", "bf16"}));
  to.add_flag_function(
      "--pixel-above,!--no-pixel-above", [this](std::int64_t given) { pixel_above = given > 0; },
      "Give the byte above the next one to the network, or not, as the paper (default: but for the "
      "paper's scale; small ones have no time to learn where to look for it)");
  cli::AddOption(&to, "--seed", seed, "N", "Of weights and order (default: 1)",
                 cli::Between(1, 1e9));
  cli::AddThreadsOption(&to, threads);
}

ImageLab::ImageLab(const Lab& lab, const ImageSetup& setup, const ImageOptions& options)
    : lab_(lab),
      setup_(setup),
      options_(options),
      data_(options.data.empty() ? FindData(setup) : options.data),
      test_(LoadImages(setup.dataset, data_, Split::kTest)) {
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
  const std::string scale = options_.scale.empty() ? "small" : options_.scale;
  const bool tiny = scale == "tiny", budget = !options_.budget.empty();
  int64_t images = tiny ? 10 : setup_.test_images;
  if (budget) {  // so that measuring takes a small part of the budget
    const double affordable = ParseSeconds(options_.budget) / (setup_.equal_time ? 30 : 3);
    images = std::clamp<int64_t>(static_cast<int64_t>(affordable), 10, images);
  }
  return {{"dataset", setup_.dataset},
          {"data", Fingerprint(test_)},
          {"options", GivenOptions(*options_.verb, {"--data", "--count", "--completions"})},
          {"scale", scale},
          {"budget", options_.budget},
          {"equal_time",
           setup_.equal_time && options_.steps == 0 && !tiny && (budget || scale != "paper")},
          {"pixel_above", options_.pixel_above.value_or(scale != "paper")},
          {"seed", options_.seed == 0 ? 1 : options_.seed},
          {"precision", options_.precision.empty() ? "fp32" : options_.precision},
          {"training_threads", options_.threads},
          {"validation_images", tiny                ? 10
                                : setup_.equal_time ? 20
                                                    : 100},
          {"test_images", std::min<int64_t>(images, static_cast<int64_t>(test_.size()))},
          {"spent", 0.0}};
}

void ImageLab::CheckPlan() const {
  const std::string path = PlanFile();
  const auto other = [&](const char* what, const std::string& was) {
    throw InputError(path, ": the trainings there were planned with ", what, was.empty() ? "" : " ",
                     was, "; choose another --work");
  };
  try {
    const auto text = [&](const char* field) { return plan_.at(field).get<std::string>(); };
    if (text("dataset") != setup_.dataset) other("the data set", text("dataset"));
    if (text("data") != Fingerprint(test_)) other("other data", "");
    if (!options_.scale.empty() && text("scale") != options_.scale) other("--scale", text("scale"));
    const std::string was = text("budget");
    if (!options_.budget.empty() &&
        (was.empty() || ParseSeconds(was) != ParseSeconds(options_.budget))) {
      other(was.empty() ? "no --budget" : "--budget", was);
    }
    if (!options_.precision.empty() && text("precision") != options_.precision) {
      other("--precision", text("precision"));
    }
    const bool above = plan_.at("pixel_above");
    if (options_.pixel_above.value_or(above) != above)
      other("the byte above", above ? "given" : "not given");
    if (options_.seed > 0 && plan_.at("seed") != options_.seed)
      other("--seed", plan_.at("seed").dump());
    bool whole = plan_.at("spent").is_number() && plan_.at("equal_time").is_boolean() &&
                 plan_.at("options").is_string() &&
                 (text("scale") == "small" || text("scale") == "paper" || text("scale") == "tiny");
    for (const char* field : {"seed", "test_images", "validation_images", "training_threads"}) {
      whole = whole && plan_.at(field).is_number_integer();
    }
    for (const ImageMethod& method : kImageMethods) {
      const json& steps = plan_.at("steps").at(method.name);
      if (options_.steps > 0 && steps != options_.steps) {
        other("other --steps:", StrCat(steps.dump(), " of ", method.label));
      }
      whole = whole && steps.is_number_integer() && plan_.at("seconds").at(method.name).is_number();
    }
    if (whole) return;
  } catch (const json::exception&) {
  }
  throw InputError(path, ": is no plan; remove it, or choose another --work");
}

void ImageLab::KeepPlan() const { WriteFileAtomically(PlanFile(), plan_.dump(1) + "\n"); }

double ImageLab::Budget() const {
  const std::string budget = plan_.at("budget");
  return budget.empty() ? 0 : ParseSeconds(budget);
}

std::string ImageLab::CommandOptions() const {
  const std::string usual = StrCat("runs/", setup_.table);
  return plan_.at("options").get<std::string>() +
         (lab_.folder() == usual ? "" : " --work " + lab_.folder().string());
}

std::vector<std::string> ImageLab::Flags(const ImageMethod& method) const {
  std::vector<std::string> flags = {"images"};
  if (plan_.at("scale") == "paper") {
    Append(flags, "--preset", "paper", "--layers", setup_.layers);
  } else {
    Append(flags, "--preset", "small");
    if (plan_.at("scale") == "tiny") Append(flags, "--layers", 1, "--heads", 1, "--d-model", 32);
  }
  Append(flags, "--data", data_, "--dataset", setup_.dataset, "--attention", method.attention,
         "--lsh-rounds", method.rounds, "--lsh-buckets", kBuckets, "--lsh-chunk", setup_.chunk,
         "--batch", setup_.batch, "--precision", plan_.at("precision").get<std::string>(), "--seed",
         plan_.at("seed").get<int>());
  if (plan_.at("pixel_above")) Append(flags, "--pixel-above");
  const int threads = plan_.at("training_threads");
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
         "--validation-images", plan_.at("validation_images").get<int>(), "--checkpoint-every",
         250);
  return flags;
}

void ImageLab::Plan() {
  constexpr size_t kPublished = 10'000;
  if (test_.size() != kPublished) {
    std::cerr << "note: " << data_ << " has " << test_.size()
              << " test images, where the published set has " << kPublished << "\n";
  }
  json seconds, steps;
  double together = 0, slowest = 0;
  const double budget = Budget();
  const bool equal_time = plan_.at("equal_time");
  // The smallest sufficient budget, if an update takes `each` with the slowest method and `all` for
  // all methods together.
  const auto least = [&](double each, double all) {
    const double once = equal_time ? kMethods * each : all;
    return (static_cast<double>(kLeastSteps) * once * kValidations + watch_.Seconds()) /
           kTrainingShare;
  };
  const auto too_little = [&](double needed) {
    throw InputError("--budget ", options_.budget, " is too little: ", kLeastSteps,
                     " updates of each method, and measuring them, take about ",
                     FormatSeconds(needed));
  };
  for (const ImageMethod& method : kImageMethods) {
    const double each = lab_.SecondsAnUpdate(method.label, method.name, Flags(method));
    seconds[method.name] = each;
    together += each, slowest = std::max(slowest, each);
    // Assumes that methods not timed yet are like the timed ones.
    const double expected =
        least(slowest, together * kMethods / static_cast<double>(seconds.size()));
    if (budget > 0 && expected > budget) too_little(expected);
  }
  const double training = (budget * kTrainingShare - watch_.Seconds()) / kValidations;
  double all = 0;
  for (const ImageMethod& method : kImageMethods) {
    const double each = seconds[method.name];
    const std::string scale = plan_.at("scale");
    double count = scale == "tiny" ? static_cast<double>(kTinySteps)
                   : scale == "paper"
                       ? kPaperEpochs * setup_.train_images / static_cast<double>(setup_.batch)
                   : equal_time ? 60 * setup_.small / each
                                : setup_.small;
    if (budget > 0) {  // equal shares of the time, or equal updates that fit
      count = std::min(count, equal_time ? training / kMethods / each : training / together);
    }
    if (options_.steps > 0) count = static_cast<double>(options_.steps);
    if (budget > 0 && count < static_cast<double>(kLeastSteps))
      too_little(least(slowest, together));
    steps[method.name] = std::max<int64_t>(kLeastSteps, std::llround(std::floor(count)));
    all += steps[method.name].get<double>() * each * kValidations;
  }
  std::cerr << "planned: about " << FormatSeconds(all) << " of training";
  if (budget > 0) std::cerr << ", " << FormatSeconds(SecondsLeft()) << " of the budget left";
  std::cerr << "\n";
  plan_["seconds"] = seconds, plan_["steps"] = steps;
  KeepPlan();
}

json ImageLab::Train() {
  if (!plan_.contains("steps")) Plan();
  const auto estimate = [&](const ImageMethod& method) {
    return plan_["steps"][method.name].get<double>() * plan_["seconds"][method.name].get<double>() *
           kValidations;
  };
  json runs = json::array();
  double left = 0;
  for (const ImageMethod& method : kImageMethods) left += estimate(method);
  for (const ImageMethod& method : kImageMethods) {
    const int64_t steps = plan_["steps"][method.name];
    std::vector<std::string> flags = Flags(method);
    for (const std::string& flag : Schedule(steps)) flags.push_back(flag);
    const json trained = lab_.Train(method.label, method.name, flags, steps);
    left -= estimate(method);
    if (left > 1 && !trained.at("before").get<bool>()) {
      std::cerr << "about " << FormatSeconds(left) << " of training left\n";
    }
    json curve = json::array();
    for (const json& record : trained.at("metrics")) {
      if (!record.contains("validation_bits_per_dim")) continue;
      curve.push_back({record.at("step"), record.at("validation_bits_per_dim")});
    }
    const json& info = trained.at("info");
    runs.push_back({{"method", method.name},
                    {"steps", steps},
                    {"seconds_an_update", plan_["seconds"][method.name]},
                    {"training_seconds", trained.at("seconds")},
                    {"epochs", info.at("training").at("epochs")},
                    {"parameters", info.at("parameters")},
                    {"bits_per_dim", BitsPerDim(method, info.at("training"))},
                    {"curve", curve}});
  }
  plan_["spent"] = plan_["spent"].get<double>() + watch_.Seconds();
  watch_ = Stopwatch();
  KeepPlan();
  return runs;
}

// The result is kept beside the model for other experiments.
double ImageLab::BitsPerDim(const ImageMethod& method, const json& training) const {
  const fs::path kept = lab_.folder() / StrCat("bits-", method.name, ".json");
  std::error_code error;
  if (fs::exists(kept, error)) {
    try {
      const json result = ReadRecord(kept);
      if (result.at("training") == training) return Positive(result, "bits_per_dim");
    } catch (const std::exception&) {  // unreadable: measures again
    }
  }
  const std::string images = plan_.at("test_images").dump();
  std::cerr << "measuring bits/dim of " << method.label << " over " << images << " test images\n";
  const json eval = lab_.Run({"eval", ModelOf(method), "--data", data_, "--dataset", setup_.dataset,
                              "--limit", images, "--json"});
  const json bits = eval.at("bits_per_dim");
  WriteFileAtomically(kept, json{{"training", training}, {"bits_per_dim", bits}}.dump() + "\n");
  return bits;
}

std::string ImageLab::ModelOf(const ImageMethod& method) const {
  return lab_.folder() / method.name / "model.safetensors";
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
  if (Budget() == 0) return 1e9;
  return std::max(0.0, Budget() - plan_.at("spent").get<double>() - watch_.Seconds());
}

std::string DescribeTrainings(const ImageSetup& setup, const json& settings) {
  const std::string scale = settings.at("scale");
  const int threads = settings.at("training_threads");
  return StrCat(
      scale == "tiny" ? "one layer of one head of 32, far too small"
      : scale == "small"
          ? StrCat("4 layers of 4 heads of 32, ", setup.equal_time ? "1/16" : "1/8",
                   " of the paper's weights, RAdam at 1e-3, lowered to zero over four fifths of "
                   "the updates")
          : StrCat("the paper's ", setup.layers, " layers of 8 heads of 32, RAdam at 1e-4"),
      ", batches of ", setup.batch, ", ", settings.at("precision").get<std::string>(), ", seed ",
      settings.at("seed").get<int>(), ", on ",
      threads > 0 ? StrCat(threads, threads == 1 ? " thread" : " threads") : "every processor",
      "; LSH with 64 buckets and ", setup.chunks, " chunks of ", setup.chunk, ". ",
      settings.at("pixel_above").get<bool>()
          ? "Every network is given the byte above the next one (`--pixel-above`), the paper's is "
            "not. "
          : "",
      settings.at("equal_time").get<bool>()
          ? "All were given the same time, by how long their updates took before."
          : "All made the same updates.");
}

}  // namespace linnet::experiments
