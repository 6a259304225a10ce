// How a kernel is told to use threads: it never owns any, it is handed a ParallelFor by its caller.
//
//   void Scale(float* x, size_t n, ParallelFor parallel_for) {
//     parallel_for(n, [&](size_t begin, size_t end) { ... });
//   }
//   Scale(x, n, SerialFor);                        // one thread
//   Scale(x, n, [&](size_t n, RangeBody body) { pool.For(n, body); });
//
// The body is called on disjoint ranges that together cover [0, count), each index exactly once, in
// any order and on any thread; kernels are written so that the result does not depend on the cut.
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
