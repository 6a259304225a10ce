// Peak memory of this process, and available memory of the machine.
//
//   ResetPeakMemory();
//   Work();
//   const int64_t bytes = PeakMemory();
#ifndef LINNET_BASE_PEAK_MEMORY_H_
#define LINNET_BASE_PEAK_MEMORY_H_

#include <cstdint>

namespace linnet {

// The largest resident set in bytes since the process began or since the last reset. Unlike
// getrusage(), does not count the program that started this one.
int64_t PeakMemory();

// Restarts the measurement, if the kernel supports it.
void ResetPeakMemory();

// Bytes that can still be allocated before the machine (or this process's control group) runs out;
// 0 if the kernel does not say.
int64_t AvailableMemory();

}  // namespace linnet

#endif  // LINNET_BASE_PEAK_MEMORY_H_
