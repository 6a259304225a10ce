// Runs tile programs (tile.h) on the CPU and finds their faults.
//
//   RunTiles({.blocks = {2, 3, 1}, .threads = 128, .shared_bytes = 4096},
//            [&](ExecutorTile& tile) { SumTile(tile, args); });
//
// Blocks run one after another. The threads of a block are fibers on the calling thread: each runs
// until it waits at a barrier or another collective operation. `seed` selects the order of blocks
// and of threads.
//
// Throws TileFault, with the source line, for
//   bounds        an access outside of its array, or an array outside of the block's shared memory
//   alignment     an access that is not aligned to its size, or a CopyAsync or LoadMatrix that is
//                 not aligned to 16 bytes
//   race          two accesses to a byte by different threads, one of them a write, without a
//                 Barrier(), or a WarpBarrier() of their warp, between them. Shuffles and matrix
//                 operations order nothing. A race is found in whatever order the threads run.
//   uninitialized a read of shared memory that the block has not written yet
//   divergence    a collective operation that other threads of the block or warp do not reach; an
//                 Await() of a flag that no earlier block has published
//   copy          an access to the target of a CopyAsync() before the thread that copies has waited
//                 for the copy; a CopyAsync() that its thread never waits for
//
// CopyAsync() copies as late as possible, in CopyWait(). LoadMatrix() counts as a read by the lanes
// that get the elements, not by those that give the indexes. Multiply() sums exact products in
// double and rounds once; a GPU rounds more often. Races between blocks are not found, and global
// memory is left to AddressSanitizer.
#ifndef LINNET_KERNELS_CUDA_TILE_EXECUTOR_H_
#define LINNET_KERNELS_CUDA_TILE_EXECUTOR_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>

#include "linnet/error.h"
#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

class TileFault : public RuntimeError {
 public:
  enum class Fault { kBounds, kAlignment, kRace, kUninitialized, kDivergence, kCopy };

  TileFault(Fault fault, const std::string& message) : RuntimeError(message), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

class ExecutorTile;

struct TileLaunch {
  std::array<unsigned, 3> blocks = {1, 1, 1};
  unsigned threads = kWarp;  // a multiple of 32, at most 1,024
  size_t shared_bytes = 0;   // at most 227 KB, the limit of sm_90 and sm_100
  // 0: blocks and threads take turns in the order of their indexes. Otherwise, blocks run in a
  // random order, and the next thread is drawn at random from the threads that can run.
  uint64_t seed = 0;
};

// Runs `program` on each thread of each block. Throws TileFault for a fault of the program,
// InputError for a launch that no GPU accepts; exceptions of the program pass through.
void RunTiles(const TileLaunch& launch, const std::function<void(ExecutorTile&)>& program);

// Interface to the shared memory and the threads of the running block. tile_executor.cc implements
// it.
class ExecutorBlock {
 public:
  enum class Collective {
    kNone,
    kBarrier,
    kWarpBarrier,
    kShuffle,
    kLoadMatrix,
    kLoadMatrixTransposed,
    kMultiply
  };
  using Where = std::source_location;

  virtual ~ExecutorBlock() = default;
  // Read and Write check an access to bytes [offset, offset + bytes) of an array, and return the
  // address of the first byte. The array is bytes [array, array + array_bytes) of shared memory;
  // CheckArray checks its bounds and alignment.
  virtual const unsigned char* Read(unsigned thread, size_t array, size_t array_bytes,
                                    size_t offset, size_t bytes, size_t align, Where where) = 0;
  virtual unsigned char* Write(unsigned thread, size_t array, size_t array_bytes, size_t offset,
                               size_t bytes, size_t align, Where where) = 0;
  virtual void CheckArray(unsigned thread, size_t array, size_t array_bytes, size_t align,
                          Where where) = 0;

  virtual void Barrier(unsigned thread, Where where) = 0;
  virtual void WarpBarrier(unsigned thread, Where where) = 0;
  virtual uint32_t Shuffle(unsigned thread, uint32_t value, unsigned lane, Where where) = 0;
  virtual void CopyAsync(unsigned thread, size_t array, size_t array_bytes, size_t offset,
                         const void* from, bool valid, Where where) = 0;
  virtual void CopyCommit(unsigned thread) = 0;
  virtual void CopyWait(unsigned thread, size_t pending) = 0;
  virtual void LoadMatrix(unsigned thread, uint32_t* r, bool transposed, size_t array,
                          size_t array_bytes, size_t offset, Where where) = 0;
  virtual void Multiply(unsigned thread, float* d, const uint32_t* a, const uint32_t* b,
                        Where where) = 0;
};

template <typename T>
class ExecutorShared {
 public:
  using Where = std::source_location;

  T Get(unsigned i, Where where = Where::current()) const { return Read<T>(i, where); }
  void Set(unsigned i, T value, Where where = Where::current()) const { Write<T>(i, value, where); }
  template <typename V>
  V Load(unsigned i, Where where = Where::current()) const {
    return Read<V>(i, where);
  }
  template <typename V>
  void Store(unsigned i, const V& value, Where where = Where::current()) const {
    Write<V>(i, value, where);
  }

