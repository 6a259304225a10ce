// linnet bench scan --device cuda. The limit is the time to read the inputs and write the outputs
// of a pass once, at the rate of a copy in the same run.
#include <iostream>

#include "bench/gpu_seconds.h"
#include "bench/scan.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/kernels/cuda/device.h"
#include "linnet/kernels/cuda/scan.h"

namespace linnet::bench {
namespace {

namespace cuda = kernels::cuda;

// A problem for one policy, with all the tensors of a training step.
class GpuScanCase {
 public:
  GpuScanCase(const ScanBench& options, const ScanPolicy& policy, size_t length)
      : data_(options, policy, length), plan_(cuda::PlanScan(data_.shape, data_.options)) {
    for (size_t i = 0; i < 6; ++i) {
      in_[i] = Upload(data_.in[i]);
      grad_[i] = cuda::DeviceBuffer<float>(data_.in[i].size());
    }
    grad_out_ = Upload(data_.grad_out);
    out_ = cuda::DeviceBuffer<float>(data_.in[2].size());
    kept_ = cuda::DeviceBuffer<float>(plan_.kept);
    scratch_ = cuda::DeviceBuffer<float>(plan_.scratch);
  }

  void Forward() {
    cuda::ScanForward(plan_,
                      {.in = In(),
                       .out = data_.View<float>(out_.data(), data_.shape.value_dim),
                       .kept = kept_.data()},
                      nullptr);
  }
  void Backward() {
    kernels::ScanBackwardArgs args;
    args.in = In(), args.kept = kept_.data();
    args.grad_out = data_.View<const float>(grad_out_.data(), data_.shape.value_dim);
    args.grad = data_.Tensors<float>([&](size_t i) { return grad_[i].data(); });
    cuda::ScanBackward(plan_, args, scratch_.data(), nullptr);
  }
  // Copies the values to their gradient, to measure the memory's bandwidth.
  void Copy() { cuda::CopyOnDevice(grad_[2].data(), in_[2].data(), in_[2].size() * sizeof(float)); }
  double CopyBytes() const { return static_cast<double>(2 * in_[2].size() * sizeof(float)); }

  // Bytes of the inputs and outputs of the forward pass, or of both passes.
  double Bytes(bool backward) const {
    size_t inputs = 0;
    for (const auto& x : in_) inputs += x.size();
    const size_t forward = inputs + out_.size();
    return 4.0 * static_cast<double>(backward ? 2 * (inputs + out_.size()) + inputs : forward);
  }

  // Compares the first head of the first sequence and the last one of the last sequence with the
  // reference.
  void Check() {
    for (const auto& x : grad_) cuda::SetBytes(x.data(), 0xff, x.size() * sizeof(float));  // NaN
    cuda::SetBytes(out_.data(), 0xff, out_.size() * sizeof(float));
    Forward();
    Backward();
    const auto read = [](const cuda::DeviceBuffer<float>& x) {
      ScanData::Buffer values(x.size());
      x.Read(values.data());
      return values;
    };
    const ScanData::Buffer out = read(out_);
    ScanData::Buffer grad[6];
    const float* grads[6];
    for (size_t i = 0; i < 6; ++i) grad[i] = read(grad_[i]), grads[i] = grad[i].data();
    data_.Check(0, out.data(), grads);
    data_.Check(data_.shape.batch * data_.shape.heads - 1, out.data(), grads);
  }

 private:
  static cuda::DeviceBuffer<float> Upload(const ScanData::Buffer& x) {
    cuda::DeviceBuffer<float> buffer(x.size());
    buffer.Write(x.data());
    return buffer;
  }
  kernels::ScanTensors<const float> In() const {
    return data_.Tensors<const float>([&](size_t i) { return in_[i].data(); });
  }

  const ScanData data_;
  const cuda::ScanPlan plan_;
  cuda::DeviceBuffer<float> in_[6], grad_[6];  // as in data_.in
  cuda::DeviceBuffer<float> out_, grad_out_, kept_, scratch_;
};

void Measure(const ScanBench& options, const ScanPolicy& policy, size_t length,
             const cuda::Device& device, std::vector<Record>& records) {
  GpuScanCase problem(options, policy, length);
  problem.Check();
  const auto forward = [&] { problem.Forward(); };
  const auto both = [&] {
    problem.Forward();
    problem.Backward();
  };
  const auto copy = [&] { problem.Copy(); };
  const FunctionRef<void()> bodies[] = {forward, both, copy};
  const std::vector<double> median = GpuSeconds(bodies);
  const double bandwidth = problem.CopyBytes() / median[2];
  const char* const passes[] = {"forward", "forward+backward"};
  for (size_t pass : {0, 1}) {
    const double products = pass == 1 ? policy.both : policy.forward;
    const double operations = 2 * products *
                              static_cast<double>(options.batch * length * options.heads) *
                              static_cast<double>(options.dim * options.dim);
    records.push_back({.name = StrCat("scan/", policy.name, "/", passes[pass]),
                       .label = StrCat("N=", length),
                       .value = 1e3 * median[pass],
                       .unit = "ms",
                       .limit = 1e3 * problem.Bytes(pass == 1) / bandwidth,
                       .identity = {{"N", length},
                                    {"batch", options.batch},
                                    {"heads", options.heads},
                                    {"dim", options.dim},
                                    {"layout", options.layout},
                                    {"precision", "f32"},
                                    {"device", device.name},
                                    {"copy_gb_s", 1e-9 * bandwidth},
                                    {"tflops", 1e-12 * operations / median[pass]}}});
  }
}

}  // namespace

void RunScanOnGpu(const ScanBench& asked) {
  ScanBench options = asked;
  if (options.batch == 0) options.batch = 16;
  const cuda::Device device = cuda::Device::Open();
  std::vector<Record> records;
  for (size_t length = options.min_n; length <= options.max_n; length *= 2) {
    // GpuScanCase has at most 24 fp32 tensors [batch, length, heads, dim].
    const double need =
        4.0 * 24 * static_cast<double>(options.batch * length * options.heads * options.dim);
    if (need > 0.9 * static_cast<double>(device.free)) {
      const std::string what =
          StrCat("N = ", length, " needs ", FormatBytes(need), " of GPU memory, and ",
                 FormatBytes(static_cast<double>(device.free)), " are free");
      if (records.empty()) {
        throw InputError("bench scan: ", what, "; give a smaller --min-n or --batch");
      }
      std::cerr << "linnet bench scan: left out: " << what << std::endl;
      break;
    }
    for (const ScanPolicy& policy : kScanPolicies) {
      if (Chosen(policy, options.policies)) Measure(options, policy, length, device, records);
    }
  }
  PrintRecords(records, options.json);
}

}  // namespace linnet::bench
