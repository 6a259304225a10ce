// The machine's own ceilings, for benchmarks to hold their figures against: how much one core
// multiplies and adds, and how fast it reads and writes. The caller runs these on its threads and times them.
//
//   pool.Run([&](int) { SpinFma(rounds); });        // pool.size() * FmaFlops(rounds) operations
//   pool.For(n, [&](size_t begin, size_t end) { ReadFloats(x + begin, end - begin); });
#ifndef LINNET_KERNELS_MACHINE_PEAK_H_
#define LINNET_KERNELS_MACHINE_PEAK_H_

#include <cstddef>

namespace linnet::kernels {

// Independent chains of fp32 fused multiply-adds, held in registers. Returns a number that depends
// on all of them, so that none can be skipped.
float SpinFma(size_t rounds);

// The operations of SpinFma(rounds) on the active instruction set, a multiply-add counting as two.
double FmaFlops(size_t rounds);

// The sum of data[0 .. count), read from one end to the other as fast as loads go.
float ReadFloats(const float* data, size_t count);

// Ones to data[0 .. count), as fast as stores go: into the caches, or past them, so that lines are
// not read before they are overwritten. Which of the two is faster, the size decides.
void WriteFloats(float* data, size_t count, bool past_caches);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MACHINE_PEAK_H_
