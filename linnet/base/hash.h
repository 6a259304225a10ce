// A fast hash for data that is not adversarial (for adversarial data see io/sha256.h).
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

// Different seeds give different hashes. To hash several pieces of data, pass the hash of each one
// as the seed of the next one; the result differs from the hash of the concatenated pieces. A hash
// is the same on all machines of the same byte order.
uint64_t Hash(std::span<const std::byte> bytes, uint64_t seed = 0);

std::string HashDigits(uint64_t hash);  // 16 hexadecimal digits, lower case

}  // namespace linnet

#endif  // LINNET_BASE_HASH_H_
