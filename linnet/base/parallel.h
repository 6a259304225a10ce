// The threading interface of kernels: a kernel owns no threads; its caller passes a ParallelFor.
//
//   void Scale(float* x, size_t n, ParallelFor parallel_for) {
//     parallel_for(n, [&](size_t begin, size_t end) { ... });
//   }
//   Scale(x, n, SerialFor);                        // one thread
//   Scale(x, n, [&](size_t n, RangeBody body) { pool.For(n, body); });
//
// A ParallelFor calls `body` on disjoint ranges that together cover [0, count), in any order and on
// any thread. The result of a kernel does not depend on how the range is divided.
#ifndef LINNET_BASE_PARALLEL_H_
#define LINNET_BASE_PARALLEL_H_

#include <cstddef>

#include "linnet/base/function_ref.h"

namespace linnet {

using RangeBody = FunctionRef<void(size_t begin, size_t end)>;
using ParallelFor = FunctionRef<void(size_t count, RangeBody body)>;

// The ParallelFor of a single thread.
inline void SerialFor(size_t count, RangeBody body) {
  if (count > 0) body(0, count);
}

}  // namespace linnet

#endif  // LINNET_BASE_PARALLEL_H_
