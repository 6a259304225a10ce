// A fast hash that tells bytes apart that were not made to deceive (for those: io/sha256.h).
//
//   const uint64_t both = Hash(std::as_bytes(std::span(b)), Hash(std::as_bytes(std::span(a))));
//   HashDigits(both);   // "1f0a..."
#ifndef LINNET_BASE_HASH_H_
#define LINNET_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace linnet {

// Another hash for each `seed`: that of other bytes, say, which then count too (though not as if they were
// one string). The same on every machine of the same byte order.
uint64_t Hash(std::span<const std::byte> bytes, uint64_t seed = 0);

std::string HashDigits(uint64_t hash);  // 16 of base 16, lower case

}  // namespace linnet

#endif  // LINNET_BASE_HASH_H_
