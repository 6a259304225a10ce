// The properties, the memory and the clock of a GPU. Does not include CUDA's headers.
//
//   const Device device = Device::Open();            // throws CudaError if there is no usable GPU
//   DeviceBuffer<float> x(n);
//   x.Write(values.data());
//   const double seconds = SecondsOf([&] { Kernel(x.data(), stream); }, stream, /*runs=*/10);
#ifndef LINNET_KERNELS_CUDA_DEVICE_H_
#define LINNET_KERNELS_CUDA_DEVICE_H_

#include <cstddef>
#include <string>
#include <utility>

#include "linnet/base/function_ref.h"
#include "linnet/kernels/cuda/error.h"

namespace linnet::kernels::cuda {

using Stream = void*;  // a cudaStream_t; null: the default stream

struct Device {
  std::string name;
  int major = 0, minor = 0;     // compute capability
  int processors = 0;           // multiprocessors
  size_t memory = 0, free = 0;  // bytes

  // Returns the current GPU. Throws CudaError if there is no GPU, if the driver is older than the
  // toolkit that built this library, or if no kernel was built for the GPU. The message names a
  // remedy if one is known.
  static Device Open();
};

// Owns memory of the GPU. The constructor throws CudaError if there is too little; the message
// gives the needed and the free bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// CopyToDevice and CopyToHost wait for earlier work on the stream and return when the copy is done.
void CopyToDevice(void* to, const void* from, size_t bytes, Stream stream = nullptr);
void CopyToHost(void* to, const void* from, size_t bytes, Stream stream = nullptr);
// CopyOnDevice and SetBytes return before the GPU is done.
void CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream = nullptr);
void SetBytes(void* to, int value, size_t bytes, Stream stream = nullptr);
void Synchronize(Stream stream = nullptr);

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : memory_(size * sizeof(T)), size_(size) {}

  T* data() const { return static_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  void Write(const T* from) const { CopyToDevice(data(), from, size_ * sizeof(T)); }
  void Read(T* to) const { CopyToHost(to, data(), size_ * sizeof(T)); }

 private:
  DeviceMemory memory_;
  size_t size_ = 0;
};

// Calls `body` `runs` times in a row. Returns the mean seconds, by the GPU's clock, that the GPU
// takes for the work that one call launches on the stream.
double SecondsOf(FunctionRef<void()> body, Stream stream, int runs);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_DEVICE_H_
