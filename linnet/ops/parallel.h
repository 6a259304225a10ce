// Runs kernels on libtorch's threads, so that no second thread pool competes with libtorch's.
#ifndef LINNET_OPS_PARALLEL_H_
#define LINNET_OPS_PARALLEL_H_

#include <ATen/Parallel.h>

#include "linnet/base/parallel.h"

namespace linnet::ops {

inline void AtParallelFor(size_t count, RangeBody body) {
  at::parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    body(static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

// Number of slots (shares of the work, each with its own scratch memory): one for each thread.
inline size_t AtSlots() { return static_cast<size_t>(at::get_num_threads()); }

}  // namespace linnet::ops

#endif  // LINNET_OPS_PARALLEL_H_
