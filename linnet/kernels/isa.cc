#include "linnet/kernels/isa.h"

#include <cctype>
#include <cstdlib>

#include "hwy/highway.h"
#include "linnet/base/error.h"

namespace linnet::kernels {
namespace {

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The targets compiled in and supported, unmasked.
std::vector<int64_t> Targets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

int64_t forced = 0;

void Apply() {
  hwy::SetSupportedTargetsForTest(forced);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (int64_t target : Targets()) names.push_back(hwy::TargetName(target));
  Apply();
  return names;
}

std::string ActiveIsa() {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);
}

void ForceIsa(const std::string& name) {
  const std::vector<int64_t> targets = Targets();
  int64_t wanted = 0;
  for (int64_t target : targets) {
    if (name == hwy::TargetName(target)) wanted = target;
  }
  if (wanted == 0 && !name.empty()) {
    Apply();
    throw InputError("LINNET_ISA: no instruction set '", name, "' here; choose one of ",
                     Join(AvailableIsas()));
  }
  forced = wanted;
  Apply();
}

void ApplyIsaEnvironment() {
  const char* name = std::getenv("LINNET_ISA");
  if (name == nullptr) return;
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  ForceIsa(upper);
}

}  // namespace linnet::kernels
