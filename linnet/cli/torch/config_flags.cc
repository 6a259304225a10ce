#include "linnet/cli/torch/config_flags.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/program/program.h"

namespace linnet {

using train::TrainConfig;

std::string FlagName(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

void ConfigFlags::Add(CLI::App& app, const TrainConfig* defaults, Chosen chosen) {
  if (defaults != nullptr) values_ = *defaults;
  chosen_ = std::move(chosen);
  const auto add = [&](const char* name, const std::string& tasks, const char* help, auto& field) {
    if (!chosen_(name, tasks)) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, bool>) {
      const char* usual = defaults == nullptr ? "" : field ? " (default: on)" : " (default: off)";
      app.add_flag(FlagName(name) + ",!" + FlagName("no_" + std::string(name)), field,
                   StrCat(help, usual));
    } else {
      using Field = std::decay_t<decltype(field)>;
      const auto option = [&](const char* flag) {
        CLI::Option* added = app.add_option(FlagName(flag), field, help);
        // CLI11 reads "" as 0, and "-1" as the largest number of an unsigned type.
        if constexpr (std::is_arithmetic_v<Field>)
          added->check(cli::IsNumber(std::is_signed_v<Field>));
        return added;
      };
      CLI::Option* const shown = option(name);
      if (defaults != nullptr) shown->capture_default_str();
      for (const char* former : train::FormerNames(name)) option(former)->group("");
    }
  };
  app.option_defaults()->group("Run");
  VisitRunFields(values_, add);
  app.option_defaults()->group("Data and task");
  VisitTaskFields(values_, add);
  app.option_defaults()->group("Updates");
  VisitUpdateFields(values_, add);
  app.option_defaults()->group("Network");
  VisitNetworkFields(values_, add);
}

void ConfigFlags::Apply(const CLI::App& app, TrainConfig& config) const {
  VisitFields(config, [&](const char* name, const std::string& tasks, const char*, auto& field) {
    if (!chosen_(name, tasks)) return;
    std::vector<const char*> names = train::FormerNames(name);
    names.push_back(name);
    for (const char* one : names) {
      const CLI::Option* option = app.get_option(FlagName(one));
      if (option->count() > 0) option->results(field);
    }
  });
}

}  // namespace linnet
