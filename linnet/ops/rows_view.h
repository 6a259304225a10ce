// Converts tensors to arguments of kernels (private to linnet/ops).
#ifndef LINNET_OPS_ROWS_VIEW_H_
#define LINNET_OPS_ROWS_VIEW_H_

#include <torch/types.h>
#include <torch/utils.h>

#include <type_traits>

#include "linnet/error.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/strided.h"
#include "linnet/ops/parallel.h"

namespace linnet::ops {

// Returns x if its last axis is dense, and a contiguous copy otherwise.
inline torch::Tensor DenseRows(const torch::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

// x [N, L, H, dim], dense along its last axis, as a kernel argument. T is the type of x, float or
// kernels::BFloat16, const or not.
template <typename T>
kernels::Strided<T> View(const torch::Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

// Calls body(T()), where T is the type of x: kernels::BFloat16 or float.
template <class Body>
void ForElement(const torch::Tensor& x, const Body& body) {
  if (x.scalar_type() == torch::kBFloat16) {
    body(kernels::BFloat16{});
  } else {
    body(0.0f);
  }
}

// The data of x; null if x is undefined. T is the type of x, or kernels::BFloat16.
template <typename T>
T* Data(const torch::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}

// The data of key lengths; null if they are undefined.
inline const int64_t* Lengths(const torch::Tensor& x) { return Data<int64_t>(x); }

// Memory for n floats, not initialized.
inline torch::Tensor Floats(size_t n) {
  return torch::empty({static_cast<int64_t>(n)}, torch::kFloat32);
}

// Working memory of a kernel, `floats` for each of libtorch's threads. Keep it until the kernel
// returns.
class ThreadScratch {
 public:
  explicit ThreadScratch(size_t floats) : slots_(AtSlots()), memory_(Floats(slots_ * floats)) {}
  operator kernels::Scratch() const { return {memory_.data_ptr<float>(), slots_}; }

 private:
  size_t slots_;
  torch::Tensor memory_;
};

// Returns x, or nullopt if x is undefined. An autograd function takes absent tensors as nullopt,
// because autograd queries the device of each tensor, and an undefined tensor has none.
inline c10::optional<torch::Tensor> OptionalOf(const torch::Tensor& x) {
  return x.defined() ? c10::optional<torch::Tensor>(x) : c10::nullopt;
}

// Called by the backward of a kernel; throws if create_graph is set. Autograd does not record how a
// kernel computes gradients, so they would silently contribute zero to second derivatives.
inline void RefuseSecondDerivative(const char* operation) {
  if (torch::GradMode::is_enabled()) {
    throw InputError(operation,
                     " in its fused form has no second derivatives; for create_graph, compute "
                     "under PlainGuard (ops/plain.h)");
  }
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_ROWS_VIEW_H_
