#include "experiments/image_lab.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "experiments/measure.h"
#include "linnet/base/units.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The options that a plan fixes for all calls in its folder.
constexpr const char* kFixed[] = {"scale", "budget", "steps", "precision", "pixel-above", "seed"};

// Identifies a data set by its number of test images and a hash of the first 100.
std::string Fingerprint(const ImageSet& test) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const size_t bytes = std::min<size_t>(100, test.size()) * test.image_bytes();
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ test.pixels[i]) * 1099511628211u;
  return StrCat(test.size(), "-", hash);
}

// Finds the data set's folder if --data is not given.
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
      data_(call.options.at("data").is_null() ? FindData(call.about)
                                              : call.options.at("data").get<std::string>()),
      plan_file_(call.lab.folder() / "plan.json"),
      test_(LoadImages(call.about.at("dataset"), data_, Split::kTest)) {
  constexpr size_t kPublished = 10'000;
  std::error_code error;
  if (fs::exists(plan_file_, error)) {
    plan_ = ReadRecord(plan_file_);
    CheckPlan();
    std::cerr << "going on with what was planned in " << plan_file_ << "\n";
  } else {
    plan_ = NewPlan();
    if (test_.size() != kPublished) {
      std::cerr << "note: " << data_ << " has " << test_.size()
                << " test images; the published set has " << kPublished << "\n";
    }
  }
  settings_ = Settings();
}

json ImageLab::NewPlan() const {
  json plan = {{"dataset", call_.about.at("dataset")},
               {"data", Fingerprint(test_)},
               {"command", GivenOptions(call_.verb, {"--data", "--count", "--completions"})},
               {"threads", call_.options.at("threads")},
               {"spent", 0.0}};
  for (const char* option : kFixed) plan[option] = call_.options.at(option);
  const std::string scale = plan["scale"] = call_.Get<std::string>("scale", "small");
  plan["precision"] = call_.Get<std::string>("precision", "fp32");
  plan["pixel-above"] = call_.Get("pixel-above", scale != "paper");
  plan["seed"] = call_.Get("seed", 1);
  return plan;
}

void ImageLab::CheckPlan() const {
  CheckFile(plan_file_, "; remove this plan, or choose another --work", [&] {
    CheckRecord(plan_, {{"command", "text"},
                        {"precision", "text"},
                        {"seed", "whole"},
                        {"spent", "0 or more"},
                        {"threads", "0 or more"}});
    call_.about.at("wanted").at(plan_.at("scale"));
    plan_.at("pixel-above").get<bool>();
    if (!plan_.at("steps").is_null()) CheckRecord(plan_, {{"steps", "whole"}});
    if (!plan_.at("budget").is_null()) ParseSeconds(plan_.at("budget"));
  });
  const auto other = [&](const auto&... planned) {
    throw InputError(plan_file_, ": the trainings in this folder were planned ", planned...,
                     "; choose another --work");
  };
  if (plan_.at("dataset") != call_.about.at("dataset") || plan_.at("data") != Fingerprint(test_)) {
    other("with other data");
  }
  for (const std::string option : kFixed) {
    const json &given = call_.options.at(option), &planned = plan_.at(option);
    if (given.is_null() || given == planned) continue;
    if (planned.is_null()) other("without --", option);
    if (option == "budget" && ParseSeconds(planned) == ParseSeconds(given)) continue;
    other("with --", option, " ",
          planned.is_string() ? planned.get<std::string>() : planned.dump());
  }
}

json ImageLab::Settings() const {
  const bool tiny = plan_.at("scale") == "tiny", paper = plan_.at("scale") == "paper";
  const bool by_time = call_.about.at("by_time"), budget = !plan_.at("budget").is_null();
  double images = tiny ? 10 : call_.about.at("most_test_images").get<double>();
  if (budget) {  // measuring takes a small part of the budget
    const double affordable = ParseSeconds(plan_.at("budget")) / (by_time ? 30 : 3);
    images = std::clamp(std::floor(affordable), 10.0, images);
  }
  return {{"scale", plan_.at("scale")},
          {"equal_time", by_time && plan_.at("steps").is_null() && !tiny && (budget || !paper)},
          {"pixel_above", plan_.at("pixel-above")},
          {"seed", plan_.at("seed")},
          {"precision", plan_.at("precision")},
          {"training_threads", plan_.at("threads")},
          {"validation_images", tiny ? json(10) : call_.about.at("curve_images")},
          {"test_images", std::min(static_cast<size_t>(images), test_.size())}};
}

json ImageLab::Train() {
  fs::create_directories(call_.lab.folder());
  WriteRecord(plan_file_, plan_);
  json values = settings_;
  values.update({{"data", data_}, {"budget", plan_.at("budget")}, {"steps", plan_.at("steps")}});
  values["wanted"] = plan_.at("steps").is_null()
                         ? call_.about.at("wanted").at(plan_.at("scale")).get<std::string>()
                         : "steps";
  const Scope about{call_.about};
  const json runs = Trained(call_, {values, &about}, [&](const json& method, json& run) {
    // The folder keeps the result, since other experiments share the model.
    const std::string name = method.at("name"), images = settings_.at("test_images").dump();
    run["bits_per_dim"] = call_.lab.Kept(StrCat("bits-", name, ".json"), {run, images}, [&] {
      std::cerr << "measuring bits/dim of " << name << " over " << images << " test images\n";
      const json eval =
          call_.lab.Run({"eval", call_.lab.ModelOf(name), "--data", data_, "--dataset",
                         call_.about.at("dataset"), "--limit", images, "--json"});
      return eval.at("bits_per_dim");
    });
  });
  plan_["spent"] = plan_["spent"].get<double>() + watch_.Seconds();
  watch_ = Stopwatch();
  WriteRecord(plan_file_, plan_);
  return runs;
}

std::string ImageLab::CommandOptions() const {
  const std::string folder = call_.lab.folder(), usual = call_.about.at("work");
  return plan_.at("command").get<std::string>() + (folder == usual ? "" : " --work " + folder);
}

double ImageLab::SecondsLeft() const {
  if (plan_.at("budget").is_null()) return 1e9;
  const double spent = plan_.at("spent").get<double>() + watch_.Seconds();
  return std::max(0.0, ParseSeconds(plan_.at("budget")) - spent);
}

std::string Trainings(const json& about, const json& record) {
  const Scope outer{about};
  return Fill(about.at("trainings").get<std::string>(), {record, &outer});
}

}  // namespace linnet::experiments
