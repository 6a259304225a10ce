#include "experiments/experiment.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/figures.h"
#include "experiments/page.h"
#include "linnet/base/embedded_file.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/program.h"
#include "linnet/cli/signals.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

std::span<const EmbeddedFile> Pages();  // pages/

namespace {

std::string_view PageFile(const std::string& name) {
  for (const EmbeddedFile& file : Pages()) {
    if (file.name == name) return file.bytes;
  }
  throw RuntimeError("there is no pages/", name);
}

// Options that every experiment has: --from, --work, --out, --json.
bool IsCommon(const CLI::Option& option) {
  for (const char* name : {"--from", "--work", "--out", "--json", "--help"}) {
    if (option.check_name(name)) return true;
  }
  return false;
}

std::string Lines(const json& lines) {
  std::string text;
  for (const json& line : lines) text += line.get<std::string>() + "\n";
  return text;
}

void AddDescribedOption(CLI::App& verb, const json& option, const Scope& about, json& options) {
  const std::string name = option.at("name");
  const std::string help = Fill(option.at("help").get<std::string>(), about);
  const json usual = option.value("default", json());
  json& value = options[name.substr(2, name.find(',') - 2)];
  value = usual;
  if (option.contains("flag")) {
    verb.add_flag_function(
        name, [&value](int64_t given) { value = given > 0; }, help);
    return;
  }
  const auto keep = [&value](const auto& given) { value = given; };
  const json range = option.value("range", json());
  const bool real = option.contains("real"), many = option.contains("many");
  CLI::Option* added = many   ? verb.add_option_function<std::vector<std::string>>(name, keep, help)
                       : real ? verb.add_option_function<double>(name, keep, help)
                       : !range.is_null() ? verb.add_option_function<int64_t>(name, keep, help)
                                          : verb.add_option_function<std::string>(name, keep, help);
  added->type_name(option.at("type"));
  if (!range.is_null()) added->check(cli::Between(range.at(0), range.at(1)));
  if (option.contains("choices")) {
    added->check(CLI::IsMember(option.at("choices").get<std::vector<std::string>>()));
  }
  if (many && option.at("many") == ",") added->delimiter(',')->allow_extra_args(false);
  if (many && option.at("many") == true) {
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  if (option.contains("excludes")) {
    added->excludes(verb.get_option(option.at("excludes").get<std::string>()));
  }
  if (help.find("default") != help.npos || usual.is_null()) return;
  added->default_str(usual.is_string() ? usual.get<std::string>() : StrCat(usual.get<double>()));
}

struct CommonOptions {
  std::string from, work, out = ".";
  bool json = false;
};

// An experiment as a verb.
class Runner {
 public:
  Runner(CLI::App& app, const Experiment& experiment)
      : experiment_(experiment),
        about_(Describe(experiment.name)),
        verb_(*AddDescribedVerb(app, experiment.name, about_, options_)) {
    const std::string name = experiment.name;
    common_.work = about_.value("work", "runs/" + name);
    if (!common_.work.empty()) {
      cli::AddOption(
          &verb_, "--work", common_.work, "DIR",
          "Folder for trainings and measurements; a stopped command resumes with its contents");
    }
    cli::AddOption(&verb_, "--from", common_.from, "FILE",
                   StrCat("Measure nothing: write the page and plots of this ", name, ".json"));
    cli::AddOption(&verb_, "--out", common_.out, "DIR",
                   StrCat("Folder for ", name, ".md, .json and the pictures"));
    cli::AddJsonFlag(&verb_, common_.json);
  }

  void Run() const {
    const std::string name = experiment_.name;
    const bool measures = common_.from.empty();
    json amended = json::object();
    for (const json& option : about_.value("options", json::array())) CheckOption(option, amended);
    const Results results(name, common_.out,
                          about_.value("pictures", std::vector<std::string>{name}),
                          about_.value("images", std::vector<std::string>{}));
    const Lab lab(name, common_.work.empty() ? common_.out : common_.work);
    Images images;
    std::vector<NamedFigure> figures;
    std::string page;
    json record = amended;
    if (measures) {
      experiment_.measure({about_, options_, verb_, lab, &images}, record);
      record.emplace("command", StrCat("linnet reproduce ", name, GivenOptions(verb_)));
      record["experiment"] = name;
      page = Draw(record, figures);
    } else {
      record = ReadRecord(common_.from);
      page = DrawOwn(amended, record, figures);
    }
    const std::vector<std::string> written =
        results.Write(record.dump(1) + "\n", page, figures, images);
    if (measures) lab.Finish();
    if (common_.json) return cli::PrintJson({{"out", written}});
    for (const std::string& file : written) std::cout << "wrote " << file << "\n";
  }

 private:
  // Checks an option before anything is measured. If it amends the record, reads and checks its
  // file.
  void CheckOption(const json& described, json& amended) const {
    const std::string name = described.at("name"), flag = name.substr(0, name.find(','));
    const json& value = options_.at(flag.substr(2));
    if (common_.from.empty() && value.is_null() && described.contains("missing")) {
      throw InputError(flag, " is missing: ", described.at("missing").get<std::string>());
    }
    if (described.contains("amends")) {
      if (value.is_null()) return;
      const std::string field = flag.substr(2);
      amended[field] = ReadRecord(value.get<std::string>());
      for (const auto& [path, rule] : about_.at("record").items()) {
        if (path.starts_with(field + ".")) CheckRecord(amended, {{path, rule}});
      }
    } else if (!common_.from.empty() && verb_.get_option(flag)->count() > 0) {
      throw InputError("--from measures nothing, so ", flag,
                       " has no effect; give only one of them");
    }
  }

  // Returns the page of a record; `figures` receives its figures.
  std::string Draw(const json& record, std::vector<NamedFigure>& figures) const {
    const std::string name = experiment_.name;
    json values = record.is_array() ? json{{"records", record}} : record;
    CheckRecord(values, about_.value("record", json::object()));
    values["name"] = name;
    if (experiment_.derive != nullptr) experiment_.derive(about_, values);
    CheckRecord(values, {{"machine?", "text"}, {"date?", "text"}});
    values.emplace("command", StrCat("linnet reproduce ", name, " --from ", name,
                                     ".json   # the record of an earlier run"));
    const Scope about{about_}, scope{values, &about};
    figures = DescribedFigures(about_.value("figures", json::array()), scope);
    return Render(PageFile(about_.value("page", name) + ".md"), scope);
  }

  // As Draw(), for the record named by --from, which may be invalid.
  std::string DrawOwn(const json& amended, json& record, std::vector<NamedFigure>& figures) const {
    const std::string name = experiment_.name;
    std::string page;
    const std::string remedy =
        StrCat("; give the ", name, ".json that 'linnet reproduce ", name, "' wrote");
    CheckFile(common_.from, remedy, [&] {
      const std::string of = record.is_object() ? record.value("experiment", name) : name;
      if (of != name) throw InputError("is a record of ", of);
      if (!amended.empty()) record.update(amended);
      if (record.is_object()) record["experiment"] = name;
      page = Draw(record, figures);
    });
    return page;
  }

  const Experiment& experiment_;
  const json about_;
  json options_;
  CLI::App& verb_;
  CommonOptions common_;
};

}  // namespace

int Call::Threads() const {
  const int threads = options.at("threads");
  return threads > 0 ? threads : ThreadPool::AvailableProcessors();
}

json Describe(const std::string& name) {
  json own = json::parse(PageFile(name + ".json")), about = json::object();
  json options = json::array();
  const auto add = [&](const json& described) {
    for (const json& option : described.value("options", json::array())) options.push_back(option);
    about.update(described);
  };
  for (const json& like : own.value("like", json::array())) add(Describe(like));
  add(own);
  about["options"] = options;
  return about;
}

CLI::App* AddDescribedVerb(CLI::App& app, const std::string& name, const json& about,
                           json& options) {
  std::string notes = Lines(about.at("notes"));
  CLI::App* verb = cli::AddVerb(app, name, about.at("summary"), notes.erase(notes.size() - 1),
                                Lines(about.at("examples")));
  options = json::object();
  for (const json& option : about.value("options", json::array())) {
    AddDescribedOption(*verb, option, {about}, options);
  }
  return verb;
}

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

void AddExperiment(CLI::App& app, const Experiment& experiment) {
  const auto runner = std::make_shared<Runner>(app, experiment);
  app.get_subcommand(experiment.name)->callback([runner] { runner->Run(); });
}

Results::Results(const std::string& name, const std::string& folder,
                 const std::vector<std::string>& pictures, const std::vector<std::string>& images)
    : folder_(folder),
      page_(fs::path(folder) / (name + ".md")),
      record_(fs::path(folder) / (name + ".json")) {
  std::error_code error;
  std::vector<fs::path> made;  // removed again after the write test
  for (fs::path path = fs::absolute(folder).lexically_normal();
       !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
    if (path.has_filename()) made.push_back(path);
  }
  MakeFolder(folder);
  std::vector<std::string> files = {page_, record_};
  for (const std::string& picture : pictures) {
    for (const std::string& file : PictureFiles(folder, picture)) files.push_back(file);
  }
  for (const std::string& image : images) files.push_back(fs::path(folder) / (image + ".png"));
  for (const std::string& file : files) AtomicFile probe(file);
  for (const fs::path& path : made) fs::remove(path, error);
}

std::vector<std::string> Results::Write(const std::string& record, const std::string& page,
                                        const std::vector<NamedFigure>& figures,
                                        const Images& images) const {
  const cli::SignalsHeld held;
  fs::create_directories(folder_);
  // Draws into a temporary folder first, so that the old pictures stay if one fails.
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
  for (const auto& [name, figure] : figures) {
    DrawPictures(figure, aside.folder, name);
    for (const std::string& file : PictureFiles(folder_, name)) pictures.push_back(file);
  }
  for (const auto& [name, image] : images) {
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
