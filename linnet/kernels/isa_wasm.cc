// isa.h for WebAssembly, where the instruction set is chosen when the module is compiled.
#include "linnet/error.h"
#include "linnet/kernels/isa.h"

namespace linnet::kernels {

std::vector<std::string> AvailableIsas() { return {"SIMD128"}; }
std::string ActiveIsa() { return "SIMD128"; }

void ForceIsa(const std::string& name) {
  if (name.empty() || name == ActiveIsa()) return;
  throw InputError("LINNET_ISA: instruction set '", name, "' is not available; choose ",
                   ActiveIsa());
}

std::vector<DotUnit> AvailableDotUnits() { return {DotUnit::kNone}; }
DotUnit ActiveDotUnit() { return DotUnit::kNone; }
std::string DotUnitName(DotUnit) { return "NONE"; }

void ForceDotUnit(std::optional<DotUnit> unit) {
  if (!unit || *unit == DotUnit::kNone) return;
  throw InputError("LINNET_DOT: only NONE exists here");
}

void ApplyIsaEnvironment() {}

}  // namespace linnet::kernels
