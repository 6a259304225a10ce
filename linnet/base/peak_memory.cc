#include "linnet/base/peak_memory.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace linnet {

int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return int64_t{1024} * std::stoll(line.substr(6));
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

void ResetPeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace linnet
