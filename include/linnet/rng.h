// Random numbers that are a function of (seed, stream, counter): Philox4x32-10 (Salmon et al.,
// 2011).
//
//   Philox rng(seed, /*stream=*/sequence_id);
//   float u = rng.Uniform();              // in (0, 1)
//   Philox later(seed, sequence_id, k);   // skips the first 4 k results of Next()
//
// Two streams of one seed never overlap, so the draws of one sequence do not depend on the rest of
// its batch. The counter numbers blocks of four results of Next(). Any block can be recomputed from
// (seed, stream, counter), so no other state needs to be saved.
#ifndef LINNET_RNG_H_
#define LINNET_RNG_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace linnet {

class Philox {
 public:
  explicit Philox(uint64_t seed, uint64_t stream = 0, uint64_t counter = 0)
      : seed_(seed), stream_(stream), counter_(counter) {}

  // The next 32 random bits.
  uint32_t Next() {
    if (used_ == 4) {
      block_ = Block(counter_++);
      used_ = 0;
    }
    return block_[used_++];
  }

  uint64_t Next64() {
    const uint64_t high = Next();
    return (high << 32) | Next();
  }

  // Uniform in the open interval (0, 1): never 0 and never 1, so that log(u) and log(1 - u) exist.
  float Uniform() { return (static_cast<float>(Next() >> 9) + 0.5f) * 0x1p-23f; }

  // Uniform in [0, bound); bound > 0. Unbiased (Lemire's multiply and reject).
  uint32_t Below(uint32_t bound) {
    uint64_t product = static_cast<uint64_t>(Next()) * bound;
    if (static_cast<uint32_t>(product) < bound) {
      const uint32_t floor = (0u - bound) % bound;
      while (static_cast<uint32_t>(product) < floor) {
        product = static_cast<uint64_t>(Next()) * bound;
      }
    }
    return static_cast<uint32_t>(product >> 32);
  }

  // Standard normal (Box-Muller; discards one number of each pair to keep the state small).
  float Normal() {
    const float radius = std::sqrt(-2.0f * std::log(Uniform()));
    return radius * std::cos(6.283185307f * Uniform());
  }

 private:
  std::array<uint32_t, 4> Block(uint64_t counter) const {
    uint32_t key0 = static_cast<uint32_t>(seed_), key1 = static_cast<uint32_t>(seed_ >> 32);
    std::array<uint32_t, 4> x = {
        static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
        static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * x[0];
      const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * x[2];
      x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(a)};
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    return x;
  }

  uint64_t seed_, stream_, counter_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;  // number of results of block_ that Next() has returned; 4: none is left
};

// A uniformly random permutation of 0 .. n-1 (Fisher-Yates), determined by the generator.
inline std::vector<uint32_t> RandomPermutation(uint32_t n, Philox rng) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  return order;
}

}  // namespace linnet

#endif  // LINNET_RNG_H_
