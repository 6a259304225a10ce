#include "linnet/runtime/packer.h"

#include <algorithm>

#include "linnet/error.h"
#include "linnet/kernels/linear.h"

namespace linnet {

PackedMatrix Packer::Columns(Precision precision, const std::string& name, size_t out, size_t in,
                             size_t begin, size_t end, bool with_bias) {
  std::byte* to = Take(Model::Packed::MatrixBytes(precision, end - begin, out));
  if (to == nullptr) return to;
  const bool has_bias = with_bias && checkpoint_.Has(name + ".bias");
  const float* bias = has_bias ? checkpoint_.Tensor(name + ".bias").data() : nullptr;
  const auto weight = checkpoint_.Tensor(name + ".weight");
  if (precision == Precision::kInt8) {
    if (name != rounded_name_) {  // rounded once for all groups
      rounded_.emplace(weight, out, std::span<const float>()), rounded_name_ = name;
    }
    PackRounded(*rounded_, in, begin, end, bias, to);
  } else {
    Pack(precision, weight.data(), out, in, begin, end, {}, bias, to);
  }
  return to;
}

PackedMatrix Packer::Stacked(Precision precision, const std::vector<Rows>& parts, size_t in) {
  size_t out = 0;
  for (const Rows& part : parts) out += part.end - part.begin;
  std::byte* to = Take(Model::Packed::MatrixBytes(precision, in, out));
  if (to == nullptr) return nullptr;
  const auto factor = InputFactors(checkpoint_, parts[0].name + ".weight");
  std::vector<float> weight, bias;
  for (const Rows& part : parts) {
    const auto rows = checkpoint_.Tensor(part.name + ".weight");
    weight.insert(weight.end(), rows.data() + part.begin * in, rows.data() + part.end * in);
    if (checkpoint_.Has(part.name + ".bias")) {
      const auto own = checkpoint_.Tensor(part.name + ".bias");
      bias.insert(bias.end(), own.data() + part.begin, own.data() + part.end);
    } else {
      bias.insert(bias.end(), part.end - part.begin, 0.0f);
    }
  }
  Pack(precision, weight.data(), out, in, 0, in, factor, bias.data(), to);
  return to;
}

PackedLstm Packer::Lstm(Precision precision, const std::string& end, size_t in, size_t hidden) {
  const auto values = [&](const char* name) {
    return checkpoint_.Tensor(StrCat("lstm.", name, end));
  };
  std::vector<float> bias(values("bias_ih_l").begin(), values("bias_ih_l").end());
  for (size_t i = 0; i < bias.size(); ++i) bias[i] += values("bias_hh_l")[i];
  const auto pack = [&](const char* name, size_t width, const float* with) {
    std::byte* to = Take(Model::Packed::MatrixBytes(precision, width, 4 * hidden));
    if (to != nullptr) {
      Pack(precision, values(name).data(), 4 * hidden, width, 0, width, {}, with, to);
    }
    return to;
  };
  return {pack("weight_ih_l", in, bias.data()), pack("weight_hh_l", hidden, nullptr)};
}

const float* Packer::Values(std::span<const float> from) {
  auto* to = reinterpret_cast<float*>(Take(from.size() * sizeof(float)));
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
  return to;
}

void Packer::Pack(Precision precision, const float* weight, size_t out, size_t in, size_t begin,
                  size_t end, std::span<const float> factor, const float* bias, std::byte* to) {
  switch (precision) {
    case Precision::kF32:
      return kernels::PackLinear(end - begin, out, weight + begin, in, bias,
                                 reinterpret_cast<float*>(to));
    case Precision::kBf16:
      return kernels::PackBf16(end - begin, out, weight + begin, in, bias, to);
    case Precision::kInt8: {
      const Int8Matrix matrix({weight, out * in}, out, factor);
      return PackRounded(matrix, in, begin, end, bias, to);
    }
  }
}

void Packer::PackRounded(const Int8Matrix& matrix, size_t in, size_t begin, size_t end,
                         const float* bias, std::byte* to) {
  kernels::PackInt8(end - begin, matrix.scales.size(), matrix.values.data() + begin, in,
                    matrix.scales.data(), bias, to);
}

std::byte* Packer::Take(size_t bytes) {
  std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
  used_ += RoundUp(bytes, kCacheLine);
  return piece;
}

}  // namespace linnet
