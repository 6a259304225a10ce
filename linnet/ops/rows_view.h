// Tensors as the attention kernels take them (private to linnet/ops).
#ifndef LINNET_OPS_ROWS_VIEW_H_
#define LINNET_OPS_ROWS_VIEW_H_

#include <torch/types.h>
#include <torch/utils.h>

#include <type_traits>

#include "linnet/base/error.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/strided.h"

namespace linnet::ops {

inline torch::Tensor DenseRows(const torch::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

// T: float or kernels::BFloat16, const or not; x is of that type.
template <typename T>
kernels::Strided<T> View(const torch::Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

// Calls body(element) with a float or a kernels::BFloat16, as x holds.
template <class Body>
void ForElement(const torch::Tensor& x, const Body& body) {
  if (x.scalar_type() == torch::kBFloat16) {
    body(kernels::BFloat16{});
  } else {
    body(0.0f);
  }
}

// An absent tensor must be absent for autograd too: it asks an undefined one for its device.
inline c10::optional<torch::Tensor> OptionalOf(const torch::Tensor& x) {
  return x.defined() ? c10::optional<torch::Tensor>(x) : c10::nullopt;
}

// A kernel's gradients have no history: where one is asked for (create_graph), a silent zero would be
// added to what is asked.
inline void RefuseSecondDerivative(const char* operation) {
  if (torch::GradMode::is_enabled()) {
    throw InputError(operation,
                     " in its fused form can be differentiated once; for create_graph, compute "
                     "under PlainGuard (ops/plain.h)");
  }
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_ROWS_VIEW_H_
