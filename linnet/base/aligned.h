// A cache-line-aligned, zero-initialized array of a trivially copyable type. It can be moved, but
// copied only by an explicit Copy(): weights and recurrent states often take megabytes.
//
//   AlignedBuffer<float> scratch(rows * cols);
//   AlignedBuffer<float> twin = scratch.Copy();
#ifndef LINNET_BASE_ALIGNED_H_
#define LINNET_BASE_ALIGNED_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace linnet {

inline constexpr size_t kCacheLine = 64;

// The smallest multiple of `step` that is at least `n`.
constexpr size_t RoundUp(size_t n, size_t step) { return (n + step - 1) / step * step; }

// The first cache line that begins at or after this address, which is aligned for a float. Null
// stays null.
inline float* NextCacheLine(float* at) {
  const size_t past = reinterpret_cast<uintptr_t>(at) % kCacheLine;
  return past == 0 ? at : at + (kCacheLine - past) / sizeof(float);
}

// Bytes of a huge page. Arrays of at least 2 * kHugePage bytes request huge pages: a batch of
// recurrent states would span thousands of 4 kB pages, and accesses to it would miss the TLB.
inline constexpr size_t kHugePage = size_t{2} << 20;

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) : size_(size) {
    if (size == 0) return;
    if (size > SIZE_MAX / 2 / sizeof(T)) throw std::bad_alloc();
    const bool huge = size * sizeof(T) >= 2 * kHugePage;
    const size_t bytes = RoundUp(size * sizeof(T), kCacheLine);
    void* memory = nullptr;
    if (posix_memalign(&memory, huge ? kHugePage : kCacheLine, bytes) != 0) throw std::bad_alloc();
    data_.reset(static_cast<T*>(memory));
    if (huge) madvise(data_.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  AlignedBuffer Copy() const {
    AlignedBuffer copy(size_);
    if (size_ > 0) std::memcpy(static_cast<void*>(copy.data()), data(), size_ * sizeof(T));
    return copy;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

inline AlignedBuffer<float> AlignedCopy(std::span<const float> from) {
  AlignedBuffer<float> copy(from.size());
  std::copy(from.begin(), from.end(), copy.begin());
  return copy;
}

}  // namespace linnet

#endif  // LINNET_BASE_ALIGNED_H_
