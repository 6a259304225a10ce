#include "linnet/program/machine.h"

#include <ctime>
#include <fstream>
#include <map>

namespace linnet::cli {

std::string MachineName() {
  std::map<std::string, std::string> fields;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    fields[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(colon + 2);
  }
  if (fields["model name"].empty()) return "unknown";
  return fields["model name"] + ", family " + fields["cpu family"] + ", model " + fields["model"];
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[32] = "";
  std::strftime(text, sizeof(text), "%F", std::localtime(&now));
  return text;
}

}  // namespace linnet::cli
