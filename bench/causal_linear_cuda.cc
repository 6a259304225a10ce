// linnet bench causal-linear --device cuda. The limit is the time to read the inputs and write the
// outputs of a pass once, at the rate of a copy in the same run.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <iostream>
#include <set>
#include <type_traits>

#include "bench/causal_linear.h"
#include "bench/gpu_seconds.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/kernels/cuda/causal_linear.h"
#include "linnet/kernels/cuda/device.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

using kernels::BFloat16;
using kernels::CausalLinearOptions;
using kernels::CausalLinearShape;
namespace cuda = kernels::cuda;

double ToDouble(float x) { return x; }
double ToDouble(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  return std::bit_cast<float>(bits);
}

// One problem, with all the tensors of a training step. T is their element type.
template <typename T>
class GpuCase {
 public:
  GpuCase(const CausalLinearBench& options, const cuda::Device& device, size_t length)
      : rows_(options.layout == "row"),
        shape_{.batch = options.batch,
               .length = length,
               .heads = options.heads,
               .dim = options.dim,
               .value_dim = options.value_dim},
        processors_(device.processors),
        segments_(static_cast<unsigned>(options.segments)) {
    for (auto* x : {&q_, &k_, &grad_q_, &grad_k_}) *x = Make(shape_.dim);
    for (auto* x : {&v_, &out_, &grad_out_, &grad_v_}) *x = Make(shape_.value_dim);
    uint64_t stream = 0;
    for (auto* x : {&q_, &k_, &v_, &grad_out_}) Fill(*x, stream++);
    const cuda::CausalLinearPlan plan = Plan({});
    kept_ = cuda::DeviceBuffer<float>(plan.kept);
    scratch_ = cuda::DeviceBuffer<float>(plan.scratch);
  }

  const CausalLinearShape& shape() const { return shape_; }
  cuda::CausalLinearPlan Plan(const CausalLinearOptions& options) const {
    return cuda::PlanCausalLinear(shape_, options, processors_, /*packed=*/false, segments_);
  }

  void Forward(const CausalLinearOptions& options) {
    kernels::CausalLinearForwardArgsOf<T> args;
    args.q = In(q_, shape_.dim), args.k = In(k_, shape_.dim), args.v = In(v_, shape_.value_dim);
    args.out = View(out_.data(), shape_.value_dim);
    args.kept = kept_.data();
    cuda::CausalLinearForward(Plan(options), args, scratch_.data(), nullptr);
  }
  void Backward(const CausalLinearOptions& options) {
    kernels::CausalLinearBackwardArgsOf<T> args;
    args.q = In(q_, shape_.dim), args.k = In(k_, shape_.dim), args.v = In(v_, shape_.value_dim);
    args.out = In(out_, shape_.value_dim), args.grad_out = In(grad_out_, shape_.value_dim);
    args.kept = kept_.data();
    args.grad_q = View(grad_q_.data(), shape_.dim), args.grad_k = View(grad_k_.data(), shape_.dim);
    args.grad_v = View(grad_v_.data(), shape_.value_dim);
    cuda::CausalLinearBackward(Plan(options), args, scratch_.data(), nullptr);
  }

  // Bytes of the inputs and outputs of the forward pass, or of both passes.
  double Bytes(bool backward) const {
    const double keys = static_cast<double>(q_.size() * sizeof(T));
    const double values = static_cast<double>(v_.size() * sizeof(T));
    const double forward = 2 * keys + 2 * values;
    return backward ? forward + 4 * keys + 4 * values : forward;
  }
  // Copies q and k to grad_q and grad_k, to measure the memory's bandwidth.
  void Copy() {
    cuda::CopyOnDevice(grad_q_.data(), q_.data(), q_.size() * sizeof(T));
    cuda::CopyOnDevice(grad_k_.data(), k_.data(), k_.size() * sizeof(T));
  }
  double CopyBytes() const { return static_cast<double>(4 * q_.size() * sizeof(T)); }

  void Check(const CausalLinearForm& form) {
    for (auto* x : {&out_, &grad_q_, &grad_k_, &grad_v_}) {
      cuda::SetBytes(x->data(), 0xff, x->size() * sizeof(T));  // NaNs, to find unwritten elements
    }
    Forward(form.options);
    Backward(form.options);
    // Checks the first head of the first sequence and the last head of the last one.
    const size_t places = shape_.batch * shape_.heads;
    std::vector<CausalLinearHead> heads(std::min<size_t>(places, 2));
    for (size_t i = 0; i < heads.size(); ++i) {
      const size_t place = i * (places - 1);
      heads[i] = {.q = Head(q_, shape_.dim, place),
                  .k = Head(k_, shape_.dim, place),
                  .v = Head(v_, shape_.value_dim, place),
                  .grad_out = Head(grad_out_, shape_.value_dim, place),
                  .out = Head(out_, shape_.value_dim, place),
                  .grad_q = Head(grad_q_, shape_.dim, place),
                  .grad_k = Head(grad_k_, shape_.dim, place),
                  .grad_v = Head(grad_v_, shape_.value_dim, place)};
    }
    CheckCausalLinear(shape_, form, std::is_same_v<T, BFloat16>, heads);
  }

 private:
  using Buffer = cuda::DeviceBuffer<T>;

