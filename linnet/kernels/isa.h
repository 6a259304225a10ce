// Selects the instruction set of the kernels once, at run time, by the features of the processor.
//
//   ActiveIsa()       -> "AVX-512"
//   for (const std::string& isa : AvailableIsas()) { ForceIsa(isa); ... }     // tests
//
// For diagnosis, LINNET_ISA=AVX2 in the environment forces the instruction set AVX2, and
// LINNET_DOT=VNNI forces the dot-product unit VNNI. ApplyIsaEnvironment() rejects names that this
// build or processor does not support.
#ifndef LINNET_KERNELS_ISA_H_
#define LINNET_KERNELS_ISA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace linnet::kernels {

// Names of the instruction sets that are compiled in and that this processor supports, best first.
// The last one runs on any processor of the architecture; on x86-64 it is SCALAR, plain code
// without vector intrinsics.
std::vector<std::string> AvailableIsas();

// The instruction set in use.
std::string ActiveIsa();

// Switches to the instruction set `name`; "" switches to the best available one. Throws InputError,
// listing the available names, if `name` is not available. Do not call while kernels run.
void ForceIsa(const std::string& name);

// Hardware units for dot products of bf16 and int8 numbers. Where they exist, narrow_linear.h uses
// them for products with weights of these types. AVX-512 alone does not include them.
enum class DotUnit : uint8_t {
  kNone,
  kVnni,  // AVX-512's extensions VNNI, for int8, and AVX512-BF16
  kAmx,   // AMX's tile products of int8 and bf16
};

// Units that the processor has and the operating system allows, best first. The last one is kNone;
// if the active instruction set is below AVX-512, kNone is the only one.
std::vector<DotUnit> AvailableDotUnits();
DotUnit ActiveDotUnit();
std::string DotUnitName(DotUnit unit);  // "AMX", "VNNI", "NONE"

// Switches to `unit`; nullopt switches to the best available one. Throws InputError if `unit` is
// not available. Do not call while kernels run.
void ForceDotUnit(std::optional<DotUnit> unit);

// Applies the environment variables LINNET_ISA and LINNET_DOT if they are set. Call once at the
// start of a process. Throws InputError if a value is unknown or not available.
void ApplyIsaEnvironment();

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ISA_H_
