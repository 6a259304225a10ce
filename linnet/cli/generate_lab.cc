#include "linnet/cli/generate_lab.h"

#include <algorithm>
#include <iostream>

#include "linnet/base/error.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

using nlohmann::json;

void AddGenerateOptions(CLI::App& verb, const std::string& experiment, GenerateOptions& options) {
  verb.add_option("--dataset", options.datasets, "mnist, cifar10 or both (default: both)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAMES")
      ->check(CLI::IsMember({"mnist", "cifar10"}));
  verb.add_option("--precision", options.precision, "f32, bf16 or int8; LSH runs in f32")
      ->type_name("NAME")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))
      ->capture_default_str();
  AddThreadsOption(&verb, options.threads);
  AddExperimentOptions(verb, experiment, options);
}

std::string GenerateCommand(const std::string& experiment, const GenerateOptions& options) {
  std::string command = "linnet reproduce " + experiment;
  if (options.precision != "f32") command += " --precision " + options.precision;
  if (options.threads > 0) command += StrCat(" --threads ", options.threads);
  if (!Wants(options, "mnist")) command += " --dataset cifar10";
  if (!Wants(options, "cifar10")) command += " --dataset mnist";
  return command;
}

bool Wants(const GenerateOptions& options, const std::string& dataset) {
  return std::find(options.datasets.begin(), options.datasets.end(), dataset) !=
         options.datasets.end();
}

const char* ImagesName(size_t dataset) { return dataset == 0 ? "mnist" : "cifar10"; }
const char* ImagesTitle(size_t dataset) { return dataset == 0 ? "MNIST" : "CIFAR-10"; }

std::vector<json> BenchGenerate(const std::string& experiment, const GenerateOptions& options,
                                const GenerateMethod& method, size_t dataset, int batch) {
  std::cerr << "timing " << method.label << ", " << ImagesTitle(dataset) << "\n";
  std::vector<std::string> arguments = {"bench", "generate", "--json"};
  const auto add = [&](const auto&... values) { (arguments.push_back(StrCat(values)), ...); };
  add("--random", ImagesName(dataset), "--attention", method.attention, "--precision",
      method.rounds > 0 ? "f32" : options.precision, "--batch", batch);
  if (method.rounds > 0) {  // the paper's chunks
    add("--lsh-rounds", method.rounds, "--lsh-chunk", dataset == 0 ? 29 : 37);
  }
  if (method.stateless) add("--stateless");
  if (options.threads > 0) add("--threads", options.threads);
  std::vector<json> records;
  for (json& record : RunVerbJson(experiment, arguments)) {
    if (record.at("name") == "generate") records.push_back(std::move(record));
  }
  return records;
}

}  // namespace linnet::cli
