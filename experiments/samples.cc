// linnet reproduce figure3, figure4, figure6 to figure9: images sampled from the models of tables 1
// and 2, and completions of images whose upper half is given.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <span>

#include "experiments/experiment.h"
#include "experiments/image_lab.h"
#include "experiments/page.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/child.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/io/png.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/images/images.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Pixels = std::vector<uint8_t>;

constexpr int kAlternatives = 2, kColumns = 8;
constexpr uint8_t kBetween = 64, kUnknown = 128;

// Root-mean-square differences between images in bytes: over all pairs, and to the nearest other
// image.
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

// Places both alternatives of an image side by side in one row.
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

Image Sheet(const ImageSet& set, std::span<const uint8_t> pixels, int columns) {
  constexpr int kScale = 3;
  std::vector<Image> images;
  const size_t bytes = set.image_bytes();
  for (size_t at = 0; at + bytes <= pixels.size(); at += bytes) {
    const auto image = pixels.subspan(at, bytes);
    images.push_back({set.width, set.height, set.channels, {image.begin(), image.end()}});
  }
  return Grid(images, columns, kScale, /*gap=*/kScale, kBetween);
}

struct Kind {
  const char* name;
  const ImageSetup& (*setup)();
  bool samples, completions;
  bool every;  // all methods; else linear alone
  const char *title, *paper;
};
constexpr char kVariations[] =
    "The paper sees no difference in quality between the methods, but significantly fewer "
    "variations among the "
    "samples of both Reformers.";
constexpr char kEasier[] =
    "The paper: completing is significantly easier than drawing from nothing; all models do it "
    "better.";
constexpr Kind kKinds[] = {
    {"figure3", MnistSetup, true, true, false, "MNIST, drawn and completed by linear attention",
     "The paper shows samples with sharp boundaries and no noise, and completions that keep the "
     "style and the "
     "width of the given strokes."},
    {"figure4", CifarSetup, true, true, false, "CIFAR-10, drawn and completed by linear attention",
     "The paper's, after a week on a GPU, are spatially consistent and complete what the upper "
     "half shows."},
    {"figure6", MnistSetup, true, false, true, "MNIST, drawn by each method", kVariations},
    {"figure7", MnistSetup, false, true, true, "MNIST, completed by each method", kEasier},
    {"figure8", CifarSetup, true, false, true, "CIFAR-10, drawn by each method", kVariations},
    {"figure9", CifarSetup, false, true, true, "CIFAR-10, completed by each method", kEasier},
};

class Samples : public Experiment {
 public:
  explicit Samples(const Kind& kind) : kind_(kind), setup_(kind.setup()) {
    for (const ImageMethod& method : kImageMethods) {
      if (kind.every || &method == &kLinearImages) methods_.push_back(&method);
    }
  }

  void AddOptions(CLI::App& verb) override {
    options_.Add(verb, setup_);
    count_ = setup_.equal_time ? kColumns : 4 * kColumns;
    completed_ = setup_.equal_time ? 4 : 8;
    const auto number = [&](const char* name, size_t& value, const char* help, double least) {
      cli::AddOption(&verb, name, value, "N", help, cli::Between(least, 1000));
    };
    if (kind_.samples) number("--count", count_, "Images that each method draws", 2);
    if (kind_.completions)
      number("--completions", completed_, "Images that are completed, twice each", 1);
  }

  std::string Page(const std::string&) const override { return "samples"; }
  std::string Work(const std::string&) const override { return StrCat("runs/", setup_.table); }
  std::vector<std::string> Pictures() const override { return {}; }
  std::vector<std::string> Images() const override {
    std::vector<std::string> names;
    for (const ImageMethod* method : methods_) {
      if (kind_.samples) names.push_back(Name(method, "samples"));
      if (kind_.completions) names.push_back(Name(method, "completions"));
    }
    for (const char* what : {"real", "occluded", "original"}) {
      if (what == std::string("real") ? kind_.samples : kind_.completions)
        names.push_back(StrCat(kind_.name, "-", what));
    }
    return names;
  }
  bool DrawsFromRecord() const override { return false; }

