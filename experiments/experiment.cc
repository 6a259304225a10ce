#include "experiments/experiment.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/figures.h"
#include "experiments/page.h"
#include "linnet/base/embedded_file.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/program/program.h"
#include "linnet/program/signals.h"

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

// The flag of a described option: "--pixel-above" for "--pixel-above,!--no-pixel-above".
std::string FlagOf(const json& option) {
  const std::string name = option.at("name");
  return name.substr(0, name.find(','));
}

void AddDescribedOption(CLI::App& verb, const json& option, const Scope& about, json& options) {
  const std::string name = option.at("name"), field = FlagOf(option).substr(2);
  const std::string help = Fill(option.at("help").get<std::string>(), about);
  json& value = options[field];
  const json usual = value =
      Find("defaults." + field, about).value_or(option.value("default", json()));
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
  if (many) added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (many && option.at("many") == ",") added->delimiter(',')->allow_extra_args(false);
  if (option.contains("excludes")) {
    added->excludes(verb.get_option(option.at("excludes").get<std::string>()));
  }
  if (help.find("default") != help.npos || usual.is_null()) return;
  added->default_str(usual.is_string() ? usual.get<std::string>() : StrCat(usual.get<double>()));
}

// Writes the files into the folder, all or (unless the disk fails) none. Returns their paths.
std::vector<std::string> Write(const std::string& folder, const Files& files) {
  const cli::SignalsHeld held;
  MakeFolder(folder);
  std::vector<std::string> paths;
  for (const auto& [name, bytes] : files) paths.push_back(fs::path(folder) / name);
  for (const std::string& path : paths) AtomicFile probe(path);
  for (size_t i = 0; i < paths.size(); ++i) WriteFileAtomically(paths[i], files[i].second);
  return paths;
}

// Adds and runs the verb of an experiment.
class Runner {
 public:
  Runner(CLI::App& app, const Experiment& experiment)
      : experiment_(experiment),
        name_(experiment.name),
        about_(Describe(name_)),
        work_(about_.value("work", "runs/" + name_)),
        verb_(*AddDescribedVerb(app, name_, about_, options_)) {
    if (!work_.empty()) {
      cli::AddOption(&verb_, "--work", work_, "DIR",
                     "Folder for trainings and measurements; a stopped command resumes from it");
    }
    cli::AddOption(
        &verb_, "--from", from_, "FILE",
        StrCat("Draw the page and the plots from an earlier ", name_, ".json, without measuring"));
    cli::AddOption(&verb_, "--out", out_, "DIR",
                   StrCat("Folder for ", name_, ".md, .json and the pictures"));
    cli::AddJsonFlag(&verb_, json_);
  }

  void Run() const {
    json amended = json::object();
    for (const json& option : about_.at("options")) CheckOption(option, amended);
    const Lab lab(name_, work_.empty() ? out_ : work_);
    const Files files = from_.empty() ? Measured(lab, amended) : Redrawn(amended);
    const std::vector<std::string> written = Write(out_, files);
    if (from_.empty()) lab.Finish();
    if (json_) return cli::PrintJson({{"out", written}});
    for (const std::string& file : written) std::cout << "wrote " << file << "\n";
  }

 private:
  // Checks an option before anything is measured. If the option amends the record (experiment.h),
  // reads the file that it names into `amended` and checks the content.
  void CheckOption(const json& described, json& amended) const {
    const std::string flag = FlagOf(described), field = flag.substr(2);
    const json& value = options_.at(field);
    if (from_.empty() && value.is_null() && described.contains("missing")) {
      throw InputError(flag, " is missing: ", described.at("missing").get<std::string>());
    }
    if (described.contains("amends")) {
      if (value.is_null()) return;
      amended[field] = ReadRecord(value.get<std::string>());
      for (const auto& [path, rule] : about_.at("record").items()) {
        if (path.starts_with(field + ".")) CheckRecord(amended, {{path, rule}});
      }
    } else if (!from_.empty() && verb_.get_option(flag)->count() > 0) {
      throw InputError("--from measures nothing, so ", flag,
                       " has no effect; give only one of them");
    }
  }

  // The description, with only the methods that --methods names.
  json Chosen() const {
    json about = about_;
    const json chosen = options_.value("methods", json());
    if (chosen.is_null()) return about;
    const auto choose = [&](json& of) {
      if (!of.contains("methods")) return;
      std::erase_if(of["methods"].get_ref<json::array_t&>(), [&](const json& method) {
        return std::count(chosen.begin(), chosen.end(), method.at("name")) == 0;
      });
    };
    choose(about);
    if (about.contains("datasets")) std::ranges::for_each(about["datasets"], choose);
    return about;
  }

