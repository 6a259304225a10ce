// linnet reproduce figure3, figure4, figure6 to figure9: images sampled from the models of tables 1
// and 2, and test images completed from their upper half.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <span>

#include "experiments/experiment.h"
#include "experiments/image_lab.h"
#include "linnet/cli/child.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"
#include "linnet/engine.h"
#include "linnet/io/file.h"
#include "linnet/io/png.h"
#include "linnet/tasks/images/images.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using Pixels = std::vector<uint8_t>;

constexpr int kAlternatives = 2, kColumns = 8;
constexpr uint8_t kBetween = 64, kUnknown = 128;  // gray levels of gaps and of missing halves

// Root mean square differences between images of `bytes` bytes: the mean over all pairs, and the
// mean over images of the difference to the nearest other image.
json VarietyOf(std::span<const uint8_t> pixels, size_t bytes) {
  const size_t count = pixels.size() / bytes;
  double pairs = 0, nearest = 0;
  for (size_t i = 0; i < count; ++i) {
    double least = 1e300;
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      double sum = 0;
      for (size_t b = 0; b < bytes; ++b) {
        const double off = double{1} * pixels[i * bytes + b] - pixels[j * bytes + b];
        sum += off * off;
      }
      const double distance = std::sqrt(sum / static_cast<double>(bytes));
      pairs += distance / static_cast<double>(count * (count - 1));
      least = std::min(least, distance);
    }
    nearest += least / static_cast<double>(count);
  }
  return {{"pairs", pairs}, {"nearest", nearest}};
}

// Reorders completions so that the alternatives of an image are neighbors.
Pixels Interleaved(const Pixels& completions, size_t images, size_t bytes) {
  Pixels rows;
  for (size_t i = 0; i < images; ++i) {
    for (size_t a = 0; a < kAlternatives; ++a) {
      const auto from = completions.begin() + static_cast<ptrdiff_t>((a * images + i) * bytes);
      rows.insert(rows.end(), from, from + static_cast<ptrdiff_t>(bytes));
    }
  }
  return rows;
}

// The described methods that a figure shows.
json Shown(const json& about) {
  json shown = json::array();
  for (const json& name : about.at("shown")) {
    shown.push_back(FindRecord(about.at("methods"), "name", name));
  }
  return shown;
}

// Samples and completes images for one call.
class Sampler {
 public:
  Sampler(const Call& call, const ImageSet& test)
      : call_(call), test_(test), bytes_(test.image_bytes()) {}

  // Adds a sheet of `count` samples for each method, and the differences between samples to the
  // record.
  void AddSamples(size_t count, json& record) const {
    for (const json& method : Shown(call_.about)) {
      const Pixels made = Made(method, "samples", "sampling with", count, count * bytes_,
                               [&](Engine& engine, const SampleOptions& sample) {
                                 return SampleImages(engine, count, sample);
                               });
      const std::string name = method.at("name");
      AddSheet(name + "-samples", made, kColumns);
      json entry = VarietyOf(made, bytes_);
      entry["method"] = name;
      entry["bits_per_dim"] = FindRecord(record.at("runs"), "method", name).at("bits_per_dim");
      record["methods"].push_back(entry);
    }
    const std::span<const uint8_t> real(test_.pixels.data(), count * bytes_);
    AddSheet("real", real, kColumns);
    record["real"] = VarietyOf(real, bytes_);
  }

  // Adds sheets of the first `count` test images: occluded, completed by each method, and original.
  void AddCompletions(size_t count) const {
    const auto height = static_cast<size_t>(test_.height), known = height / 2 * bytes_ / height;
    const Pixels originals(test_.pixels.begin(),
                           test_.pixels.begin() + static_cast<ptrdiff_t>(count * bytes_));
    Pixels occluded = originals, repeated;
    for (size_t i = 0; i < count; ++i) {
      std::fill_n(occluded.begin() + static_cast<ptrdiff_t>(i * bytes_ + known), bytes_ - known,
                  kUnknown);
    }
    for (int a = 0; a < kAlternatives; ++a) {
      repeated.insert(repeated.end(), originals.begin(), originals.end());
    }
    AddSheet("occluded", occluded, 1);
    for (const json& method : Shown(call_.about)) {
      const Pixels made = Made(method, "completions", "completing with", count, repeated.size(),
                               [&](Engine& engine, const SampleOptions& sample) {
                                 return CompleteImages(engine, repeated, known, sample);
                               });
      AddSheet(method.at("name").get<std::string>() + "-completions",
               Interleaved(made, count, bytes_), kAlternatives);
    }
    AddSheet("original", originals, 1);
  }

