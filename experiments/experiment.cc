#include "experiments/experiment.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/figures.h"
#include "experiments/page.h"
#include "linnet/base/embedded_file.h"
#include "linnet/cli/program.h"
#include "linnet/cli/signals.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

std::span<const EmbeddedFile> Pages();  // pages/

double Positive(const json& record, const char* field) {
  const double value = record.at(field);
  if (!(value > 0 && value < 1e18)) throw InputError("'", field, "' must be a number above 0");
  return value;
}

const json* FindRecord(const json& records, const char* key, const json& value) {
  for (const json& record : records) {
    if (record.at(key) == value) return &record;
  }
  return nullptr;
}

namespace {

struct Options {
  std::string from, work, out = ".";
  bool json = false;
};

// Options that every experiment has: --from, --work, --out, --json.
bool IsCommon(const CLI::Option& option) {
  for (const char* name : {"--from", "--work", "--out", "--json", "--help"}) {
    if (option.check_name(name)) return true;
  }
  return false;
}

std::string RenderPage(const Row& row, const Experiment& experiment, const json& record,
                       json values) {
  if (record.is_object()) {
    for (const char* field : {"machine", "date"})
      record.value(field, "");  // throws unless it is a string
    for (const auto& [name, value] : record.items()) values.emplace(name, value);
  }
  if (!values.contains("command")) {
    values["command"] = StrCat("linnet reproduce ", row.name, " --from ", row.name,
                               ".json   # what an earlier run wrote");
  }
  for (const EmbeddedFile& file : Pages()) {
    if (file.name == experiment.Page(row.name) + ".md") return Render(file.bytes, values);
  }
  throw RuntimeError(row.name, ": has no page");
}

json ReadOwnRecord(const Row& row, const Experiment& experiment, const std::string& path) {
  json record = ReadRecord(path);
  const auto wrong = [&](const std::string& why) {
    return InputError(path, ": ", why, "; give the ", row.name, ".json that 'linnet reproduce ",
                      row.name, "' wrote");
  };
  try {
    const std::string of = record.is_object() ? record.value("experiment", row.name) : row.name;
    if (of != row.name) throw InputError("is a record of ", of);
    experiment.Amend(record);
    RenderPage(row, experiment, record, experiment.Draw(record).values);
  } catch (const json::exception&) {
    throw wrong("lacks a field, or has one of another type");
  } catch (const Error& error) {
    throw wrong(error.what());
  }
  return record;
}

void Run(const CLI::App& verb, const Row& row, Experiment& experiment, const Options& options) {
  if (!options.from.empty()) {
    for (const CLI::Option* option : verb.get_options()) {
      if (option->count() == 0 || IsCommon(*option) ||
          option->get_name() == experiment.AmendOption())
        continue;
      throw InputError("--from measures nothing, so ", option->get_name(),
                       " means nothing; give one");
    }
  } else {
    experiment.Check();
  }
  const Results results(row.name, options.out, experiment.Pictures(), experiment.Images());
  const Lab lab(row.name, options.work.empty() ? options.out : options.work);
  json record =
      options.from.empty() ? experiment.Measure(lab) : ReadOwnRecord(row, experiment, options.from);
  if (record.is_object()) {
    record["experiment"] = row.name;
    if (options.from.empty() && !record.contains("command")) {
      record["command"] = StrCat("linnet reproduce ", row.name, GivenOptions(verb));
    }
  }
  const Drawing drawing = experiment.Draw(record);
  const std::string page = RenderPage(row, experiment, record, drawing.values);
  const std::vector<std::string> written = results.Write(record.dump(1) + "\n", page, drawing);
  if (options.from.empty()) lab.Finish();
  if (options.json) return cli::PrintJson({{"out", written}});
  for (const std::string& file : written) std::cout << "wrote " << file << "\n";
}

}  // namespace