  // Measures, and returns the files. `record` already holds the fields of "amends" options.
  Files Measured(const Lab& lab, json record) const {
    CheckWritableFolder(out_);
    Files pictures;
    const json about = Chosen();
    const Call call{about, options_, verb_, lab, &pictures};
    experiment_.measure(call, record);
    record.emplace("command", StrCat("linnet reproduce ", name_, GivenOptions(call)));
    record["experiment"] = name_;
    Files files = Drawn(record);
    files.insert(files.end(), pictures.begin(), pictures.end());
    return files;
  }

  // The files drawn from the record that --from names. Throws InputError if the record is invalid.
  Files Redrawn(const json& amended) const {
    json record = ReadRecord(from_);
    Files files;
    const std::string remedy =
        StrCat("; give the ", name_, ".json that 'linnet reproduce ", name_, "' wrote");
    CheckFile(from_, remedy, [&] {
      const std::string of = record.is_object() ? record.value("experiment", name_) : name_;
      if (of != name_) throw InputError("is a record of ", of);
      if (!amended.empty()) record.update(amended);
      if (record.is_object()) record["experiment"] = name_;
      files = Drawn(record);
    });
    return files;
  }

  // The page, the record and the figures.
  Files Drawn(const json& record) const {
    json values = record.is_array() ? json{{"records", record}} : record;
    CheckRecord(values, about_.value("record", json::object()));
    if (about_.contains("methods") && values.contains("runs")) {
      values["rows"] = MethodsRun(about_["methods"], values["runs"]);
    }
    if (experiment_.derive != nullptr) experiment_.derive(about_, values);
    CheckRecord(values, {{"machine?", "text"}, {"date?", "text"}});
    values.emplace("command", StrCat("linnet reproduce ", name_, " --from ", name_,
                                     ".json   # the record of an earlier run"));
    const json looks = json::parse(PageFile("looks.json"));
    const Scope outer{looks}, about{about_, &outer}, scope{values, &about};
    Files files = {
        {name_ + ".md", Render(std::string(PageFile(about_.value("page", name_) + ".md")), scope)},
        {name_ + ".json", record.dump(1) + "\n"}};
    for (auto& [name, figure] : DescribedFigures(about_.value("figures", json::array()), scope)) {
      for (const char* ending : {".png", ".svg", "-dark.png", "-dark.svg"}) {
        figure.theme = *ending == '-' ? plot::Theme::kDark : plot::Theme::kLight;
        files.emplace_back(name + ending, plot::Encode(figure, name + ending));
      }
    }
    return files;
  }

  const Experiment& experiment_;
  const std::string name_;
  const json about_;
  std::string work_, from_, out_ = ".";
  bool json_ = false;
  json options_;
  CLI::App& verb_;
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
  about["options"] = options, about["name"] = name;
  return about;
}

CLI::App* AddDescribedVerb(CLI::App& app, const std::string& name, const json& about,
                           json& options) {
  constexpr size_t kWidth = 100;
  std::string notes = Wrap(Fill(about.at("notes").get<std::string>(), {about}), kWidth), examples;
  for (const std::string line : about.at("examples")) examples += Fill(line, {about}) + "\n";
  notes.pop_back();  // the line break at the end
  CLI::App* verb = cli::AddVerb(app, name, about.at("summary"), notes, examples);
  options = json::object();
  for (const json& option : about.at("options")) {
    AddDescribedOption(*verb, option, {about}, options);
  }
  return verb;
}

std::string GivenOptions(const Call& call, const std::vector<std::string>& only) {
  std::string given;
  for (const json& option : call.about.at("options")) {
    const std::string flag = FlagOf(option), type = option.value("type", "");
    const CLI::Option& parsed = *call.verb.get_option(flag);
    const bool wanted = only.empty() || std::count(only.begin(), only.end(), flag.substr(2)) > 0;
    if (parsed.count() == 0 || !wanted) continue;
    if (option.contains("flag")) {
      const std::string name = option.at("name");
      const bool on = call.options.at(flag.substr(2));
      given += " " + (on ? flag : name.substr(name.find('!') + 1));
      continue;
    }
    const bool path = type == "DIR" || type == "FILE";
    const std::string named = StrCat(" ", flag, " ");
    std::string before = named;
    for (const std::string& value : parsed.results()) {
      given += before + (path ? fs::path(value).lexically_normal().filename().string() : value);
      before = path ? named : ",";
    }
  }
  return given;
}

void AddExperiment(CLI::App& app, const Experiment& experiment) {
  const auto runner = std::make_shared<Runner>(app, experiment);
  app.get_subcommand(experiment.name)->callback([runner] { runner->Run(); });
}

}  // namespace linnet::experiments
