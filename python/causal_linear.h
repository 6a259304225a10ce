// Registers causal linear attention in torch.ops.linnet (linnet_torch.cc).
//
// The public operations check and cast their arguments. They are composed of one opaque forward and
// one opaque backward operation, linnet::_causal_linear_forward and _backward. A tracer sees these
// two for every type and device; they choose between the fused and the plain form (ops/plain.h)
// internally.
#ifndef LINNET_PYTHON_CAUSAL_LINEAR_H_
#define LINNET_PYTHON_CAUSAL_LINEAR_H_

#include <torch/library.h>

namespace linnet::python {

void DefineCausalLinear(torch::Library& library);    // schemas and public operations
void CausalLinearKernels(torch::Library& library);   // the opaque operations, on any device
void CausalLinearMeta(torch::Library& library);      // output shapes of the opaque operations
void CausalLinearAutograd(torch::Library& library);  // derivatives of the opaque operations

}  // namespace linnet::python

#endif  // LINNET_PYTHON_CAUSAL_LINEAR_H_