std::string GivenOptions(const CLI::App& verb, const std::vector<std::string>& but) {
  std::string given;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || IsCommon(*option) ||
        std::find(but.begin(), but.end(), option->get_name()) != but.end()) {
      continue;
    }
    const std::string type = option->get_type_name();
    std::string values;
    for (const std::string& value : option->results()) {
      const bool path = type == "DIR" || type == "FILE";
      const std::string shown =
          path ? fs::path(value).lexically_normal().filename().string() : value;
      if (path || values.empty()) {
        values += StrCat(" ", option->get_name(), " ", shown);
      } else {
        values += "," + shown;
      }
    }
    given += option->get_items_expected_max() == 0 ? " " + option->get_name() : values;
  }
  return given;
}

void AddExperiment(CLI::App& app, const Row& row) {
  CLI::App* verb = cli::AddVerb(app, row.name, row.summary, row.notes, row.examples);
  const std::shared_ptr<Experiment> experiment = row.make();
  const auto options = std::make_shared<Options>();
  experiment->AddOptions(*verb);
  options->work = experiment->Work(row.name);
  if (!options->work.empty()) {
    cli::AddOption(
        verb, "--work", options->work, "DIR",
        "Folder for trainings and measurements; a stopped command goes on with those it holds");
  }
  if (experiment->DrawsFromRecord()) {
    cli::AddOption(verb, "--from", options->from, "FILE",
                   StrCat("Measure nothing: the ", row.name, ".json of an earlier run"));
  }
  cli::AddOption(verb, "--out", options->out, "DIR",
                 StrCat("The folder for ", row.name, ".md, .json and the pictures"));
  cli::AddJsonFlag(verb, options->json);
  verb->callback([=, &row] { Run(*verb, row, *experiment, *options); });
}

Results::Results(const std::string& name, const std::string& folder,
                 const std::vector<std::string>& pictures, const std::vector<std::string>& images)
    : folder_(folder),
      page_(fs::path(folder) / (name + ".md")),
      record_(fs::path(folder) / (name + ".json")) {
  std::error_code error;
  std::vector<fs::path> made;  // removed again after the test
  for (fs::path path = fs::absolute(folder).lexically_normal();
       !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
    if (path.has_filename()) made.push_back(path);
  }
  fs::create_directories(folder, error);
  if (error) throw InputError(folder, ": cannot make this folder: ", error.message());
  std::vector<std::string> files = {page_, record_};
  for (const std::string& picture : pictures) {
    for (const std::string& file : PictureFiles(folder, picture)) files.push_back(file);
  }
  for (const std::string& image : images) files.push_back(fs::path(folder) / (image + ".png"));
  for (const std::string& file : files) AtomicFile probe(file);
  for (const fs::path& path : made) fs::remove(path, error);
}

std::vector<std::string> Results::Write(const std::string& record, const std::string& page,
                                        const Drawing& drawing) const {
  const cli::SignalsHeld held;
  fs::create_directories(folder_);
  // Draws into a temporary folder first: if one picture fails, all old ones stay.
  struct Aside {
    fs::path folder;
    ~Aside() {
      std::error_code error;
      fs::remove_all(folder, error);
    }
  };
  const Aside aside{fs::path(folder_) / StrCat(".drawing.", getpid())};
  fs::create_directory(aside.folder);
  std::vector<std::string> pictures;
  for (const auto& [name, figure] : drawing.figures) {
    DrawPictures(figure, aside.folder, name);
    for (const std::string& file : PictureFiles(folder_, name)) pictures.push_back(file);
  }
  for (const auto& [name, image] : drawing.images) {
    WritePng(aside.folder / (name + ".png"), image);
    pictures.push_back(fs::path(folder_) / (name + ".png"));
  }
  for (const std::string& file : pictures)
    fs::rename(aside.folder / fs::path(file).filename(), file);
  WriteFileAtomically(record_, record);
  WriteFileAtomically(page_, page);
  pictures.insert(pictures.begin(), {page_, record_});
  return pictures;
}

}  // namespace linnet::experiments
