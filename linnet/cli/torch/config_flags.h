// The settings of a training (train/config.h) as flags of a verb.
//
//   ConfigFlags flags;
//   flags.Add(*app, &config, [](const std::string& name, const std::string& tasks) {
//     return train::Takes(tasks, "copy");
//   });
//   ...                                  // CLI11 parses
//   flags.Apply(*app, config);           // stores the values of the flags that the user gave
#ifndef LINNET_CLI_TORCH_CONFIG_FLAGS_H_
#define LINNET_CLI_TORCH_CONFIG_FLAGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "linnet/train/config.h"

namespace linnet {

class ConfigFlags {
 public:
  // Whether a verb has a flag for the field with this name and these tasks (see VisitFields()).
  using Chosen = std::function<bool(const std::string& name, const std::string& tasks)>;

  // Adds a flag for each chosen field. --help shows the values of `defaults`, unless it is null.
  // Call it once; this object must outlive the app.
  void Add(CLI::App& app, const train::TrainConfig* defaults, Chosen chosen);
  // Sets the fields whose flags are on the command line; all others keep their values.
  void Apply(const CLI::App& app, train::TrainConfig& config) const;

  const train::TrainConfig& values() const { return values_; }

 private:
  train::TrainConfig values_;
  Chosen chosen_;
};

// "--lr-decay" for "lr_decay".
std::string FlagName(std::string field);

}  // namespace linnet

#endif  // LINNET_CLI_TORCH_CONFIG_FLAGS_H_