  Buffer Make(size_t dim) const {
    return Buffer(shape_.batch * shape_.heads * shape_.length * dim);
  }
  // Fills x with random numbers. They repeat after kPeriod elements, to save time.
  void Fill(const Buffer& x, uint64_t stream) const {
    constexpr size_t kPeriod = 1'048'573;
    Philox rng(/*seed=*/shape_.length, stream);
    std::vector<T> values(x.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (i >= kPeriod) {
        values[i] = values[i - kPeriod];
        continue;
      }
      const float wide = 2 * rng.Uniform() - 1;
      if constexpr (std::is_same_v<T, float>) {
        values[i] = wide;
      } else {
        kernels::Narrow(1, &wide, &values[i]);
      }
    }
    x.Write(values.data());
  }
  template <typename U>
  kernels::Strided<U> View(U* x, size_t dim) const {
    return rows_ ? kernels::RowMajor(x, shape_.length, shape_.heads, dim)
                 : kernels::HeadMajor(x, shape_.length, shape_.heads, dim);
  }
  kernels::Strided<const T> In(const Buffer& x, size_t dim) const {
    return View<const T>(x.data(), dim);
  }
  // Copies one head of one sequence from the GPU, row-major; `place` is sequence * heads + head.
  std::vector<double> Head(const Buffer& x, size_t dim, size_t place) const {
    std::vector<T> all(x.size());
    x.Read(all.data());
    const kernels::Strided<const T> view = View<const T>(all.data(), dim);
    std::vector<double> values;
    for (size_t i = 0; i < shape_.length; ++i) {
      const T* row = view.At(place / shape_.heads, i, place % shape_.heads);
      for (size_t c = 0; c < dim; ++c) values.push_back(ToDouble(row[c]));
    }
    return values;
  }

  const bool rows_;  // layout (N, H, D); otherwise (H, N, D)
  const CausalLinearShape shape_;
  const int processors_;
  const unsigned segments_;
  Buffer q_, k_, v_, grad_out_, out_, grad_q_, grad_k_, grad_v_;
  cuda::DeviceBuffer<float> kept_, scratch_;
};

template <typename T>
void Run(const CausalLinearBench& options) {
  const cuda::Device device = cuda::Device::Open();
  std::vector<Record> records;
  for (size_t length = options.min_n; length <= options.max_n; length *= 2) {
    const double values = static_cast<double>(options.batch * options.heads * length);
    const double need =
        4 * values * static_cast<double>(options.dim + options.value_dim) * sizeof(T);
    if (need > 0.9 * static_cast<double>(device.free)) {
      const std::string what =
          StrCat("N = ", length, " needs ", FormatBytes(need), " of GPU memory, and ",
                 FormatBytes(static_cast<double>(device.free)), " are free");
      if (records.empty()) {
        throw InputError("bench causal-linear: ", what, "; give a smaller --min-n or --batch");
      }
      std::cerr << "linnet bench causal-linear: left out: " << what << std::endl;
      break;
    }
    GpuCase<T> problem(options, device, length);
    for (const CausalLinearForm& form : kCausalLinearForms) problem.Check(form);

    const auto forward = [&](int form) { problem.Forward(kCausalLinearForms[form].options); };
    const auto both = [&](int form) {
      forward(form);
      problem.Backward(kCausalLinearForms[form].options);
    };
    const auto bare_forward = [&] { forward(0); };
    const auto bare_both = [&] { both(0); };
    const auto fused_forward = [&] { forward(1); };
    const auto fused_both = [&] { both(1); };
    const auto copy = [&] { problem.Copy(); };
    const FunctionRef<void()> bodies[] = {bare_forward, bare_both, fused_forward, fused_both, copy};
    const std::vector<double> median = GpuSeconds(bodies);
    const double bandwidth = problem.CopyBytes() / median.back();
    const char* const passes[] = {"forward", "forward+backward"};
    for (size_t form : {0, 1}) {
      for (size_t pass : {0, 1}) {
        const double time = median[2 * form + pass];
        nlohmann::ordered_json with = {
            {"N", length},
            {"batch", options.batch},
            {"heads", options.heads},
            {"dim", options.dim},
            {"value_dim", options.value_dim},
            {"layout", options.layout},
            {"precision", options.precision},
            {"device", device.name},
            {"segments", problem.Plan({}).segments},
            {"copy_gb_s", 1e-9 * bandwidth},
            {"tflops", 1e-12 * CausalLinearFlops(problem.shape(), pass == 1) / time},
        };
        records.push_back(
            {.name = StrCat("causal-linear/", kCausalLinearForms[form].name, "/", passes[pass]),
             .label = StrCat("N=", length),
             .value = 1e3 * time,
             .unit = "ms",
             .limit = 1e3 * problem.Bytes(pass == 1) / bandwidth,
             .identity = with});
      }
    }
  }
  PrintRecords(records, options.json);
}

}  // namespace

void RunCausalLinearOnGpu(const CausalLinearBench& asked) {
  CausalLinearBench options = asked;
  if (options.batch == 0) options.batch = 16;
  if (!cuda::SupportsCausalLinear({.batch = options.batch,
                                   .length = options.min_n,
                                   .heads = options.heads,
                                   .dim = options.dim,
                                   .value_dim = options.value_dim})) {
    throw InputError("--device cuda: --dim and --value-dim must be multiples of 8, at most 128");
  }
  options.precision == "bf16" ? Run<BFloat16>(options) : Run<float>(options);
}

}  // namespace linnet::bench
