// The check of the lengths of padded sequences (private to linnet/ops).
#ifndef LINNET_OPS_LENGTHS_H_
#define LINNET_OPS_LENGTHS_H_

#include <torch/types.h>

#include "linnet/error.h"

namespace linnet::ops {

// Throws InputError unless `lengths` is undefined, or int64 [x.size(0)] on the device of x and, if
// `dense`, contiguous.
inline void CheckLengths(const char* operation, const torch::Tensor& lengths,
                         const torch::Tensor& x, bool dense = false) {
  if (!lengths.defined()) return;
  const bool right = lengths.sizes() == x.sizes().slice(0, 1) &&
                     lengths.scalar_type() == torch::kInt64 && lengths.device() == x.device() &&
                     (!dense || lengths.is_contiguous());
  if (right) return;
  throw InputError(operation, ": lengths must be ", dense ? "a dense " : "an ", "int64 [",
                   x.size(0), "] on the device of the inputs; got ", lengths.scalar_type(), " ",
                   lengths.sizes(), " on ", lengths.device());
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_LENGTHS_H_
