// Which instruction set the kernels run on: chosen at run time, once, from what the processor has.
//
//   ActiveIsa()       -> "AVX3"
//   for (const std::string& isa : AvailableIsas()) { ForceIsa(isa); ... }     // tests
//
// LINNET_ISA=AVX2 in the environment forces one (for diagnosis), LINNET_DOT=VNNI a unit for dot
// products; a name that this build or this processor lacks is refused by ApplyIsaEnvironment().
#ifndef LINNET_KERNELS_ISA_H_
#define LINNET_KERNELS_ISA_H_

#include <cstdint>
#include <optional>
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

// What multiplies bf16 and int8 beside AVX-512's ordinary instructions (narrow_linear.h).
enum class DotUnit : uint8_t {
  kNone,
  kVnni,  // AVX-512's dot products, of int8 (VNNI) and bf16
  kAmx,   // products of tiles
};

// Those that this processor has and this system allows, best first; the last one is kNone. With an
// instruction set below AVX-512 in use, it is the only one.
std::vector<DotUnit> AvailableDotUnits();
DotUnit ActiveDotUnit();
std::string DotUnitName(DotUnit unit);  // "AMX", "VNNI", "NONE"

// Uses it from now on, or without one the best. Throws InputError where it is not available. Not to
// be called while kernels run.
void ForceDotUnit(std::optional<DotUnit> unit);

// Applies LINNET_ISA and LINNET_DOT where they are set: called once by whoever starts a process.
// Throws as the functions above.
void ApplyIsaEnvironment();

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ISA_H_
