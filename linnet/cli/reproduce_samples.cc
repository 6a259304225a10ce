// linnet reproduce figure3, figure4, figure6 to figure9: what the trained models of tables 1 and 2 draw, and
// how they complete images of which the upper half is given.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/child.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/image_lab.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/io/png.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/images/image_set.h"
#include "linnet/tasks/images/images.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Pixels = std::vector<uint8_t>;

struct Options {
  ImageLabOptions lab;
  std::string out = ".";
  int count = 0, completions = 0;
  bool json = false;
};

struct Kind {
  const char* name;
  const ImageSetup& (*setup)();
  bool samples, completions;
  bool every;  // method, else linear alone
  const char* title;
  const char* paper;  // what the paper says of it
};
constexpr Kind kKinds[] = {
    {"figure3", MnistSetup, true, true, false, "MNIST, drawn and completed by linear attention",
     "The paper shows samples with sharp boundaries and no noise, and completions that keep the "
     "style "
     "and the width of the given strokes."},
    {"figure4", CifarSetup, true, true, false, "CIFAR-10, drawn and completed by linear attention",
     "The paper's, after a week on a GPU, are spatially consistent and complete what the upper "
     "half "
     "shows."},
    {"figure6", MnistSetup, true, false, true, "MNIST, drawn by each method",
     "The paper sees no difference in quality between the methods, but significantly fewer "
     "variations among the samples of both Reformers."},
    {"figure7", MnistSetup, false, true, true, "MNIST, completed by each method",
     "The paper: completing is significantly easier than drawing from nothing; all models do it "
     "better."},
    {"figure8", CifarSetup, true, false, true, "CIFAR-10, drawn by each method",
     "The paper sees no difference in quality between the methods, but significantly fewer "
     "variations among the samples of both Reformers."},
    {"figure9", CifarSetup, false, true, true, "CIFAR-10, completed by each method",
     "The paper: completing is significantly easier than drawing from nothing; all models do it "
     "better."},
};

constexpr int kAlternatives = 2, kColumns = 8;
constexpr uint8_t kBetween = 64, kUnknown = 128;

// Images as a model made them, kept in the work folder until the model is another: a Reformer's take minutes.
Pixels Kept(const fs::path& file, const std::string& model, size_t bytes,
            const std::function<Pixels()>& make) {
  std::error_code error;
  if (fs::exists(file, error) && fs::last_write_time(file) >= fs::last_write_time(model)) {
    const std::string kept = ReadFile(file, bytes);
    if (kept.size() == bytes) return {kept.begin(), kept.end()};
  }
  const Pixels made = make();
  WriteFileAtomically(file.string(), std::string(made.begin(), made.end()));
  return made;
}

// How unlike images are: root mean square differences of bytes, over all pairs, and to the nearest other.
struct Variety {
  double pairs = 0, nearest = 0;
};
Variety VarietyOf(std::span<const uint8_t> pixels, size_t bytes) {
  const size_t count = pixels.size() / bytes;
  Variety variety;
  for (size_t i = 0; i < count; ++i) {
    double nearest = 1e300;
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      double sum = 0;
      for (size_t b = 0; b < bytes; ++b) {
        const double off = double{1} * pixels[i * bytes + b] - pixels[j * bytes + b];
        sum += off * off;
      }
      const double distance = std::sqrt(sum / static_cast<double>(bytes));
      variety.pairs += distance / static_cast<double>(count * (count - 1));
      nearest = std::min(nearest, distance);
    }
    variety.nearest += nearest / static_cast<double>(count);
  }
  return variety;
}

struct Drawn {
  const ImageMethod* method;
  Pixels samples, completions;
};

