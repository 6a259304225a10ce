// The machine's peak rates, as a yardstick for benchmarks: multiply-adds of one core, and memory
// bandwidth for reads and writes. The caller runs these functions on its threads and times them.
//
//   pool.Run([&](int) { SpinFma(rounds); });        // pool.size() * FmaFlops(rounds) operations
//   pool.For(n, [&](size_t begin, size_t end) { ReadFloats(x + begin, end - begin); });
#ifndef LINNET_KERNELS_MACHINE_PEAK_H_
#define LINNET_KERNELS_MACHINE_PEAK_H_

#include <cstddef>

namespace linnet::kernels {

// Runs independent chains of `rounds` fp32 fused multiply-adds each, in registers. Returns a number
// that depends on all chains, so that the compiler cannot remove any.
float SpinFma(size_t rounds);

// Number of floating-point operations that SpinFma(rounds) executes with the active instruction
// set. A multiply-add counts as two.
double FmaFlops(size_t rounds);

// Sum of data[0 .. count), read sequentially at full load speed.
float ReadFloats(const float* data, size_t count);

// Writes ones to data[0 .. count) at full store speed. `past_caches` uses streaming stores, which
// bypass the caches and avoid reading lines before overwriting them. The faster choice depends on
// the size.
void WriteFloats(float* data, size_t count, bool past_caches);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MACHINE_PEAK_H_