 private:
  void AddSheet(const std::string& name, std::span<const uint8_t> pixels, int columns) const {
    constexpr int kScale = 3;
    std::vector<Image> images;
    for (size_t at = 0; at + bytes_ <= pixels.size(); at += bytes_) {
      const auto image = pixels.subspan(at, bytes_);
      images.push_back({test_.width, test_.height, test_.channels, {image.begin(), image.end()}});
    }
    call_.images->emplace_back(StrCat("figure", call_.about.at("number").get<int>(), "-", name),
                               Grid(images, columns, kScale, /*gap=*/kScale, kBetween));
  }

  // Images made by a model. The folder caches them until the model changes, since Reformer takes
  // minutes.
  template <class Body>
  Pixels Made(const json& method, const char* what, const char* doing, size_t count, size_t bytes,
              const Body& body) const {
    const std::string name = method.at("name"), label = method.at("label");
    const std::string path = call_.lab.ModelOf(name);
    const fs::path file = call_.lab.folder() / StrCat(what, "-", name, "-", count, ".bytes");
    std::error_code error;
    if (fs::exists(file, error) && fs::last_write_time(file) >= fs::last_write_time(path)) {
      const std::string kept = ReadFile(file, bytes);
      if (kept.size() == bytes) return {kept.begin(), kept.end()};
    }
    const std::string task = StrCat(doing, " ", label);
    std::cerr << task << "\n";
    Engine engine(Model::Open(path), {.threads = call_.options.at("threads").get<int>()});
    Pixels made;
    cli::WithProgress(task, [&](const auto& report) {
      SampleOptions sample{.seed = 1, .batch = 64, .progress = report};
      // Without a state every byte takes a pass over all earlier ones; one image per thread is
      // best.
      if (!engine.model().steps()) sample.batch = static_cast<size_t>(engine.threads());
      made = body(engine, sample);
    });
    WriteFileAtomically(file, std::string(made.begin(), made.end()));
    return made;
  }

  const Call& call_;
  const ImageSet& test_;
  const size_t bytes_;
};

}  // namespace

void MeasureSamples(const Call& call, json& record) {
  ImageLab images(call);
  const std::string name = StrCat("figure", call.about.at("number").get<int>());
  std::string given;
  for (const char* option : {"count", "completions"}) {
    if (!call.options.contains(option)) continue;
    const size_t asked = call.options.at(option);
    if (asked > images.test().size()) {
      throw InputError(call.about.at("title").get<std::string>(), " has only ",
                       images.test().size(),
                       " test images in this folder; ask for as many or fewer");
    }
    record[option] = asked;
    const std::string flag = StrCat("--", option);
    if (call.verb.get_option(flag)->count() > 0) given += StrCat(" ", flag, " ", asked);
  }
  record.update(Origin());
  record.update(images.settings());
  record["runs"] = images.Train();
  record["methods"] = json::array();
  record["command"] = StrCat("linnet reproduce ", name, images.CommandOptions(), given);
  cli::EndAtSignals();  // there are no more child processes
  const Sampler sampler(call, images.test());
  if (record.contains("count")) sampler.AddSamples(record["count"], record);
  if (record.contains("completions")) sampler.AddCompletions(record["completions"]);
}

void DeriveSamples(const json& about, json& values) {
  values["methods"] = WithRuns(Shown(about), values.at("methods"));
  values["trainings"] = Trainings(about, values);
  // The nearest distance means little for few images.
  values["varied"] = values.value("count", 0) >= kColumns;
}

}  // namespace linnet::experiments
