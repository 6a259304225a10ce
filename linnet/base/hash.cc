#include "linnet/base/hash.h"

#include <bit>
#include <cstdio>
#include <cstring>

namespace linnet {

// Four independent accumulators (`lanes`) hide the latency of the multiplications.
uint64_t Hash(std::span<const std::byte> bytes, uint64_t seed) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t lanes[4] = {seed, seed ^ 1, seed ^ 2, seed ^ 3};
  const auto mix = [](uint64_t h, uint64_t x) { return std::rotl((h ^ x) * kFactor, 29); };
  size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes.data() + i, sizeof(words));
    for (size_t l = 0; l < 4; ++l) lanes[l] = mix(lanes[l], words[l]);
  }
  for (; i < bytes.size(); ++i) lanes[0] = mix(lanes[0], static_cast<uint64_t>(bytes[i]));
  uint64_t hash = bytes.size();
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  return hash;
}

std::string HashDigits(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace linnet
