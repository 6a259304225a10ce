// Peak memory of this process, and memory of the machine.
//
//   ResetPeakMemory();
//   Work();
//   const int64_t bytes = PeakMemory();
#ifndef LINNET_BASE_PEAK_MEMORY_H_
#define LINNET_BASE_PEAK_MEMORY_H_

#include <cstdint>

namespace linnet {

// The largest resident set in bytes since the process began or since the last reset. Unlike the
// number from getrusage(), it excludes the memory that the process had before exec().
int64_t PeakMemory();

// Restarts the measurement, if the operating system supports it.
void ResetPeakMemory();

// Bytes that can still be allocated before the machine, or the container's control group, runs out
// of memory; 0 if the operating system does not report this number.
int64_t AvailableMemory();

// Physical memory of the machine, in bytes.
int64_t MachineMemory();

}  // namespace linnet

#endif  // LINNET_BASE_PEAK_MEMORY_H_
