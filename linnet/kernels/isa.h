// Which instruction set the kernels run on: chosen at run time, once, from what the processor has.
//
//   ActiveIsa()       -> "AVX3"
//   for (const std::string& isa : AvailableIsas()) { ForceIsa(isa); ... }     // tests
//
// LINNET_ISA=AVX2 in the environment forces one (for diagnosis); a name that this build or this
// processor lacks is refused by ApplyIsaEnvironment().
#ifndef LINNET_KERNELS_ISA_H_
#define LINNET_KERNELS_ISA_H_

#include <string>
#include <vector>

namespace linnet::kernels {

// Names of the instruction sets both compiled in and supported here, best first. The last one is
// plain code that any processor of the architecture runs.
std::vector<std::string> AvailableIsas();

// The one in use.
std::string ActiveIsa();

// Uses `name` from now on; "" returns to the best. Throws InputError, listing the available names,
// if there is no such instruction set. Not to be called while kernels run.
void ForceIsa(const std::string& name);

// Applies LINNET_ISA where it is set: called once by whoever starts a process. Throws as ForceIsa.
void ApplyIsaEnvironment();

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ISA_H_
