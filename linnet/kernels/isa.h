// Selects the instruction set of the kernels: once, at run time, from the processor's features.
//
//   ActiveIsa()       -> "AVX-512"
//   for (const std::string& isa : AvailableIsas()) { ForceIsa(isa); ... }     // tests
//
// LINNET_ISA=AVX2 in the environment forces an instruction set (for diagnosis), LINNET_DOT=VNNI a
// dot-product unit. ApplyIsaEnvironment() rejects names that this build or processor does not
// support.
#ifndef LINNET_KERNELS_ISA_H_
#define LINNET_KERNELS_ISA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace linnet::kernels {

// Names of the instruction sets both compiled in and supported by this processor, best first. The
// last one is plain code that runs on any processor of the architecture.
std::vector<std::string> AvailableIsas();

// The instruction set in use.
std::string ActiveIsa();

// Switches to `name`; "" returns to the best available one. Throws InputError, listing the
// available names, if `name` is not available. Do not call while kernels run.
void ForceIsa(const std::string& name);

// Units for bf16 and int8 products beyond AVX-512's ordinary instructions (narrow_linear.h).
enum class DotUnit : uint8_t {
  kNone,
  kVnni,  // AVX-512's dot products of int8 (VNNI) and bf16
  kAmx,   // AMX's tile products of int8 and bf16
};

// Units that the processor has and the operating system allows, best first. The last one is kNone;
// if the active instruction set is below AVX-512, kNone is the only one.
std::vector<DotUnit> AvailableDotUnits();
DotUnit ActiveDotUnit();
std::string DotUnitName(DotUnit unit);  // "AMX", "VNNI", "NONE"

// Switches to `unit`; nullopt returns to the best available one. Throws InputError if `unit` is not
// available. Do not call while kernels run.
void ForceDotUnit(std::optional<DotUnit> unit);

// Applies LINNET_ISA and LINNET_DOT if set. Call once at the start of a process. Throws like
// ForceIsa() and ForceDotUnit().
void ApplyIsaEnvironment();

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ISA_H_