class Sheet {
 public:
  explicit Sheet(const ImageSet& set) : set_(set) {}
  Image Of(std::span<const uint8_t> pixels, int columns) const {
    std::vector<Image> images;
    const size_t bytes = set_.image_bytes();
    for (size_t at = 0; at + bytes <= pixels.size(); at += bytes) {
      const auto image = pixels.subspan(at, bytes);
      images.push_back({set_.width, set_.height, set_.channels, {image.begin(), image.end()}});
    }
    constexpr int kScale = 3;
    return Grid(images, columns, kScale, /*gap=*/kScale, kBetween);
  }

 private:
  const ImageSet& set_;
};

// Both alternatives of an image lie side by side in its row.
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

void Run(const Kind& kind, const Options& options) {
  const ImageSetup& setup = kind.setup();
  std::vector<const ImageMethod*> methods;
  for (const ImageMethod& method : kImageMethods) {
    if (kind.every || method.name == std::string("linear")) methods.push_back(&method);
  }
  std::vector<std::string> names;
  const auto name = [&](const std::string& what) { return StrCat(kind.name, "-", what); };
  for (const ImageMethod* method : methods) {
    if (kind.samples) names.push_back(name(StrCat(method->name, "-samples")));
  }
  if (kind.samples) names.push_back(name("real"));
  if (kind.completions) names.push_back(name("occluded"));
  for (const ImageMethod* method : methods) {
    if (kind.completions) names.push_back(name(StrCat(method->name, "-completions")));
  }
  if (kind.completions) names.push_back(name("original"));
  Results results(kind.name, options.out, {}, names);

  ImageLab lab(kind.name, setup, options.lab);
  const ImageSet& test = lab.test();
  const size_t bytes = test.image_bytes();
  const size_t count = static_cast<size_t>(options.count > 0  ? options.count
                                           : setup.equal_time ? kColumns
                                                              : 4 * kColumns);
  const size_t completed = static_cast<size_t>(options.completions > 0 ? options.completions
                                               : setup.equal_time      ? 4
                                                                       : 8);
  if (std::max(kind.samples ? count : 0, kind.completions ? completed : 0) > test.size()) {
    throw InputError(setup.title, " has ", test.size(),
                     " test images there; ask for as many at most");
  }
  const json runs = lab.Train();
  EndAtSignals();  // what is drawn is drawn here
  const size_t known =
      static_cast<size_t>(test.height / 2) * bytes / static_cast<size_t>(test.height);
  Pixels originals;
  if (kind.completions) {
    originals.assign(test.pixels.begin(),
                     test.pixels.begin() + static_cast<ptrdiff_t>(completed * bytes));
  }
  std::vector<Drawn> drawn;
  for (const ImageMethod* method : methods) {
    const std::string path = lab.ModelOf(*method);
    Drawn images{.method = method, .samples = {}, .completions = {}};
    const auto with_engine = [&](const char* what, const auto& body) {
      const std::string task = StrCat(what, " ", method->label);
      std::cerr << task << "\n";
      Engine engine(Model::Open(path), {.threads = options.lab.threads});
      Pixels made;
      // As many at a time as there are threads, where each byte takes a pass over all before it.
      const auto threads = static_cast<size_t>(engine.pool().size());
      WithProgress(task, [&](const auto& report) {
        SampleOptions sample{.seed = 1, .batch = 64, .progress = &report};
        if (!engine.model().steps()) sample.batch = threads;
        made = body(engine, sample);
      });
      return made;
    };
    const auto file = [&](const char* what, size_t images_of) {
      return fs::path(options.lab.work) / StrCat(what, "-", method->name, "-", images_of, ".bytes");
    };
    if (kind.samples) {
      images.samples = Kept(file("samples", count), path, count * bytes, [&] {
        return with_engine("drawing with", [&](Engine& engine, const SampleOptions& sample) {
          return SampleImages(engine, count, sample);
        });
      });
    }
    if (kind.completions) {
      const size_t size = kAlternatives * completed * bytes;
      images.completions = Kept(file("completions", completed), path, size, [&] {
        return with_engine("completing with", [&](Engine& engine, const SampleOptions& sample) {
          Pixels repeated;
          for (int a = 0; a < kAlternatives; ++a) {
            repeated.insert(repeated.end(), originals.begin(), originals.end());
          }
          return CompleteImages(engine, repeated, known, sample);
        });
      });
    }
    drawn.push_back(images);
  }

  const Sheet sheet(test);
  std::vector<Image> pictures;
  json record = {{"machine", MachineName()}, {"date", Today()}, {"methods", json::array()}};
  record.update(lab.Settings());
  std::string trained = "Trained: ";
  for (const json& run : runs) {
    trained += StrCat(run.at("method").get<std::string>(), " ", Digits(run.at("steps").get<long>()),
                      " updates (", Digits(run.at("epochs").get<double>()), " epochs), ");
  }
  trained.replace(trained.size() - 2, 2, ".");
  record["runs"] = runs;
  const std::string command =
      StrCat("linnet reproduce ", kind.name, lab.CommandFlags(),
             options.count > 0 ? StrCat(" --count ", options.count) : "",
             options.completions > 0 ? StrCat(" --completions ", options.completions) : "");
  std::string page = StrCat(
      "# Figure ", std::string(kind.name).substr(6), ": ", kind.title, "\n\n```\n", command,
      "\n```\n\n",
      Wrapped(StrCat(record["machine"].get<std::string>(), ", ", record["date"].get<std::string>(),
                     ". The models of [table ", setup.equal_time ? 2 : 1, "](", setup.table,
                     ".md): ", DescribeScale(setup, record), " ", trained, " ", kind.paper)),
      "\n");
  const auto image_tag = [&](const std::string& what, const std::string& alt) {
    return StrCat("<img alt=\"", alt, "\" src=\"", name(what), ".png\">");
  };
  if (kind.samples) {
    const Pixels real(test.pixels.begin(),
                      test.pixels.begin() + static_cast<ptrdiff_t>(count * bytes));
    const Variety of_real = VarietyOf(real, bytes);
    std::string table =
        "| | bits/dim | unlike each other, RMS | unlike the nearest other | share of the test "
        "images' |\n|---|---|---|---|---|\n";
    const auto row = [&](const std::string& label, const std::string& bits,
                         const Variety& variety) {
      table +=
          StrCat("| ", label, " | ", bits, " | ", Digits(variety.pairs), " | ",
                 Digits(variety.nearest), " | ", Digits(variety.nearest / of_real.nearest), " |\n");
    };
    page += StrCat("## Drawn from nothing\n\n",
                   Wrapped(StrCat("The first ", count, " of seed 1, none left out.")), "\n");
    for (const Drawn& images : drawn) {
      pictures.push_back(sheet.Of(images.samples, kColumns));
      page += StrCat(images.method->label, ":\n\n",
                     image_tag(StrCat(images.method->name, "-samples"),
                               StrCat("samples of ", images.method->label)),
                     "\n\n");
      const Variety variety = VarietyOf(images.samples, bytes);
      json entry = {
          {"method", images.method->name}, {"pairs", variety.pairs}, {"nearest", variety.nearest}};
      std::string bits;
      for (const json& run : runs) {
        if (run.at("method") == images.method->name) {
          bits = Digits(run.at("bits_per_dim").get<double>());
          entry["bits_per_dim"] = run.at("bits_per_dim");
        }
      }
      record["methods"].push_back(entry);
      row(images.method->label, bits, variety);
    }
    pictures.push_back(sheet.Of(real, kColumns));
    page += StrCat("the first test images:\n\n", image_tag("real", "test images"), "\n\n");
    row("test images", "–", of_real);
    record["real"] = {{"pairs", of_real.pairs}, {"nearest", of_real.nearest}};
    // Of fewer images the nearest other says nothing.
    if (count >= kColumns)
      page += StrCat(
          "## Variety\n\n", table, "\n",
          Wrapped(StrCat(
              "Root mean square differences between the bytes of two images: the mean over "
              "all pairs of ",
              count,
              ", and to the nearest other; the last column says how far a sample is from "
              "its nearest, where 1 is how far test images are. Noise counts as variety too: of "
              "networks this young, far above 1 means images that look like nothing. "
              "Bits/dim are of the first ",
              Digits(record.at("test_images").get<long>()), " test images.")),
          "\n");
  }
  if (kind.completions) {
    Pixels occluded = originals;
    for (size_t i = 0; i < completed; ++i) {
      std::fill_n(occluded.begin() + static_cast<ptrdiff_t>(i * bytes + known), bytes - known,
                  kUnknown);
    }
    pictures.push_back(sheet.Of(occluded, 1));
    std::string head = "| given |", line = "|---|",
                cells = StrCat("| ", image_tag("occluded", "the upper halves"), " |");
    for (const Drawn& images : drawn) {
      pictures.push_back(
          sheet.Of(Interleaved(images.completions, completed, bytes), kAlternatives));
      head += StrCat(" ", images.method->label, ", twice |"), line += "---|";
      cells += StrCat(" ",
                      image_tag(StrCat(images.method->name, "-completions"),
                                StrCat("completions by ", images.method->label)),
                      " |");
    }
    pictures.push_back(sheet.Of(originals, 1));
    page += StrCat("## Completed\n\nThe first ",
                   completed == 1 ? "test image" : StrCat(completed, " test images"),
                   ", of which the upper half is given.\n\n", head, " original |\n", line, "---|\n",
                   cells, " ", image_tag("original", "the originals"), " |\n\n");
  }
  results.Write(record.dump(1) + "\n", page + "The command wrote this page.\n", {}, pictures);
  results.Print(options.json);
}

