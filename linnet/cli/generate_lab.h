// What 'linnet bench generate' measures of the paper's image models: the same for every table of times.
//
//   AddGenerateOptions(verb, "table5", *options);                     // GenerateOptions
//   for (const json& record :
//        BenchGenerate("table5", *options, {"LSH-4", "reformer", 4, true}, 0, 1)) ...
#ifndef LINNET_CLI_GENERATE_LAB_H_
#define LINNET_CLI_GENERATE_LAB_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/cli/experiment.h"

namespace linnet::cli {

struct GenerateOptions : ExperimentOptions {
  std::vector<std::string> datasets = {"mnist", "cifar10"};
  std::string precision = "f32";
  int threads = 0;  // 0: every processor
};
// --dataset, --precision, --threads, and those of every experiment.
void AddGenerateOptions(CLI::App& verb, const std::string& experiment, GenerateOptions& options);
// The command line of these options.
std::string GenerateCommand(const std::string& experiment, const GenerateOptions& options);
// Whether the options ask for it.
bool Wants(const GenerateOptions& options, const std::string& dataset);

// 0: MNIST, 1: CIFAR-10, as columns of the paper's tables are.
const char* ImagesName(size_t dataset);   // mnist
const char* ImagesTitle(size_t dataset);  // MNIST

struct GenerateMethod {
  const char* label;
  const char* attention;
  int rounds;  // of hashing; 0: it does not hash
  bool stateless;
};
// The records named "generate" of one run of the bench, with `batch` images at once. Reformer runs in f32 whatever
// the precision: its queries, rounded, would be hashed elsewhere than the check's.
std::vector<nlohmann::json> BenchGenerate(const std::string& experiment,
                                          const GenerateOptions& options,
                                          const GenerateMethod& method, size_t dataset, int batch);

}  // namespace linnet::cli

#endif  // LINNET_CLI_GENERATE_LAB_H_
