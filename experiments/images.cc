// The image experiments (section 4.2 of the paper) with softmax, LSH and linear attention:
//   table1, table2                         bits/dim and images per second
//   figure3, figure4, figure6 to figure9   images sampled from the models of these tables, and test
//                                          images completed from their upper half
//   figure5                                training curves of these tables and of table 3
// The experiments of a data set share a folder: the first one trains, the others use its models.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <numeric>

#include "experiments/experiment.h"
#include "experiments/measure.h"
#include "linnet/base/hash.h"
#include "linnet/base/progress.h"
#include "linnet/base/units.h"
#include "linnet/io/file.h"
#include "linnet/io/png.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The options that a plan (see ImageLab) stores. Later calls may change only the last, "threads".
const std::vector<std::string> kPlanned = {"scale",       "budget", "steps",  "precision",
                                           "pixel-above", "seed",   "threads"};
// Seconds. Networks of the paper's size are timed only if more than this is left of the budget.
constexpr double kPaperSeconds = 600;
constexpr int kColumns = 8;                                        // of samples on a sheet
constexpr const char* kTables[] = {"table1", "table2", "table3"};  // with training curves

// Identifies a data set by the number of its test images and a hash of their pixels.
std::string Fingerprint(const ImageSet& test) {
  return StrCat(test.size(), "-", HashDigits(Hash(std::as_bytes(std::span(test.pixels)))));
}

// The folder of the data set: --data, or the first of the usual folders that exists.
std::string DataOf(const Call& call) {
  if (!call.options.at("data").is_null()) return call.options.at("data");
  const std::string dataset = call.about.at("dataset"), title = call.about.at("title");
  std::error_code error;
  for (const fs::path& root : {fs::path(DataRoot()), fs::path("data"), fs::path()}) {
    if (fs::is_directory(root / dataset, error)) return root / dataset;
  }
  throw InputError("--data is missing: name ", title, "'s folder ('linnet data ", dataset,
                   " --to data/", dataset, "/' downloads it)");
}

// The trainings of a data set's methods. The plan, a file in the folder of the trainings, stores
// the options of the call that started them.
class ImageLab {
 public:
  // Throws InputError if the given options or the data differ from the folder's plan.
  explicit ImageLab(const Call& call)
      : call_(call),
        data_(DataOf(call)),
        plan_file_(call.lab.folder() / "plan.json"),
        test_(LoadImages(call.about.at("dataset"), data_, Split::kTest)) {
    constexpr size_t kPublished = 10'000;
    if (Exists(plan_file_)) {
      plan_ = ReadRecord(plan_file_);
      CheckFile(plan_file_, "; choose another --work, or remove this plan", [&] {
        CheckPlan();
        Settings();
      });
      std::cerr << "continuing the plan in " << plan_file_ << "\n";
    } else {
      plan_ = NewPlan();
      if (test_.size() != kPublished) {
        std::cerr << "note: " << data_ << " has " << test_.size()
                  << " test images; the published set has " << kPublished << "\n";
      }
    }
    settings_ = Settings();
  }

  // Trains the methods that are not trained yet. Adds the plan's settings and "runs" to the record:
  // the list of Trained() (measure.h), each run with "bits_per_dim" over the first "test_images"
  // test images. The curves are over the first "validation_images" test images.
  void Train(json& record) {
    MakeFolder(call_.lab.folder());
    WriteRecord(plan_file_, plan_);
    json values = settings_;
    values.update({{"data", data_}, {"budget", plan_.at("budget")}, {"steps", plan_.at("steps")}});
    values["wanted"] = plan_.at("steps").is_null()
                           ? call_.about.at("wanted").at(plan_.at("scale")).get<std::string>()
                           : "steps";
    const Scope about{call_.about};
    record.update(Origin());
    record.update(settings_);
    record["runs"] = Trained(call_, {values, &about}, [&](json& run) {
      // The folder keeps the result, since other experiments share the model.
      const std::string name = run.at("method"), images = settings_.at("test_images").dump();
      run["bits_per_dim"] = call_.lab.Kept(StrCat("bits-", name, ".json"), {run, images}, [&] {
        std::cerr << "measuring bits/dim of " << name << " over " << images << " test images\n";
        const json eval =
            call_.lab.Run({"eval", call_.lab.ModelOf(name), "--data", data_, "--dataset",
                           call_.about.at("dataset"), "--limit", images, "--json"});
        return eval.at("bits_per_dim");
      });
    });
    plan_["spent"] = Spent();
    watch_ = Stopwatch();
    WriteRecord(plan_file_, plan_);
  }

