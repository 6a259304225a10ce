// DeviceTile, the Tile of a tile program (tile.h) on a GPU. Each member compiles to a few
// instructions.
//
//   __global__ void Sum(SumArgs args) {
//     DeviceTile tile;
//     SumTile(tile, args);
//   }
#ifndef LINNET_KERNELS_CUDA_TILE_DEVICE_CUH_
#define LINNET_KERNELS_CUDA_TILE_DEVICE_CUH_

#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

extern __shared__ __align__(128) unsigned char tile_memory[];

template <typename T>
class DeviceShared {
 public:
  __device__ __forceinline__ explicit DeviceShared(T* data) : data_(data) {}

  __device__ __forceinline__ T Get(unsigned i) const { return data_[i]; }
  __device__ __forceinline__ void Set(unsigned i, T value) const { data_[i] = value; }
  template <typename V>
  __device__ __forceinline__ V Load(unsigned i) const {
    return *reinterpret_cast<const V*>(data_ + i);
  }
  template <typename V>
  __device__ __forceinline__ void Store(unsigned i, const V& value) const {
    *reinterpret_cast<V*>(data_ + i) = value;
  }
  __device__ __forceinline__ uint32_t Address(unsigned i) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data_ + i));
  }

 private:
  T* data_;
};

class DeviceTile {
 public:
  template <typename T>
  __device__ __forceinline__ DeviceShared<T> Shared(unsigned offset, unsigned) const {
    return DeviceShared<T>(reinterpret_cast<T*>(tile_memory + offset));
  }
  __device__ __forceinline__ unsigned thread() const { return threadIdx.x; }
  __device__ __forceinline__ unsigned threads() const { return blockDim.x; }
  __device__ __forceinline__ unsigned warp() const { return threadIdx.x / kWarp; }
  __device__ __forceinline__ unsigned lane() const { return threadIdx.x % kWarp; }
  __device__ __forceinline__ unsigned x() const { return blockIdx.x; }
  __device__ __forceinline__ unsigned y() const { return blockIdx.y; }
  __device__ __forceinline__ unsigned z() const { return blockIdx.z; }

  __device__ __forceinline__ void Barrier() const { __syncthreads(); }
  __device__ __forceinline__ void WarpBarrier() const { __syncwarp(); }
  template <typename T>
  __device__ __forceinline__ T Shuffle(T value, unsigned lane) const {
    return __shfl_sync(~0u, value, static_cast<int>(lane));
  }
  template <typename T>
  __device__ __forceinline__ T ShuffleXor(T value, unsigned mask) const {
    return __shfl_xor_sync(~0u, value, static_cast<int>(mask));
  }

  template <typename T>
  __device__ __forceinline__ void CopyAsync(DeviceShared<T> to, unsigned index, const T* from,
                                            bool valid) const {
    const unsigned bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.Address(index)),
                 "l"(from), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void CopyCommit() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  template <int kPending>
  __device__ __forceinline__ void CopyWait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

  __device__ __forceinline__ Vector16 LoadStreaming(const Vector16* from, bool valid) const {
    Vector16 v = {};
    asm volatile(  // a predicated load instead of a branch
        "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
        "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
        : "l"(from), "r"(static_cast<unsigned>(valid)));
    return v;
  }
  __device__ __forceinline__ void StoreStreaming(Vector16* to, const Vector16& v) const {
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]));
  }
  __device__ __forceinline__ void Prefetch(const void* from) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }

  __device__ __forceinline__ unsigned Ticket(unsigned* counter) const {
    return atomicAdd(counter, 1u);
  }
  __device__ __forceinline__ void Publish(unsigned* flag) const {
    __threadfence();
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
  }
  __device__ __forceinline__ void Await(const unsigned* flag) const {
    unsigned set = 0;
    while (set == 0) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
    }
    __threadfence();
  }
  __device__ __forceinline__ float LoadFresh(const float* from) const { return __ldcg(from); }

  __device__ __forceinline__ void LoadMatrix(uint32_t (&r)[4], DeviceShared<BFloat16> shared,
                                             unsigned index) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared.Address(index))
                 : "memory");
  }
  __device__ __forceinline__ void LoadMatrixTransposed(uint32_t (&r)[4],
                                                       DeviceShared<BFloat16> shared,
                                                       unsigned index) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared.Address(index))
                 : "memory");
  }
  __device__ __forceinline__ void Multiply(float (&d)[4], const uint32_t (&a)[4],
                                           const uint32_t (&b)[2]) const {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TILE_DEVICE_CUH_
