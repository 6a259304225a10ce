#include "linnet/kernels/isa.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "hwy/highway.h"
#include "linnet/error.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace linnet::kernels {
namespace {

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The usual name of a target. Highway's name for AVX-512 is AVX3.
std::string NameOf(int64_t target) {
  return target == HWY_AVX3 ? "AVX-512" : hwy::TargetName(target);
}

// Returns the targets that are compiled in and that the processor supports. Cancels the choice of
// ForceIsa(); call Apply() afterwards to restore that choice.
std::vector<int64_t> Targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

int64_t forced = 0;                  // choice of ForceIsa(), a Highway target; 0: the best one
std::optional<DotUnit> forced_unit;  // choice of ForceDotUnit()
std::atomic<int> active_unit{-1};    // -1: not chosen yet

// Makes Highway use the target `forced`.
void Apply() {
  active_unit = -1;
  hwy::SetSupportedTargetsForTest(forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

#if defined(__x86_64__) && defined(__linux__)
// Whether the processor has VNNI and AVX512-BF16, which Highway's AVX-512 target does not imply.
bool HasVnniAndBf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (c >> 11 & 1) == 0) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

// Returns whether the processor has AMX and this process may use it. Linux withholds the 8 kB of
// tile registers from a process until the process requests them.
bool AskForAmx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const unsigned bits = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tile, int8
  if ((d & bits) != bits) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool HasVnniAndBf16() { return false; }
bool AskForAmx() { return false; }
#endif

}  // namespace

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (int64_t target : Targets()) names.push_back(NameOf(target));
  Apply();
  return names;
}

std::string ActiveIsa() {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return NameOf(supported & -supported);
}

void ForceIsa(const std::string& name) {
  const std::vector<int64_t> targets = Targets();
  int64_t wanted = 0;
  for (int64_t target : targets) {
    if (name == NameOf(target) || name == hwy::TargetName(target)) wanted = target;
  }
  if (wanted == 0 && !name.empty()) {
    Apply();
    throw InputError("LINNET_ISA: instruction set '", name, "' is not available; choose one of ",
                     Join(AvailableIsas()));
  }
  forced = wanted;
  Apply();
}

std::vector<DotUnit> AvailableDotUnits() {
  static const bool vnni = HasVnniAndBf16();
  static const bool amx = vnni && AskForAmx();
  std::vector<DotUnit> units;
  if (ActiveIsa() == NameOf(HWY_AVX3)) {
    if (amx) units.push_back(DotUnit::kAmx);
    if (vnni) units.push_back(DotUnit::kVnni);
  }
  units.push_back(DotUnit::kNone);
  return units;
}

DotUnit ActiveDotUnit() {
  const int known = active_unit;
  if (known >= 0) return static_cast<DotUnit>(known);
  const std::vector<DotUnit> units = AvailableDotUnits();
  const bool can =
      forced_unit && std::find(units.begin(), units.end(), *forced_unit) != units.end();
  const DotUnit unit = can ? *forced_unit : units.front();
  active_unit = static_cast<int>(unit);
  return unit;
}

std::string DotUnitName(DotUnit unit) {
  return unit == DotUnit::kAmx ? "AMX" : unit == DotUnit::kVnni ? "VNNI" : "NONE";
}

void ForceDotUnit(std::optional<DotUnit> unit) {
  const std::vector<DotUnit> units = AvailableDotUnits();
  if (unit && std::find(units.begin(), units.end(), *unit) == units.end()) {
    throw InputError("LINNET_DOT: dot-product unit '", DotUnitName(*unit),
                     "' is not available; the best available one is ", DotUnitName(units.front()));
  }
  forced_unit = unit;
  active_unit = -1;
}

void ApplyIsaEnvironment() {
  const auto upper = [](const char* name) {
    std::string text = name;
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return text;
  };
  if (const char* name = std::getenv("LINNET_ISA")) ForceIsa(upper(name));
  const char* unit = std::getenv("LINNET_DOT");
  if (unit == nullptr || *unit == 0) return;
  for (const DotUnit known : {DotUnit::kAmx, DotUnit::kVnni, DotUnit::kNone}) {
    if (upper(unit) == DotUnitName(known)) return ForceDotUnit(known);
  }
  throw InputError("LINNET_DOT: unknown dot-product unit '", unit, "'; choose AMX, VNNI or NONE");
}

}  // namespace linnet::kernels