  json Measure(const Lab& lab) override {
    ImageLab images(lab, setup_, options_);
    const ImageSet& test = images.test();
    const size_t asked = std::max(kind_.samples ? count_ : 0, kind_.completions ? completed_ : 0);
    if (asked > test.size()) {
      throw InputError(setup_.title, " has ", test.size(),
                       " test images there; ask for as many at most");
    }
    json record = {
        {"machine", cli::MachineName()},
        {"date", cli::Today()},
        {"runs", images.Train()},
        {"methods", json::array()},
        {"command", StrCat("linnet reproduce ", kind_.name, images.CommandOptions(),
                           Given("--count", count_), Given("--completions", completed_))}};
    record.update(images.Settings());
    cli::EndAtSignals();  // from here on this process does the work itself
    if (kind_.samples) AddSamples(lab, images, record);
    if (kind_.completions) AddCompletions(lab, images);
    return record;
  }

  Drawing Draw(const json& record) const override {
    json methods = json::array(), trained = json::array();
    for (const ImageMethod* method : methods_) {
      methods.push_back({{"method", method->name}, {"label", method->label}});
      if (const json* entry = FindRecord(record.at("methods"), "method", method->name)) {
        methods.back().update(*entry);
        methods.back()["share"] =
            entry->at("nearest").get<double>() / record.at("real").at("nearest").get<double>();
      }
    }
    for (const json& run : record.at("runs")) {
      trained.push_back({{"before", trained.empty() ? "" : ", "},
                         {"method", run.at("method")},
                         {"steps", run.at("steps")},
                         {"epochs", run.at("epochs")}});
    }
    return {.values = {{"number", std::string(kind_.name).substr(6)},
                       {"name", kind_.name},
                       {"title", kind_.title},
                       {"paper", kind_.paper},
                       {"table", setup_.table},
                       {"table_number", setup_.equal_time ? 2 : 1},
                       {"trainings", DescribeTrainings(setup_, record)},
                       {"trained", trained},
                       {"methods", methods},
                       {"samples", kind_.samples},
                       {"count", count_},
                       {"varied", count_ >= kColumns},  // too few for a meaningful nearest distance
                       {"completions", kind_.completions},
                       {"completed",
                        completed_ == 1 ? "test image" : StrCat(completed_, " test images")}},
            .images = images_};
  }

 private:
  std::string Name(const ImageMethod* method, const char* what) const {
    return StrCat(kind_.name, "-", method->name, "-", what);
  }
  std::string Given(const char* name, size_t value) const {
    const CLI::Option* option = options_.verb->get_option_no_throw(name);
    return option != nullptr && option->count() > 0 ? StrCat(" ", name, " ", value) : "";
  }

  // Images made by a model, cached in the folder until the model changes: Reformer takes minutes.
  template <class Body>
  Pixels Made(const Lab& lab, const ImageLab& images, const ImageMethod& method, const char* what,
              const char* doing, size_t count, size_t bytes, const Body& body) const {
    const std::string path = images.ModelOf(method);
    const fs::path file = lab.folder() / StrCat(what, "-", method.name, "-", count, ".bytes");
    std::error_code error;
    if (fs::exists(file, error) && fs::last_write_time(file) >= fs::last_write_time(path)) {
      const std::string kept = ReadFile(file, bytes);
      if (kept.size() == bytes) return {kept.begin(), kept.end()};
    }
    const std::string task = StrCat(doing, " ", method.label);
    std::cerr << task << "\n";
    Engine engine(Model::Open(path), {.threads = options_.threads});
    Pixels made;
    cli::WithProgress(task, [&](const auto& report) {
      SampleOptions sample{.seed = 1, .batch = 64, .progress = &report};
      // Without a state every byte takes a pass over all earlier ones; then one image per thread.
      if (!engine.model().steps()) sample.batch = static_cast<size_t>(engine.pool().size());
      made = body(engine, sample);
    });
    WriteFileAtomically(file, std::string(made.begin(), made.end()));
    return made;
  }