template <size_t kIndex>
void Add(CLI::App& verb) {
  const Kind& kind = kKinds[kIndex];
  auto options = std::make_shared<Options>();
  AddImageLabOptions(verb, kind.setup(), options->lab);
  if (kind.samples) {
    verb.add_option("--count", options->count, "Images that each method draws")
        ->type_name("N")
        ->check(Between(2, 1000));
  }
  if (kind.completions) {
    verb.add_option("--completions", options->completions, "Images that are completed, twice each")
        ->type_name("N")
        ->check(Between(1, 1000));
  }
  verb.add_option("--out", options->out,
                  StrCat("The folder for ", kind.name, ".md, .json and the pictures"))
      ->type_name("DIR")
      ->capture_default_str();
  AddJsonFlag(&verb, options->json);
  verb.callback([&kind, options] { Run(kind, *options); });
}

constexpr char kNotes[] =
    "Takes the models that the table's experiment trained in --work, or trains them now.\n"
    "Reformer reads everything again for each byte: its images take seconds (MNIST) or a minute\n"
    "(CIFAR-10) each.";

}  // namespace

const Experiment kFigure3 = {"figure3", kKinds[0].title, kNotes,
                             "  linnet reproduce figure3 --out docs/results\n", Add<0>};
const Experiment kFigure4 = {"figure4", kKinds[1].title, kNotes,
                             "  linnet reproduce figure4 --out docs/results\n", Add<1>};
const Experiment kFigure6 = {"figure6", kKinds[2].title, kNotes,
                             "  linnet reproduce figure6 --out docs/results\n", Add<2>};
const Experiment kFigure7 = {"figure7", kKinds[3].title, kNotes,
                             "  linnet reproduce figure7 --out docs/results\n", Add<3>};
const Experiment kFigure8 = {"figure8", kKinds[4].title, kNotes,
                             "  linnet reproduce figure8 --out docs/results\n", Add<4>};
const Experiment kFigure9 = {"figure9", kKinds[5].title, kNotes,
                             "  linnet reproduce figure9 --out docs/results\n", Add<5>};

}  // namespace linnet::cli
