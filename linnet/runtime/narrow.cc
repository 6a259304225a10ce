#include "linnet/runtime/narrow.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <string_view>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/io/safetensors.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/narrow_linear.h"

namespace linnet {

Int8Matrix::Int8Matrix(std::span<const float> weight, size_t out, std::span<const float> factor)
    : values(weight.size()), scales(out) {
  const size_t in = weight.size() / out;
  std::vector<float> row(in);
  for (size_t o = 0; o < out; ++o) {
    std::copy_n(weight.begin() + static_cast<ptrdiff_t>(o * in), in, row.begin());
    for (size_t k = 0; k < in && !factor.empty(); ++k) row[k] /= factor[k];
    scales[o] = kernels::QuantizeWeights(in, row.data(), &values[o * in]);
  }
}

// Only the feed-forward layer's input needs per-channel factors. In the digits model a few channels
// of this input are many times larger than the rest. Without factors, these channels caused four
// fifths of int8's increase in bits/dim, not counting the increase that an int8 predictor causes.
std::vector<float> InputFactors(const Checkpoint& checkpoint, const std::string& tensor_name) {
  const auto is = [&](std::string_view end) { return tensor_name.ends_with(end); };
  if (!is(".linear1.weight") && !is(".gate.weight")) return {};
  const std::string layer =
      tensor_name.substr(0, tensor_name.rfind('.', tensor_name.rfind('.') - 1) + 1);
  // Decoder layers have one more norm. Patches have one before linear1 and one after linear2.
  const bool decoder = checkpoint.Has(layer + "norm3.weight"), patch = layer == "patch.";
  const bool first = checkpoint.spec().stack.norm_first && !patch;
  const std::string norm = layer + (decoder ? (first ? "norm3" : "norm2")
                                    : first ? "norm2"
                                            : "norm1");
  const auto weight = checkpoint.Tensor(norm + ".weight");
  std::vector<float> factor(weight.begin(), weight.end());
  for (float& value : factor) value = 3 * std::abs(value);
  if (checkpoint.spec().stack.norm == NormKind::kLayer) {
    const auto bias = checkpoint.Tensor(norm + ".bias");
    for (size_t i = 0; i < factor.size(); ++i) factor[i] += std::abs(bias[i]);
  }
  std::vector<float> sorted = factor;
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  constexpr float kMost = 8;  // factors lie in 2^-8 .. 2^8
  for (float& value : factor) {
    const float power = std::nearbyint(std::log2(*middle / value));
    value = std::exp2(std::isnan(power) ? 0.0f : std::clamp(power, -kMost, kMost));
  }
  return factor;
}

namespace {

// The weights of trained models are far below 1e15. With weights above it, a layer's sums overflow
// even in fp32, and nothing in the narrowed file would show that the model is broken.
void CheckSize(std::span<const float> weights, const std::string& path, const std::string& tensor) {
  constexpr float kMost = 1e15f;
  for (const float weight : weights) {
    if (std::abs(weight) <= kMost) continue;
    throw InputError(
        path, ": tensor ", Quote(tensor), " has the weight ", weight,
        ", so large that the model's outputs overflow; the model's training diverged, or the file "
        "is damaged");
  }
}

}  // namespace

void WriteNarrowed(const Checkpoint& checkpoint, Precision precision, const std::string& path) {
  SafetensorsWriter writer;
  for (const auto& [key, value] : checkpoint.file().metadata()) writer.SetMetadata(key, value);
  // The next three lists own the data of the tensors until Write().
  std::list<AlignedBuffer<std::byte>> kept;
  std::list<std::vector<float>> factors;
  std::list<Int8Matrix> matrices;
  const auto room = [&](size_t bytes) {
    kept.emplace_back(bytes);
    return kept.back().data();
  };
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    const std::span<const float> wide = checkpoint.Tensor(info.name);
    CheckFinite(wide, checkpoint.path(), info.name);
    CheckSize(wide, checkpoint.path(), info.name);
    if (HasComputedPositions(checkpoint.spec(), info.name) &&
        std::ranges::equal(wide, PositionTable(checkpoint.spec()))) {
      continue;
    }
    const DType type = StoredAs(checkpoint.spec(), info.name, precision);
    if (type == DType::kF32) {
      writer.Add(info.name, type, info.shape, wide.data());
    } else if (type == DType::kBF16) {
      auto* narrow = reinterpret_cast<kernels::BFloat16*>(room(wide.size() * sizeof(uint16_t)));
      kernels::Narrow(wide.size(), wide.data(), narrow);
      writer.Add(info.name, type, info.shape, narrow);
    } else {
      const auto& factor = factors.emplace_back(InputFactors(checkpoint, info.name));
      const auto& matrix = matrices.emplace_back(wide, static_cast<size_t>(info.shape[0]), factor);
      writer.Add(info.name, type, info.shape, matrix.values.data());
      writer.Add(ScaleName(info.name), DType::kF32, {info.shape[0]}, matrix.scales.data());
      if (!factor.empty()) {
        writer.Add(FactorName(info.name), DType::kF32, {info.shape[1]}, factor.data());
      }
    }
  }
  writer.Write(path);
}

}  // namespace linnet
