#include "linnet/cli/image_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/page.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {

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
                                   .test_images = 2000,
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
                                   .test_images = 300,
                                   .paper_bits = {3.47, 3.39, 3.51, 3.40},
                                   .paper_images = {0.004, 0.015, 0.005, 17.85}};
  return setup;
}

namespace {

constexpr int kBuckets = 64, kPaperEpochs = 250;
constexpr int64_t kLeastSteps = 50, kTinySteps = 100;
// Of a budget, for trainings and their validations; the rest is for what is measured behind them.
constexpr double kTrainingShare = 0.7;
constexpr double kValidations = 1.1;  // trainings take so much longer than their updates

// The folder of a data set that nobody named.
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

void AddImageLabOptions(CLI::App& verb, const ImageSetup& setup, ImageLabOptions& options) {
  options.work = StrCat("runs/", setup.table);
  verb.add_option("--data", options.data,
                  StrCat(setup.title, "'s folder (default: $LINNET_DATA/", setup.dataset, ", data/",
                         setup.dataset, " or ", setup.dataset, ", whichever is there)"))
      ->type_name("DIR");
  const std::string much =
      setup.equal_time ? StrCat(setup.small, " minutes") : StrCat(setup.small, " updates");
  verb.add_option("--scale", options.scale,
                  StrCat("small: 4 layers of 4 heads of 32, ", much,
                         " each (default); paper: ", setup.layers, " layers of 8 heads of 32, ",
                         kPaperEpochs, " epochs, or what --budget allows; tiny: ", kTinySteps,
                         " updates of a layer of one head, to try the command"))
      ->type_name("NAME")
      ->check(CLI::IsMember({"small", "paper", "tiny"}));
  verb.add_option("--budget", options.budget,
                  "Time for all of it, as 10m or 2h: trains less, measures on fewer images")
      ->type_name("TIME");
  verb.add_option("--steps", options.steps, "Updates of each method (default: the scale's)")
      ->type_name("N")
      ->check(Between(static_cast<double>(kLeastSteps), 1e7));
  verb.add_option("--precision", options.precision,
                  "Of the trainings: fp32 (default), or bf16, where the processor has it")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  verb.add_flag_function(
      "--pixel-above,!--no-pixel-above",
      [&options](std::int64_t given) { options.pixel_above = given > 0; },
      "Give the byte above the next one to the network, or not, as the paper (default: but for the "
      "paper's scale; small ones have no time to learn where to look for it)");
  verb.add_option("--seed", options.seed, "Of weights and order (default: 1)")
      ->type_name("N")
      ->check(Between(1, 1e9));
  AddThreadsOption(&verb, options.threads);
  verb.add_option("--work", options.work,
                  StrCat("Folder of the trainings, which ", setup.title,
                         "'s table and figures share; what is there is not trained again"))
      ->type_name("DIR")
      ->capture_default_str();
}

std::string ToFlags(const ImageLabOptions& options) {
  std::string flags;
  const auto add = [&](bool given, const char* flag, const auto& value) {
    if (given) flags += StrCat(" ", flag, " ", value);
  };
  add(!options.scale.empty(), "--scale", options.scale);
  add(!options.budget.empty(), "--budget", options.budget);
  add(options.steps > 0, "--steps", options.steps);
  add(!options.precision.empty(), "--precision", options.precision);
  if (options.pixel_above) flags += *options.pixel_above ? " --pixel-above" : " --no-pixel-above";
  add(options.seed > 0, "--seed", options.seed);
  add(options.threads > 0, "--threads", options.threads);
  return flags;
}

ImageLab::ImageLab(std::string experiment, const ImageSetup& setup, const ImageLabOptions& options)
    : experiment_(std::move(experiment)),
      setup_(setup),
      options_(options),
      data_(options.data.empty() ? FindData(setup) : options.data),
      budget_(options.budget.empty() ? 0 : ParseSeconds(options.budget)),
      lab_(experiment_, options.work) {
  const fs::path path = fs::path(options_.work) / "plan.json";
  std::error_code error;
  if (fs::exists(path, error)) {
    plan_ = ParseRecord(ReadFile(path, 1 << 20), path);
    try {
      const auto other = [&](const char* what, const std::string& was) {
        throw InputError(path.string(), ": the trainings there were planned with ", what, " ", was,
                         "; choose another --work");
      };
      const auto text = [&](const char* field) { return plan_.at(field).get<std::string>(); };
      if (text("dataset") != setup.dataset) other("the data set", text("dataset"));
      if (!options.scale.empty() && text("scale") != options.scale) other("--scale", text("scale"));
      if (!options.precision.empty() && text("precision") != options.precision) {
        other("--precision", text("precision"));
      }
      pixel_above_ = plan_.at("pixel_above");
      if (options.pixel_above && *options.pixel_above != pixel_above_) {
        other("the byte above", pixel_above_ ? "given" : "not given");
      }
      if (options.seed > 0 && plan_.at("seed") != options.seed) {
        other("--seed", plan_.at("seed").dump());
      }
      for (const ImageMethod& method : kImageMethods) {
        const json& steps = plan_.at("steps").at(method.name);
        if (options.steps > 0 && steps != options.steps) other("--steps", steps.dump());
        if (!steps.is_number_integer() || !plan_.at("seconds").at(method.name).is_number()) {
          throw InputError(path.string(), ": is no plan; remove it, or choose another --work");
        }
      }
      options_.precision = text("precision"), options_.seed = plan_.at("seed");
      options_.threads = plan_.at("threads");  // of the trainings
    } catch (const json::exception&) {
      throw InputError(path.string(), ": is no plan; remove it, or choose another --work");
    }
    scale_ = plan_.at("scale");
    std::cerr << "going on with what was planned in " << path.string() << "\n";
    return;
  }
  scale_ = options.scale.empty() ? "small" : options.scale;
  pixel_above_ = options.pixel_above.value_or(scale_ != "paper");
  if (options_.precision.empty()) options_.precision = "fp32";
  if (options_.seed == 0) options_.seed = 1;
}

std::vector<std::string> ImageLab::Flags(const ImageMethod& method) const {
  std::vector<std::string> flags = {"images"};
  const auto add = [&](const auto&... values) { (flags.push_back(StrCat(values)), ...); };
  if (scale_ == "paper") {
    add("--preset", "paper", "--layers", setup_.layers);
  } else {
    add("--preset", "small");
    if (scale_ == "tiny") add("--layers", 1, "--heads", 1, "--d-model", 32);
  }
  add("--data", data_, "--dataset", setup_.dataset, "--attention", method.attention, "--lsh-rounds",
      method.rounds, "--lsh-buckets", kBuckets, "--lsh-chunk", setup_.chunk, "--batch",
      setup_.batch, "--precision", options_.precision, "--seed", options_.seed);
  if (pixel_above_) add("--pixel-above");
  if (options_.threads > 0) add("--threads", options_.threads);
  return flags;
}

// The small scale's rate goes down to zero over four fifths of the updates; the paper's stays.
std::vector<std::string> ImageLab::Schedule(int64_t steps) const {
  std::vector<std::string> flags;
  const auto add = [&](const auto&... values) { (flags.push_back(StrCat(values)), ...); };
  if (scale_ != "paper") {
    add("--lr-warmup", std::min<int64_t>(200, steps / 10), "--lr-decay", steps * 4 / 5,
        "--lr-decay-form", "cosine");
  }
  add("--log-every", 20, "--validate-every", std::clamp<int64_t>(steps / 30, 20, 1000),
      "--validation-images", ValidationImages(), "--checkpoint-every", 250);
  return flags;
}

int ImageLab::ValidationImages() const {
  return scale_ == "tiny" ? 10 : setup_.equal_time ? 20 : 100;
}

void ImageLab::Plan() {
  json seconds, steps;
  double together = 0;
  for (const ImageMethod& method : kImageMethods) {
    const double each = lab_.SecondsAnUpdate(method.label, method.name, Flags(method));
    seconds[method.name] = each;
    together += each;
  }
  const double training = (budget_ * kTrainingShare - watch_.Seconds()) / kValidations;
  double all = 0;
  for (const ImageMethod& method : kImageMethods) {
    const double each = seconds[method.name];
    double count = 0;
    if (scale_ == "paper") {
      const double images = setup_.equal_time ? 50'000 : 60'000;
      count = kPaperEpochs * images / setup_.batch;
    } else if (scale_ == "tiny") {
      count = kTinySteps;
    } else {
      count = setup_.equal_time ? 60 * setup_.small / each : setup_.small;
    }
    if (budget_ > 0) {
      // An equal share of the time, or updates that take it together.
      count = std::min(count, setup_.equal_time ? training / 4 / each : training / together);
    }
    if (options_.steps > 0) count = static_cast<double>(options_.steps);
    if (count < static_cast<double>(kLeastSteps)) {
      const double slowest = setup_.equal_time ? 4 * each : together;
      throw InputError("--budget ", options_.budget, " is too little: ", kLeastSteps,
                       " updates of each method, and measuring them, take about ",
                       FormatSeconds((static_cast<double>(kLeastSteps) * slowest * kValidations +
                                      watch_.Seconds()) /
                                     kTrainingShare));
    }
    steps[method.name] = std::llround(std::floor(count));
    all += std::floor(count) * each * kValidations;
  }
  std::cerr << "planned: about " << FormatSeconds(all) << " of training";
  if (budget_ > 0) std::cerr << ", " << FormatSeconds(SecondsLeft()) << " of the budget left";
  std::cerr << "\n";
  plan_ = {{"dataset", setup_.dataset},
           {"scale", scale_},
           {"pixel_above", pixel_above_},
           {"seed", options_.seed},
           {"precision", options_.precision},
           {"threads", options_.threads},
           {"seconds", seconds},
           {"steps", steps}};
  WriteFileAtomically((fs::path(options_.work) / "plan.json").string(), plan_.dump(1) + "\n");
}

json ImageLab::Train() {
  if (plan_.is_null()) Plan();
  json runs = json::array();
  double left = 0;
  for (const ImageMethod& method : kImageMethods) {
    left += plan_["steps"][method.name].get<double>() *
            plan_["seconds"][method.name].get<double>() * kValidations;
  }
  for (const ImageMethod& method : kImageMethods) {
    const int64_t steps = plan_["steps"][method.name];
    const double each = plan_["seconds"][method.name];
    std::vector<std::string> flags = Flags(method);
    for (const std::string& flag : Schedule(steps)) flags.push_back(flag);
    const json trained = lab_.Train(method.label, method.name, flags, steps);
    left -= static_cast<double>(steps) * each * kValidations;
    if (left > 1) std::cerr << "about " << FormatSeconds(left) << " of training left\n";
    json curve = json::array();
    double memory = 0;
    for (const json& record : trained.at("metrics")) {
      memory = std::max(memory, record.value("peak_memory", 0.0));
      if (!record.contains("validation_bits_per_dim")) continue;
      curve.push_back({record.at("step"), record.at("validation_bits_per_dim")});
    }
    const json& info = trained.at("info");
    runs.push_back({{"method", method.name},
                    {"steps", steps},
                    {"seconds_an_update", each},
                    {"epochs", info.at("training").at("epochs")},
                    {"parameters", info.at("parameters")},
                    {"peak_memory", memory},
                    {"curve", curve}});
  }
  // Kept beside the models: other experiments ask again.
  const int64_t images = Settings().at("test_images");
  for (size_t m = 0; m < kImageMethods.size(); ++m) {
    const fs::path kept =
        fs::path(options_.work) / StrCat("bits-", kImageMethods[m].name, "-", images, ".json");
    std::error_code error;
    const std::string model = ModelOf(kImageMethods[m]);
    json result;
    if (fs::exists(kept, error)) result = ParseRecord(ReadFile(kept, 1 << 16), kept);
    const json training = RunVerbJson(experiment_, {"info", model, "--json"}).at("training");
    if (!result.is_object() || result.value("training", json()) != training) {
      std::cerr << "measuring bits/dim of " << kImageMethods[m].label << " over " << images
                << " test images\n";
      const json eval =
          RunVerbJson(experiment_, {"eval", model, "--data", data_, "--dataset", setup_.dataset,
                                    "--limit", std::to_string(images), "--json"});
      result = {{"training", training}, {"bits_per_dim", eval.at("bits_per_dim")}};
      WriteFileAtomically(kept.string(), result.dump() + "\n");
    }
    runs[m]["bits_per_dim"] = result.at("bits_per_dim");
  }
  return runs;
}

std::string ImageLab::ModelOf(const ImageMethod& method) const {
  return fs::path(options_.work) / method.name / "model.safetensors";
}

json ImageLab::Settings() const {
  int64_t images = scale_ == "tiny" ? 10 : setup_.test_images;
  if (budget_ > 0) {  // a third of a second an image
    images = std::clamp<int64_t>(static_cast<int64_t>(budget_ / (setup_.equal_time ? 30 : 3)), 10,
                                 images);
  }
  return {{"scale", scale_},
          {"pixel_above", pixel_above_},
          {"seed", options_.seed},
          {"precision", options_.precision},
          {"training_threads", options_.threads},
          {"validation_images", ValidationImages()},
          {"test_images", images}};
}

double ImageLab::SecondsLeft() const {
  return budget_ > 0 ? std::max(0.0, budget_ - watch_.Seconds()) : 1e9;
}

std::string DescribeScale(const ImageSetup& setup, const json& settings) {
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
      settings.at("pixel_above").get<bool>() ? "; every network is given the byte above the next "
                                               "one (`--pixel-above`), the paper's is "
                                               "not"
                                             : "",
      "; LSH with 64 buckets and ", setup.chunks, " chunks of ", setup.chunk);
}

}  // namespace linnet::cli
