#include "linnet/base/peak_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

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

int64_t AvailableMemory() {
  int64_t available = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) available = int64_t{1024} * std::stoll(line.substr(13));
  }
  // Applies the container's limit. Control groups of version 2 and of version 1 keep it in
  // different files. Without a limit, memory.max contains the text "max", for which number()
  // returns 0.
  const auto number = [](const char* path) {
    int64_t value = -1;
    std::ifstream(path) >> value;
    return value;
  };
  const std::string group = "/sys/fs/cgroup/";
  for (const auto& [most, used] :
       {std::pair{"memory.max", "memory.current"},
        std::pair{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}}) {
    const int64_t limit = number((group + most).c_str()), taken = number((group + used).c_str());
    if (limit > 0 && taken >= 0)
      available = std::min(available, std::max<int64_t>(limit - taken, 0));
  }
  return available;
}

int64_t MachineMemory() {
#ifdef __EMSCRIPTEN__
  return int64_t{2} << 30;  // link option -sMAXIMUM_MEMORY; sysconf() reports the memory in use
#else
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
#endif
}

// On Linux, writing 5 to this file resets VmHWM.
void ResetPeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace linnet