  const ImageSet& test() const { return test_; }
  const std::string& data() const { return data_; }

  // The options given in the call that made the plan, and --work if not the default:
  // " --scale small ...".
  std::string CommandOptions() const {
    const std::string folder = call_.lab.folder(), usual = call_.about.at("work");
    return plan_.at("command").get<std::string>() + (folder == usual ? "" : " --work " + folder);
  }

  // Seconds of the budget that no call has used yet; 1e9 without a budget.
  double SecondsLeft() const {
    if (plan_.at("budget").is_null()) return 1e9;
    return std::max(0.0, ParseSeconds(plan_.at("budget")) - Spent());
  }

 private:
  double Spent() const { return plan_.at("spent").get<double>() + watch_.Seconds(); }

  json NewPlan() const {
    json plan = {{"dataset", call_.about.at("dataset")},
                 {"data", Fingerprint(test_)},
                 {"command", GivenOptions(call_, kPlanned)},
                 {"spent", 0.0}};
    for (const std::string& option : kPlanned) plan[option] = call_.options.at(option);
    const std::string scale = plan["scale"] = call_.Get<std::string>("scale", "small");
    plan["precision"] = call_.Get<std::string>("precision", "fp32");
    plan["pixel-above"] = call_.Get("pixel-above", scale != "paper");
    plan["seed"] = call_.Get("seed", 1);
    return plan;
  }

  void CheckPlan() const {
    CheckRecord(plan_, call_.about.at("plan"));
    const auto other = [](const auto&... planned) {
      throw InputError("the trainings in this folder were planned ", planned...);
    };
    if (plan_.at("dataset") != call_.about.at("dataset") ||
        plan_.at("data") != Fingerprint(test_)) {
      other("with other data");
    }
    for (const std::string& option : kPlanned) {
      const json &given = call_.options.at(option), &planned = plan_.at(option);
      if (given.is_null() || given == planned || option == kPlanned.back()) continue;
      if (planned.is_null()) other("without --", option);
      if (option == "budget" && ParseSeconds(planned) == ParseSeconds(given)) continue;
      other("with --", option, " ",
            planned.is_string() ? planned.get<std::string>() : planned.dump());
    }
  }

