// Tile programs: code for one block of GPU threads, written once and compiled twice, for a GPU and
// for an executor on the CPU.
//
//   template <class Tile>
//   LINNET_TILE void SumTile(Tile& tile, const SumArgs& args) {
//     const auto parts = tile.template Shared<float>(0, tile.threads());
//     parts.Set(tile.thread(), args.x[tile.x() * tile.threads() + tile.thread()]);
//     tile.Barrier();
//     ...
//   }
//
// nvcc compiles it with DeviceTile (tile_device.cuh), whose members compile to a few instructions.
// The C++ compiler compiles it with ExecutorTile (tile_executor.h), which runs the threads of a
// block in turn and reports races, accesses outside of shared memory and divergent barriers. So the
// arithmetic and the synchronization of each kernel are tested on machines that have no GPU.
//
// A Tile has:
//
//   thread(), threads(), warp(), lane()    indexes in the block; 32 lanes per warp
//   x(), y(), z()                          index of the block in the grid
//   Shared<T>(offset, count)               `count` elements of shared memory from byte `offset` on
//   Barrier(), WarpBarrier()               wait for all threads of the block, or of the warp
//   Shuffle(value, lane), ShuffleXor(value, mask)     another lane's value (float or uint32_t)
//   CopyAsync(shared, index, from, valid)  starts a copy of 16 bytes from global to shared memory
//                                          (zeros if not valid), both aligned to 16 bytes
//   CopyCommit()                           ends a group of this thread's copies
//   CopyWait<pending>()                    waits until at most `pending` groups of this thread are
//                                          under way
//   LoadMatrix(r, shared, index)           loads four 8 x 8 matrices of bf16 (ldmatrix.x4); lane l
//                                          passes the index of row l % 8 of matrix l / 8
//   LoadMatrixTransposed(r, shared, index) the same, each matrix transposed
//   Multiply(d, a, b)                      d += a b for a warp, bf16 -> fp32 (mma.m16n8k16)
//   LoadStreaming(from, valid)             loads 16 bytes of global memory, zeros if not valid
//   StoreStreaming(to, value)              stores 16 bytes. LoadStreaming and StoreStreaming are
//                                          for data that is not used again soon: the caches evict
//                                          such data first
//   Prefetch(from)                         loads the cache line at `from` into the L2 cache
//
// For blocks that wait for other blocks, a Tile also has the functions below. One thread of the
// block calls Ticket, Publish or Await; a Barrier() separates the call from the accesses of the
// block's other threads.
//
//   Ticket(counter)                        adds 1 to *counter, returns its old value. Blocks that
//                                          take their work in the order of tickets wait only for
//                                          blocks that have started.
//   Publish(flag)                          sets *flag once all that the block has written is
//                                          visible to other blocks
//   Await(flag)                            waits until *flag is set
//   LoadFresh(from)                        reads a float that another block of this launch wrote
//                                          before its Publish()
//
// Shared<T> has Get(i), Set(i, value), and Load<V>(i), Store<V>(i, v) for a V of several elements,
// aligned to its size. Barriers, shuffles and matrix operations are collective: every thread of the
// block or of the warp must reach the same call.
//
// Layout of Multiply, with g = lane / 4 and t = lane % 4. A register of a or b holds two bf16, the
// first in its lower half:
//   a[0..3]: rows g, g + 8, g, g + 8 of A [16, 16]; columns 2 t, 2 t + 1 (plus 8 in a[2] and a[3])
//   b[0..1]: column g of B [16, 8]; rows 2 t, 2 t + 1 (plus 8 in b[1])
//   d[0..3]: row g columns 2 t, 2 t + 1; row g + 8 columns 2 t, 2 t + 1 of D [16, 8]
// LoadMatrix puts elements 2 t and 2 t + 1 of row g of matrix i into r[i].
#ifndef LINNET_KERNELS_CUDA_TILE_H_
#define LINNET_KERNELS_CUDA_TILE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/bfloat16.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#define LINNET_TILE __device__ __forceinline__
#define LINNET_HOST_TILE __host__ __device__ __forceinline__
#define LINNET_UNROLL _Pragma("unroll")
#else
#include <bit>
#define LINNET_TILE inline
#define LINNET_HOST_TILE inline
#define LINNET_UNROLL
#endif

namespace linnet::kernels::cuda {

inline constexpr unsigned kWarp = 32;

// 16 bytes, read and written at once.
struct alignas(16) Vector16 {
  uint32_t word[4];
};

LINNET_TILE float FloatOfBits(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// The elements of a pair of bf16.
LINNET_TILE float LowBf16(uint32_t pair) { return FloatOfBits(pair << 16); }
LINNET_TILE float HighBf16(uint32_t pair) { return FloatOfBits(pair & 0xffff0000u); }
LINNET_TILE float ToFloat(BFloat16 x) { return FloatOfBits(uint32_t{x.bits} << 16); }
LINNET_TILE float ToFloat(float x) { return x; }

// exp(x). On a GPU, the error is about 2 ulp for |x| <= 1 and 1.2 |x| ulp beyond, and results below
// FLT_MIN, the smallest normal float, are 0.
LINNET_TILE float Exp(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
#else
  return std::exp(x);
#endif
}

// 1 / x, or 0 if |x| is below FLT_MIN. On a GPU, the error is up to 1 ulp.
LINNET_TILE float Inverse(float x) {
#ifdef __CUDACC__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return fabsf(x) >= 1.17549435e-38f ? y : 0.0f;
#else
  return std::abs(x) >= 1.17549435e-38f ? 1.0f / x : 0.0f;
#endif
}

// Two floats rounded to the nearest bf16, ties to even; NaNs stay NaNs.
LINNET_TILE uint32_t PairBf16(float low, float high) {
#ifdef __CUDACC__
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  const auto narrow = [](float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  };
  return narrow(low) | narrow(high) << 16;
#endif
}
LINNET_TILE BFloat16 ToBf16(float x) {
  return {static_cast<uint16_t>(PairBf16(x, 0.0f) & 0xffffu)};
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TILE_H_
