// The most memory that this process held, and what the machine has left.
//
//   ResetPeakMemory();
//   Work();
//   const int64_t bytes = PeakMemory();
#ifndef LINNET_BASE_PEAK_MEMORY_H_
#define LINNET_BASE_PEAK_MEMORY_H_

#include <cstdint>

namespace linnet {

// The largest resident set since the process began, or since the last reset, in bytes. Counts nothing
// of the program that started this one, as getrusage() does.
int64_t PeakMemory();

// Begins to measure anew, where the kernel lets it.
void ResetPeakMemory();

// What may still be taken before the machine (or the group that this process belongs to) has no more,
// in bytes; 0 where the kernel does not say.
int64_t AvailableMemory();

}  // namespace linnet

#endif  // LINNET_BASE_PEAK_MEMORY_H_
