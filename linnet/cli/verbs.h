// The verbs of the linnet program, and their shared helpers.
//
// Verb NAME is implemented in verb_NAME.cc: AddNAME() adds a subcommand with options, help, and a
// callback that does the work. AddNAME() is declared here and called in linnet.cc.
//
//   void AddEcho(CLI::App& app) {
//     CLI::App* verb = AddVerb(app, "echo", "Say it again", "", "  linnet echo hello\n");
//     auto text = std::make_shared<std::string>();
//     verb->add_option("TEXT", *text)->required();
//     verb->callback([text] { std::cout << *text << "\n"; });
//   }
#ifndef LINNET_CLI_VERBS_H_
#define LINNET_CLI_VERBS_H_

#include <CLI/CLI.hpp>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/base/progress.h"
#include "linnet/engine.h"
#include "linnet/model/names.h"
#include "linnet/sampling.h"
#include "linnet/tasks/task.h"

namespace linnet::cli {

void AddBench(CLI::App& app);
void AddComplete(CLI::App& app);
void AddCouplet(CLI::App& app);
void AddEval(CLI::App& app);
void AddExport(CLI::App& app);
void AddGenerate(CLI::App& app);
void AddImport(CLI::App& app);
void AddInfo(CLI::App& app);
void AddSample(CLI::App& app);

// Adds a subcommand with a one-line summary. --help ends with `notes` (further explanation, or "")
// and `examples` (indented lines).
CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& summary,
                  const std::string& notes, const std::string& examples);

// Options shared by several verbs.
CLI::Option* AddModelArgument(CLI::App* verb, std::string& path);
void AddPrecisionOption(CLI::App* verb, std::optional<Precision>& precision);
// Adds the options for temperature, top-k, top-p and seed; `when` is appended to each help text.
void AddChoiceOptions(CLI::App* verb, ChoiceOptions& choice, std::optional<uint64_t>& seed,
                      const std::string& when);
void AddSeedOption(CLI::App* verb, std::optional<uint64_t>& seed, const std::string& when = "");
uint64_t DrawnSeed();  // a random seed, for a user who gave none
void AddThreadsOption(CLI::App* verb, int& threads);
enum class DeviceKind : uint8_t { kCpu, kCuda };
void AddDeviceOption(CLI::App* verb, DeviceKind& device);
void AddJsonFlag(CLI::App* verb, bool& json);

// Adds an option whose values are the names of an enumeration (model/names.h). `value` must outlive
// the parsing.
template <class Enum>
CLI::Option* AddEnumOption(CLI::App* verb, const std::string& flag, Enum& value,
                           const std::string& help) {
  const auto& names = EnumNames<Enum>::kNames;
  return verb
      ->add_option_function<std::string>(
          flag, [&value, flag](const std::string& name) { value = ParseName<Enum>(name, flag); },
          help)
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(names), std::end(names))))
      ->default_str(NameOf(value));
}

// Returns a spec for --json. The tokenizer's text, which may be megabytes long, is replaced by its
// size.
nlohmann::ordered_json SpecJson(const ModelSpec& spec);

// Opens a model. Throws an InputError that names `verb` if the model's task is not `task`.
std::shared_ptr<const Model> OpenModel(const std::string& path, const Task& task,
                                       const std::string& verb, const ModelOptions& options = {});

// For use before long work: throws the error that writing `path` would throw, if there is one.
// Leaves no file behind.
void CheckWritable(const std::string& path);

// Describes the kinds of attention in the model, with their parameters.
std::string DescribeAttention(const ModelSpec& spec);

// Prints one JSON value on stdout.
void PrintJson(const nlohmann::ordered_json& value);

// Adds the conditions of a measurement to a record: file, threads, instruction set, precision.
void AddIdentity(nlohmann::ordered_json& record, const std::string& file, const Model& model,
                 int threads);

// Runs work(report) with a progress line on stderr: report(done, total) shows "WHAT 12/100, 3.4/s".
void WithProgress(const std::string& what,
                  FunctionRef<void(const FunctionRef<void(size_t, size_t)>& report)> work);

}  // namespace linnet::cli

template <>
struct linnet::EnumNames<linnet::cli::DeviceKind> {
  static constexpr const char* kNames[] = {"cpu", "cuda"};
};

#endif  // LINNET_CLI_VERBS_H_
