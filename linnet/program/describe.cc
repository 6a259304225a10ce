#include "linnet/program/describe.h"

#include <algorithm>
#include <string>
#include <vector>

namespace linnet::cli {

using nlohmann::ordered_json;

namespace {

// The values that CLI::IsMember allows. CLI11 appends them to the type: "NAME:{cpu,cuda}".
std::vector<std::string> Choices(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == type.npos || close == type.npos) return choices;
  for (size_t begin = open + 1; begin < close;) {
    const size_t end = std::min(type.find(',', begin), close);
    choices.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

ordered_json DescribeOption(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const bool flag = option.get_items_expected_max() == 0;
  const std::string type = flag ? "" : option.get_type_name();
  return {{"names", names},
          {"positional", option.get_positional() ? option.get_name(true) : ""},
          {"type", type.substr(0, type.find(':'))},
          {"help", option.get_description()},
          {"default", flag ? "" : option.get_default_str()},
          {"choices", Choices(type)},
          {"required", option.get_required()},
          {"repeats", option.get_expected_max() > 1}};
}

}  // namespace

ordered_json Describe(const CLI::App& app) {
  ordered_json options = ordered_json::array(), verbs = ordered_json::array();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) options.push_back(DescribeOption(*option));
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    verbs.push_back(Describe(*verb));
  }
  return {{"name", app.get_name()},
          {"summary", app.get_description()},
          {"notes", app.get_footer()},
          {"options", options},
          {"verbs", verbs}};
}

}  // namespace linnet::cli
