// The shared library for Python: torch.ops.load_library("liblinnet_torch.so") registers
// torch.ops.linnet. causal_linear.cc defines the operations; README.md lists them.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "python/causal_linear.h"

namespace linnet::python {
namespace {

// Under torch.autocast an operation runs in fp32, since its sums are fp32, and its first result is
// cast to autocast's type. The other results are states and stay fp32. Double tensors are not cast,
// as in autocast's own operations.
void Autocast(const c10::OperatorHandle& op, c10::Stack* stack) {
  namespace autocast = at::autocast;
  const size_t begin = stack->size() - op.schema().arguments().size();
  const at::Tensor first = (*stack)[begin].toTensor();
  const at::DeviceType device = first.device().type();
  const bool cast = autocast::is_eligible(first, device);
  for (size_t i = begin; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    if (argument.isTensor()) {
      argument = autocast::cached_cast(at::kFloat, argument.toTensor(), device);
    }
  }
  // Prevents callBoxed() from calling this function again.
  const c10::impl::ExcludeDispatchKeyGuard once(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
  if (!cast) return;
  c10::IValue& result = (*stack)[stack->size() - op.schema().returns().size()];
  result = result.toTensor().to(autocast::get_lower_precision_fp_from_device_type(device));
}

// The operations that Autocast() wraps.
const char* const kCast[] = {"causal_linear_attention", "causal_linear_attention_state",
                             "causal_linear_attention_packed",
                             "causal_linear_attention_packed_state", "causal_linear_step"};

void RegisterAutocast(torch::Library& library) {
  for (const char* name : kCast) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&Autocast>());
  }
}

}  // namespace

TORCH_LIBRARY(linnet, library) { DefineCausalLinear(library); }
TORCH_LIBRARY_IMPL(linnet, CompositeExplicitAutograd, library) { CausalLinearKernels(library); }
TORCH_LIBRARY_IMPL(linnet, Meta, library) { CausalLinearMeta(library); }
TORCH_LIBRARY_IMPL(linnet, Autograd, library) { CausalLinearAutograd(library); }
TORCH_LIBRARY_IMPL(linnet, AutocastCPU, library) { RegisterAutocast(library); }
TORCH_LIBRARY_IMPL(linnet, Autocast, library) { RegisterAutocast(library); }  // for CUDA

}  // namespace linnet::python
