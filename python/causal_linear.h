// Causal linear attention for torch.ops.linnet: what linnet_torch.cc registers.
//
// The operations that Python calls check their arguments and cast them; what they are made of is one
// opaque operation forward and one backward, linnet::_causal_linear_forward and _backward. These two
// are what a tracer sees, whatever the type and the device; inside them the fused or the plain form
// is taken.
#ifndef LINNET_PYTHON_CAUSAL_LINEAR_H_
#define LINNET_PYTHON_CAUSAL_LINEAR_H_

#include <torch/library.h>

namespace linnet::python {

void DefineCausalLinear(torch::Library& library);    // schemas, and what Python calls
void CausalLinearKernels(torch::Library& library);   // the opaque two, on any device
void CausalLinearMeta(torch::Library& library);      // their shapes
void CausalLinearAutograd(torch::Library& library);  // their derivatives

}  // namespace linnet::python

#endif  // LINNET_PYTHON_CAUSAL_LINEAR_H_