  void AddSamples(const Lab& lab, const ImageLab& images, json& record) {
    const ImageSet& test = images.test();
    const size_t bytes = test.image_bytes();
    for (const ImageMethod* method : methods_) {
      const Pixels made = Made(lab, images, *method, "samples", "drawing with", count_,
                               count_ * bytes, [&](Engine& engine, const SampleOptions& sample) {
                                 return SampleImages(engine, count_, sample);
                               });
      images_.emplace_back(Name(method, "samples"), Sheet(test, made, kColumns));
      json entry = VarietyOf(made, bytes);
      entry["method"] = method->name;
      entry["bits_per_dim"] =
          FindRecord(record.at("runs"), "method", method->name)->at("bits_per_dim");
      record["methods"].push_back(entry);
    }
    const std::span<const uint8_t> real(test.pixels.data(), count_ * bytes);
    images_.emplace_back(StrCat(kind_.name, "-real"), Sheet(test, real, kColumns));
    record["real"] = VarietyOf(real, bytes);
  }

  void AddCompletions(const Lab& lab, const ImageLab& images) {
    const ImageSet& test = images.test();
    const size_t bytes = test.image_bytes();
    const size_t known =
        static_cast<size_t>(test.height / 2) * bytes / static_cast<size_t>(test.height);
    const Pixels originals(test.pixels.begin(),
                           test.pixels.begin() + static_cast<ptrdiff_t>(completed_ * bytes));
    Pixels occluded = originals, repeated;
    for (size_t i = 0; i < completed_; ++i) {
      std::fill_n(occluded.begin() + static_cast<ptrdiff_t>(i * bytes + known), bytes - known,
                  kUnknown);
    }
    for (int a = 0; a < kAlternatives; ++a)
      repeated.insert(repeated.end(), originals.begin(), originals.end());
    images_.emplace_back(StrCat(kind_.name, "-occluded"), Sheet(test, occluded, 1));
    for (const ImageMethod* method : methods_) {
      const Pixels made = Made(lab, images, *method, "completions", "completing with", completed_,
                               repeated.size(), [&](Engine& engine, const SampleOptions& sample) {
                                 return CompleteImages(engine, repeated, known, sample);
                               });
      images_.emplace_back(Name(method, "completions"),
                           Sheet(test, Interleaved(made, completed_, bytes), kAlternatives));
    }
    images_.emplace_back(StrCat(kind_.name, "-original"), Sheet(test, originals, 1));
  }

  const Kind& kind_;
  const ImageSetup& setup_;
  std::vector<const ImageMethod*> methods_;
  ImageOptions options_;
  size_t count_ = 0, completed_ = 0;
  std::vector<std::pair<std::string, Image>> images_;
};

template <size_t kIndex>
std::shared_ptr<Experiment> MakeSamples() {
  return std::make_shared<Samples>(kKinds[kIndex]);
}

constexpr char kNotes[] =
    "Takes the models that the table's experiment trained in --work, or trains them now.\n"
    "Reformer reads everything again for each byte: its images take seconds (MNIST) or a minute\n"
    "(CIFAR-10) each.";

}  // namespace

const Row kFigure3 = {"figure3", kKinds[0].title, kNotes,
                      "  linnet reproduce figure3 --out docs/results\n", MakeSamples<0>};
const Row kFigure4 = {"figure4", kKinds[1].title, kNotes,
                      "  linnet reproduce figure4 --out docs/results\n", MakeSamples<1>};
const Row kFigure6 = {"figure6", kKinds[2].title, kNotes,
                      "  linnet reproduce figure6 --out docs/results\n", MakeSamples<2>};
const Row kFigure7 = {"figure7", kKinds[3].title, kNotes,
                      "  linnet reproduce figure7 --out docs/results\n", MakeSamples<3>};
const Row kFigure8 = {"figure8", kKinds[4].title, kNotes,
                      "  linnet reproduce figure8 --out docs/results\n", MakeSamples<4>};
const Row kFigure9 = {"figure9", kKinds[5].title, kNotes,
                      "  linnet reproduce figure9 --out docs/results\n", MakeSamples<5>};

}  // namespace linnet::experiments
