#include "bench/products.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "linnet/base/function_ref.h"
#include "linnet/kernels/linear.h"
#include "linnet/model/spec.h"
#include "linnet/state.h"

namespace linnet::bench {

Products::Products(Precision precision, size_t threads) : precision_(precision), workers_(threads) {
  const std::vector<float> weight(kIn * kOut, 0.5f);
  const std::vector<int8_t> value(kIn * kOut, 1);
  const std::vector<float> scale(kOut, 1.0f), x(kRows * kIn, 1.0f);
  const bool narrow = precision != Precision::kF32;  // bf16 or int8
  const kernels::NarrowType type =
      precision == Precision::kInt8 ? kernels::NarrowType::kInt8 : kernels::NarrowType::kBf16;
  for (Worker& worker : workers_) {
    worker.packed =
        AlignedBuffer<std::byte>(narrow ? kernels::PackedNarrowSize(type, kIn, kOut)
                                        : kernels::PackedLinearSize(kIn, kOut) * sizeof(float));
    worker.y = AlignedBuffer<float>(kRows * kOut);
    worker.x = AlignedBuffer<std::byte>(narrow ? kernels::NarrowRowsSize(type, kRows, kIn)
                                               : kRows * kIn * sizeof(float));
    if (precision == Precision::kInt8) {
      kernels::PackInt8(kIn, kOut, value.data(), kIn, scale.data(), nullptr, worker.packed.data());
    } else if (narrow) {
      kernels::PackBf16(kIn, kOut, weight.data(), kIn, nullptr, worker.packed.data());
    } else {
      kernels::PackLinear(kIn, kOut, weight.data(), kIn, nullptr,
                          reinterpret_cast<float*>(worker.packed.data()));
    }
    if (narrow) {
      worker.rows = kernels::TakeNarrowRows(type, kRows, kIn, worker.x.data());
      kernels::NarrowActivations(kRows, kIn, x.data(), kIn, nullptr, worker.rows);
    }
  }
}

void Products::Run(ThreadPool& pool) {
  pool.Run([&](int w) {
    Worker& worker = workers_[static_cast<size_t>(w)];
    if (precision_ == Precision::kF32) {
      kernels::Linear(kRows, kIn, kOut, reinterpret_cast<const float*>(worker.x.data()), kIn,
                      reinterpret_cast<const float*>(worker.packed.data()),
                      kernels::LinearMode::kOverwrite, worker.y.data(), kOut);
    } else {
      kernels::NarrowLinear(kRows, kIn, kOut, worker.rows, worker.packed.data(),
                            kernels::LinearMode::kOverwrite, worker.y.data(), kOut);
    }
  });
}

namespace {

// Whether a tensor is used once a patch, and not once a token.
bool ReadByPatch(std::string_view tensor_name) {
  return tensor_name.starts_with("transformer.") || tensor_name.starts_with("patch.in.") ||
         tensor_name.starts_with("patch.out.");
}

// The number of weights in the matrices of a model, each counted share(name) times.
double MatrixWeights(const ModelSpec& spec, FunctionRef<double(std::string_view)> share) {
  double weights = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    if (!IsMatrix(info.name)) continue;
    weights += share(info.name) * static_cast<double>(info.shape[0] * info.shape[1]);
  }
  return weights;
}

}  // namespace

double ProductOperations(const ModelSpec& spec) {
  return 2 * MatrixWeights(spec, [&](std::string_view name) {
           return ReadByPatch(name) ? 1.0 / spec.input.patch.tokens : 1.0;
         });
}

double TokenLimit(const Model& model, const MachineRates& rates, size_t batch, double cached) {
  const double operations = ProductOperations(model.spec());
  // With patches, most steps read only some of the weights.
  const double read =
      operations / (2 * MatrixWeights(model.spec(), [](std::string_view) { return 1.0; }));
  const double limit = std::max(read * rates.read_seconds / static_cast<double>(batch),
                                operations / rates.product_rate);
  if (StateKindOf(model) != StateKind::kCache) return limit;
  // Read at the beginning of a patch.
  const double cache = static_cast<double>(StateBytes(model.spec(), model.precision())) /
                       model.spec().input.patch.tokens;
  return limit + cached * cache * rates.read_seconds / static_cast<double>(model.weight_bytes());
}

}  // namespace linnet::bench
