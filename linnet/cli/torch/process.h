// Settings of the programs that train.
//
//   int main() { linnet::PrepareProcess(); ... }
#ifndef LINNET_CLI_TORCH_PROCESS_H_
#define LINNET_CLI_TORCH_PROCESS_H_

#include <ATen/Context.h>
#include <malloc.h>

#include <limits>

namespace linnet {

// Makes glibc keep freed memory. libtorch frees and allocates the same large blocks at every
// update. By default glibc unmaps and maps each of them, and Linux spends a fifth of the training
// time on clearing their pages.
inline void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_ARENA_MAX, 1);
#endif
}

// Makes subnormal numbers count as zeros, in this thread and those that it starts later. Many
// processors compute with them a hundred times as slowly.
inline void FlushSubnormals() { at::globalContext().setFlushDenormal(true); }

// Call first.
inline void PrepareProcess() {
  KeepFreedMemory();
  FlushSubnormals();
}

}  // namespace linnet

#endif  // LINNET_CLI_TORCH_PROCESS_H_
