#include "linnet/kernels/cuda/device.h"

#include "linnet/base/units.h"
#include "linnet/kernels/cuda/launch.cuh"

namespace linnet::kernels::cuda {
namespace {

// Device::Open() looks it up to find out whether kernels were built for the GPU.
__global__ void NothingKernel() {}

std::string Version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Device Device::Open() {
  int driver = 0, toolkit = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&toolkit);
  if (driver == 0) throw CudaError("no NVIDIA driver is loaded, so there is no GPU to use");
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver) {
    throw CudaError("the GPU's driver supports CUDA " + Version(driver) +
                    ", and this program was built with CUDA " + Version(toolkit) +
                    "; update the driver");
  }
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    throw CudaError("there is no GPU (CUDA_VISIBLE_DEVICES may hide it)");
  }
  Check(found, "looking for a GPU");
  int index = 0;
  Check(cudaGetDevice(&index), "choosing a GPU");
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties");
  Device device{.name = properties.name,
                .major = properties.major,
                .minor = properties.minor,
                .processors = properties.multiProcessorCount};
  cudaFuncAttributes attributes{};
  const cudaError_t built = cudaFuncGetAttributes(&attributes, NothingKernel);
  if (built == cudaErrorNoKernelImageForDevice || built == cudaErrorInvalidDeviceFunction) {
    throw CudaError("no kernel was built for this GPU, " + device.name +
                    "; build with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(device.major) +
                    std::to_string(device.minor));
  }
  Check(built, "looking for kernels for this GPU");
  Check(cudaMemGetInfo(&device.free, &device.memory), "reading the size of the GPU's memory");
  return device;
}

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const cudaError_t error = cudaMalloc(&data_, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error: the GPU is still usable
    size_t free = 0, all = 0;
    cudaMemGetInfo(&free, &all);
    throw CudaError("the GPU has no room for " + FormatBytes(bytes) + ": only " +
                    FormatBytes(free) + " of its memory are free; use a smaller batch");
  }
  Check(error, "reserving memory");
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)),
        "copy to the GPU");
  Synchronize(stream);
}
void CopyToHost(void* to, const void* from, size_t bytes, Stream stream) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)),
        "copy from the GPU");
  Synchronize(stream);
}
void CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  Check(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
      "copy on the GPU");
}
void SetBytes(void* to, int value, size_t bytes, Stream stream) {
  Check(cudaMemsetAsync(to, value, bytes, static_cast<cudaStream_t>(stream)),
        "filling the GPU's memory");
}
void Synchronize(Stream stream) {
  Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the GPU");
}

namespace {

class Event {
 public:
  Event() { Check(cudaEventCreate(&event_), "creating an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void Record(Stream stream) {
    Check(cudaEventRecord(event_, static_cast<cudaStream_t>(stream)), "recording an event");
  }
  double SecondsSince(const Event& start) {
    Check(cudaEventSynchronize(event_), "waiting for an event");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "reading the GPU's clock");
    return 1e-3 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

double SecondsOf(FunctionRef<void()> body, Stream stream, int runs) {
  Event start, stop;
  start.Record(stream);
  for (int i = 0; i < runs; ++i) body();
  stop.Record(stream);
  return stop.SecondsSince(start) / runs;
}

}  // namespace linnet::kernels::cuda