  // The plan's settings as fields of a record, used by Trainings().
  json Settings() const {
    const bool tiny = plan_.at("scale") == "tiny", paper = plan_.at("scale") == "paper";
    const bool by_time = call_.about.at("by_time"), budget = !plan_.at("budget").is_null();
    double images = tiny ? 10 : call_.about.at("most_test_images").get<double>();
    if (budget) {  // so few that their bits/dim takes a small part of it
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

  const Call& call_;
  const std::string data_, plan_file_;
  const ImageSet test_;
  Stopwatch watch_;
  json plan_, settings_;
};

// The sentences of a page that describe the networks and trainings of a record.
std::string Trainings(const json& about, const json& record) {
  const Scope outer{about};
  return Fill(about.at("trainings").get<std::string>(), {record, &outer});
}

// The methods trained in a record, each with its "run". If throughputs were measured, only methods
// that have them: "speed" of the trained network, "sized" of a network of the paper's size.
json Rows(const json& about, const json& record) {
  json rows = json::array();
  for (json& row : MethodsRun(about.at("methods"), record.at("runs"))) {
    const json& name = row["name"];
    if (record.contains("throughput")) {
      row["speed"] = FindRecord(record.at("throughput"), "method", name);
      row["sized"] = FindRecord(record.at("paper_throughput"), "method", name);
      if (row["speed"].is_null()) continue;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The methods that a figure of samples shows, from the description.
json Shown(const json& about) {
  json shown = json::array();
  for (const json& name : about.at("shown")) {
    shown.push_back(FindRecord(about.at("methods"), "name", name));
  }
  return shown;
}

// The images that the description's command `verb` ("sample" or "complete") draws with the model of
// a run. The folder caches them until the run or the command changes: LSH takes minutes to draw.
std::vector<Image> Drawn(const Call& call, const ImageLab& lab, const char* verb, size_t count,
                         const json& method, const json& run) {
  const std::string name = method.at("name"), sheet = StrCat(verb, "-", name, "-", count);
  const std::string file = call.lab.folder() / (sheet + ".png");
  const json values = {{"model", call.lab.ModelOf(name)},
                       {"data", lab.data()},
                       {"drawn", count},
                       {"processors", call.Threads()},
                       {"threads", call.options.at("threads")},
                       {"sheet", file}};
  const Scope about{call.about}, of_method{method, &about};
  const std::vector<std::string> arguments = Command(call.about.at(verb), {values, &of_method});
  call.lab.Kept(sheet + ".json", {run, arguments}, [&] {
    std::cerr << "images by " << method.at("label").get<std::string>() << "\n";
    return call.lab.Run(arguments);
  });
  return CutGrid(ReadPng(file), lab.test().width, lab.test().height, /*gap=*/1);
}

void AddSheet(const Call& call, const std::string& name, const std::vector<Image>& images,
              int columns) {
  constexpr int kScale = 3;
  constexpr uint8_t kBetween = 64;  // gray level of gaps
  const std::string file = StrCat(call.about.at("name").get<std::string>(), "-", name, ".png");
  call.pictures->emplace_back(
      file, EncodePng(Grid(images, columns, kScale, /*gap=*/kScale, kBetween), file));
}

// Root mean square differences between images: the mean over all pairs, and the mean over images of
// the difference to the nearest other image.
json VarietyOf(const std::vector<Image>& images) {
  const auto count = static_cast<double>(images.size());
  double pairs = 0, nearest = 0;
  for (const Image& image : images) {
    double least = 1e300;
    for (const Image& other : images) {
      if (&image == &other) continue;
      const double sum = std::transform_reduce(
          image.pixels.begin(), image.pixels.end(), other.pixels.begin(), 0.0, std::plus<>(),
          [](double a, double b) { return (a - b) * (a - b); });
      const double distance = std::sqrt(sum / static_cast<double>(image.pixels.size()));
      pairs += distance / (count * (count - 1));
      least = std::min(least, distance);
    }
    nearest += least / count;
  }
  return {{"pairs", pairs}, {"nearest", nearest}};
}

// Adds a sheet of `count` samples for each method and a sheet of the first `count` test images.
// Adds the variety of each sheet to the record.
void AddSamples(const Call& call, const ImageLab& lab, size_t count, json& record) {
  for (const json& method : Shown(call.about)) {
    const std::string name = method.at("name");
    const json run = FindRecord(record.at("runs"), "method", name);
    const std::vector<Image> made = Drawn(call, lab, "sample", count, method, run);
    AddSheet(call, name + "-samples", made, kColumns);
    json& entry = record["methods"].emplace_back(VarietyOf(made));
    entry["method"] = name, entry["bits_per_dim"] = run.at("bits_per_dim");
  }
  std::vector<Image> real;
  const ImageSet& test = lab.test();
  for (size_t i = 0; i < count; ++i) {
    const std::span<const uint8_t> image = test.image(i);
    real.push_back({test.width, test.height, test.channels, {image.begin(), image.end()}});
  }
  AddSheet(call, "real", real, kColumns);
  record["real"] = VarietyOf(real);
}

// Adds sheets of the first `count` test images: occluded, completed by each method, and original.
void AddCompletions(const Call& call, const ImageLab& lab, size_t count, const json& runs) {
  std::vector<Image> occluded, original;
  for (const json& method : Shown(call.about)) {
    const std::string name = method.at("name");
    const json run = FindRecord(runs, "method", name);
    // `made` has, in order: all occluded images, first completions, second completions, originals.
    const std::vector<Image> made = Drawn(call, lab, "complete", count, method, run);
    std::vector<Image> completed;
    for (size_t i = 0; i < count; ++i) {
      completed.insert(completed.end(), {made.at(count + i), made.at(2 * count + i)});
    }
    AddSheet(call, name + "-completions", completed, 2);
    occluded.assign(made.begin(), made.begin() + static_cast<ptrdiff_t>(count));
    original.assign(made.end() - static_cast<ptrdiff_t>(count), made.end());
  }
  AddSheet(call, "occluded", occluded, 1);
  AddSheet(call, "original", original, 1);
}

}  // namespace

void MeasureImageTable(const Call& call, json& record) {
  ImageLab images(call);
  images.Train(record);
  const std::string table = call.about.at("table");
  record["command"] = StrCat("linnet reproduce ", table, images.CommandOptions());
  record["threads"] = call.Threads();
  json values = {{"folder", call.lab.folder().string()},
                 {"processors", call.Threads()},
                 {"threads", call.options.at("threads")}};
  const Scope about{call.about}, scope{values, &about};
  record["throughput"] = Measured(call, call.about.at("measure"), scope);
  record["paper_throughput"] = json::array();
  if (images.SecondsLeft() <= kPaperSeconds || record.at("scale") == "tiny") return;
  record["paper_throughput"] = Measured(call, call.about.at("measure_paper"), scope);
}

void DeriveImageTable(const json& about, json& values) {
  json& rows = values["rows"] = Rows(about, values);
  values["softmax"] = FindRecord(rows, "name", "softmax");
  if (values["softmax"].is_null()) throw InputError("has no run of softmax");
  values["trainings"] = Trainings(about, values);
  // If trainings were planned for equal times, the page shows the times that they took.
  bool taken = values.at("equal_time");
  for (const json& row : rows) taken = taken && row.at("run").contains("training_seconds");
  values["taken"] = taken;
}

void MeasureSamples(const Call& call, json& record) {
  ImageLab lab(call);
  for (const char* option : {"count", "completions"}) {
    const size_t asked = call.options.at(option), all = lab.test().size();
    if (asked > all) {
      throw InputError(call.about.at("title").get<std::string>(), " has only ", all,
                       " test images in this folder; ask for as many or fewer");
    }
    if (asked > 0) record[option] = asked;
  }
  lab.Train(record);
  record["methods"] = json::array();
  record["command"] = StrCat("linnet reproduce ", call.about.at("name").get<std::string>(),
                             lab.CommandOptions(), GivenOptions(call, {"count", "completions"}));
  if (record.contains("count")) AddSamples(call, lab, record["count"], record);
  if (record.contains("completions"))
    AddCompletions(call, lab, record["completions"], record["runs"]);
}

void DeriveSamples(const json& about, json& values) {
  values["methods"] = WithRuns(Shown(about), values.at("methods"));
  values["trainings"] = Trainings(about, values);
  // The page omits its table of variety for few images, where the nearest one means little.
  values["varied"] = values.value("count", 0) >= kColumns;
}

void MeasureFigure5(const Call& call, json& record) {
  const fs::path folder = call.Get("tables", call.lab.folder().string());
  for (const char* name : kTables) {
    const fs::path path = folder / StrCat(name, ".json");
    if (!Exists(path)) continue;
    record[name] = ReadRecord(path);
    CheckFile(path, "", [&] {
      json values = {{name, record[name]}};
      DeriveFigure5(call.about, values);
    });
  }
  if (record.empty()) {
    throw InputError(folder.string(),
                     ": has none of table1.json, table2.json and table3.json, whose training "
                     "curves figure5 draws; run 'linnet reproduce table1 --out DIR' first");
  }
}

void DeriveFigure5(const json& about, json& values) {
  values["images"] = json::array();
  for (const char* name : kTables) {
    if (!values.contains(name)) continue;
    json table = Describe(name);
    const json &record = values[name], rules = table["record"];
    CheckRecord(record, rules);
    if (table.contains("dataset")) {
      table["trainings"] = Trainings(table, record);
      table.update(record);
      table["rows"] = Rows(table, record);
      table["softmax"] = FindRecord(table["rows"], "name", "softmax");
      values["images"].push_back(table);
    } else {
      values["speech"] = record;
      values["speech"]["rows"] = WithRuns(about.at("speech_methods"), record.at("runs"));
    }
  }
}

}  // namespace linnet::experiments