 private:
  friend class ExecutorTile;
  static_assert(std::is_trivially_copyable_v<T>);

  ExecutorShared(ExecutorBlock* block, unsigned thread, size_t array, size_t bytes)
      : block_(block), thread_(thread), array_(array), bytes_(bytes) {}

  template <typename V>
  V Read(unsigned i, Where where) const {
    static_assert(std::is_trivially_copyable_v<V>);
    V value;
    std::memcpy(
        &value,
        block_->Read(thread_, array_, bytes_, size_t{i} * sizeof(T), sizeof(V), sizeof(V), where),
        sizeof(V));
    return value;
  }
  template <typename V>
  void Write(unsigned i, const V& value, Where where) const {
    static_assert(std::is_trivially_copyable_v<V>);
    std::memcpy(
        block_->Write(thread_, array_, bytes_, size_t{i} * sizeof(T), sizeof(V), sizeof(V), where),
        &value, sizeof(V));
  }

  ExecutorBlock* block_;
  unsigned thread_;
  size_t array_, bytes_;  // the array's first byte in shared memory, and its size
};

class ExecutorTile {
 public:
  using Where = std::source_location;

  ExecutorTile(ExecutorBlock* block, unsigned thread, unsigned threads,
               const std::array<unsigned, 3>& index)
      : block_(block), thread_(thread), threads_(threads), index_(index) {}

  template <typename T>
  ExecutorShared<T> Shared(unsigned offset, unsigned count, Where where = Where::current()) const {
    const size_t bytes = size_t{count} * sizeof(T);
    block_->CheckArray(thread_, offset, bytes, alignof(T), where);
    return ExecutorShared<T>(block_, thread_, offset, bytes);
  }
  unsigned thread() const { return thread_; }
  unsigned threads() const { return threads_; }
  unsigned warp() const { return thread_ / kWarp; }
  unsigned lane() const { return thread_ % kWarp; }
  unsigned x() const { return index_[0]; }
  unsigned y() const { return index_[1]; }
  unsigned z() const { return index_[2]; }

  void Barrier(Where where = Where::current()) const { block_->Barrier(thread_, where); }
  void WarpBarrier(Where where = Where::current()) const { block_->WarpBarrier(thread_, where); }
  template <typename T>
  T Shuffle(T value, unsigned lane, Where where = Where::current()) const {
    static_assert(sizeof(T) == sizeof(uint32_t));
    return std::bit_cast<T>(block_->Shuffle(thread_, std::bit_cast<uint32_t>(value), lane, where));
  }
  template <typename T>
  T ShuffleXor(T value, unsigned mask, Where where = Where::current()) const {
    return Shuffle(value, lane() ^ mask, where);
  }

  template <typename T>
  void CopyAsync(ExecutorShared<T> to, unsigned index, const T* from, bool valid,
                 Where where = Where::current()) const {
    block_->CopyAsync(thread_, to.array_, to.bytes_, size_t{index} * sizeof(T), from, valid, where);
  }
  void CopyCommit() const { block_->CopyCommit(thread_); }
  template <int kPending>
  void CopyWait() const {
    static_assert(kPending >= 0);
    block_->CopyWait(thread_, kPending);
  }

  template <typename V>
  V LoadStreaming(const V* from, bool valid) const {
    return valid ? *from : V{};
  }
  template <typename V>
  void StoreStreaming(V* to, const V& value) const {
    *to = value;
  }
  void Prefetch(const void*) const {}

  unsigned Ticket(unsigned* counter) const { return (*counter)++; }
  void Publish(unsigned* flag) const { *flag = 1; }
  void Await(const unsigned* flag, Where where = Where::current()) const {
    if (*flag == 0) {
      throw TileFault(TileFault::Fault::kDivergence,
                      StrCat(where.file_name(), ":", where.line(),
                             ": the block waits for a flag that no earlier block has published"));
    }
  }
  float LoadFresh(const float* from) const { return *from; }

  void LoadMatrix(uint32_t (&r)[4], ExecutorShared<BFloat16> shared, unsigned index,
                  Where where = Where::current()) const {
    block_->LoadMatrix(thread_, r, false, shared.array_, shared.bytes_,
                       size_t{index} * sizeof(BFloat16), where);
  }
  void LoadMatrixTransposed(uint32_t (&r)[4], ExecutorShared<BFloat16> shared, unsigned index,
                            Where where = Where::current()) const {
    block_->LoadMatrix(thread_, r, true, shared.array_, shared.bytes_,
                       size_t{index} * sizeof(BFloat16), where);
  }
  void Multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                Where where = Where::current()) const {
    block_->Multiply(thread_, d, a, b, where);
  }

 private:
  ExecutorBlock* block_;
  unsigned thread_, threads_;
  std::array<unsigned, 3> index_;
};

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TILE_EXECUTOR_H_
