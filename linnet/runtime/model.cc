#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "linnet/base/error.h"
#include "linnet/base/hash.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/runtime/narrow.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

using kernels::kPanel;
using kernels::PackLinear;

size_t Size(int n) { return static_cast<size_t>(n); }

AlignedBuffer<float> Copied(std::span<const float> from) {
  AlignedBuffer<float> copy(from.size());
  std::copy(from.begin(), from.end(), copy.begin());
  return copy;
}

// Cuts [0, count) into at most `most` ranges of nearly equal size, whose bounds are multiples of
// `step`.
std::vector<PackedGroup> Groups(size_t count, size_t step, size_t most) {
  const size_t steps = (count + step - 1) / step, groups = std::min(steps, most);
  std::vector<PackedGroup> cut(groups);
  for (size_t g = 0; g < groups; ++g) {
    cut[g].begin = steps * g / groups * step;
    cut[g].end = std::min(count, steps * (g + 1) / groups * step);
  }
  return cut;
}

// Lays matrices and vectors one behind the other. Run first without a buffer, to learn the size.
class Packer {
 public:
  Packer(const Checkpoint& checkpoint, std::byte* base) : checkpoint_(checkpoint), base_(base) {}

  size_t used() const { return used_; }

  // The columns [begin, end) of name.weight [out, in]; with name.bias or without.
  PackedMatrix Columns(Precision precision, const std::string& name, size_t out, size_t in,
                       size_t begin, size_t end, bool with_bias) {
    std::byte* to = Take(Model::Packed::MatrixBytes(precision, end - begin, out));
    if (to != nullptr) {
      const float* bias = with_bias ? checkpoint_.Tensor(name + ".bias").data() : nullptr;
      const auto weight = checkpoint_.Tensor(name + ".weight");
      if (precision == Precision::kInt8) {
        if (name != rounded_name_) {  // once for all groups
          rounded_.emplace(weight, out, std::span<const float>()), rounded_name_ = name;
        }
        PackRounded(*rounded_, in, begin, end, bias, to);
      } else {
        Pack(precision, weight.data(), out, in, begin, end, {}, bias, to);
      }
    }
    return to;
  }

  // Rows of several matrices with `in` columns, stacked.
  struct Rows {
    std::string name;
    size_t begin, end;
  };
  PackedMatrix Stacked(Precision precision, const std::vector<Rows>& parts, size_t in) {
    size_t out = 0;
    for (const Rows& part : parts) out += part.end - part.begin;
    std::byte* to = Take(Model::Packed::MatrixBytes(precision, in, out));
    if (to == nullptr) return nullptr;
    const auto factor = InputFactors(checkpoint_, parts[0].name + ".weight");
    std::vector<float> weight, bias;
    for (const Rows& part : parts) {
      const auto append = [&](std::vector<float>& rows, const char* what, size_t width) {
        const auto from = checkpoint_.Tensor(part.name + what);
        rows.insert(rows.end(), from.data() + part.begin * width, from.data() + part.end * width);
      };
      append(weight, ".weight", in);
      append(bias, ".bias", 1);
    }
    Pack(precision, weight.data(), out, in, 0, in, factor, bias.data(), to);
    return to;
  }

  // name_ih and name_hh of an LSTM, such as "lstm.weight_ih_l0_reverse".
  PackedLstm Lstm(const std::string& end, size_t in, size_t hidden) {
    const auto values = [&](const char* name) {
      return checkpoint_.Tensor(StrCat("lstm.", name, end));
    };
    std::vector<float> bias(values("bias_ih_l").begin(), values("bias_ih_l").end());
    for (size_t i = 0; i < bias.size(); ++i) bias[i] += values("bias_hh_l")[i];
    const auto pack = [&](const char* name, size_t width, const float* with) {
      std::byte* to = Take(Model::Packed::MatrixBytes(Precision::kF32, width, 4 * hidden));
      if (to != nullptr) {
        Pack(Precision::kF32, values(name).data(), 4 * hidden, width, 0, width, {}, with, to);
      }
      return to;
    };
    return {pack("weight_ih_l", in, bias.data()), pack("weight_hh_l", hidden, nullptr)};
  }

  // Those of an int8 matrix' inputs.
  const float* Factors(const std::string& name) {
    return Values(InputFactors(checkpoint_, name + ".weight"));
  }

  const float* Values(std::span<const float> from) {
    auto* to = reinterpret_cast<float*>(Take(from.size() * sizeof(float)));
    if (to != nullptr) std::copy(from.begin(), from.end(), to);
    return to;
  }

  kernels::LayerNormParameters Norm(const std::string& name) {
    return {Values(checkpoint_.Tensor(name + ".weight")),
            Values(checkpoint_.Tensor(name + ".bias"))};
  }

 private:
  void Pack(Precision precision, const float* weight, size_t out, size_t in, size_t begin,
            size_t end, std::span<const float> factor, const float* bias, std::byte* to) {
    switch (precision) {
      case Precision::kF32:
        return PackLinear(end - begin, out, weight + begin, in, bias, reinterpret_cast<float*>(to));
      case Precision::kBf16:
        return kernels::PackBf16(end - begin, out, weight + begin, in, bias, to);
      case Precision::kInt8: {
        const Int8Matrix matrix({weight, out * in}, out, factor);
        return PackRounded(matrix, in, begin, end, bias, to);
      }
    }
  }
  // The scales are those of whole rows.
  static void PackRounded(const Int8Matrix& matrix, size_t in, size_t begin, size_t end,
                          const float* bias, std::byte* to) {
    kernels::PackInt8(end - begin, matrix.scales.size(), matrix.values.data() + begin, in,
                      matrix.scales.data(), bias, to);
  }

  std::byte* Take(size_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(bytes, kCacheLine);
    return piece;
  }

  const Checkpoint& checkpoint_;
  std::byte* base_;
  size_t used_ = 0;
  std::string rounded_name_;
  std::optional<Int8Matrix> rounded_;
};

// Walks a step in its order; fills in the addresses of model.layers, final_norm and predictor.
void Pack(Model::Packed& model, const Checkpoint& checkpoint, Packer& packer) {
  const size_t d = model.d_model, m = model.value_dim;
  if (model.spec.network == "lstm") {
    model.lstm.clear();
    for (int l = 0; l < model.spec.layers; ++l) {
      for (const char* direction : {"", "_reverse"}) {
        const size_t in = l == 0 ? Size(model.spec.speech.Inputs()) : 2 * d;
        model.lstm.push_back(packer.Lstm(StrCat(l, direction), in, d));
      }
    }
    model.predictor =
        packer.Columns(Precision::kF32, "predictor", model.outputs, 2 * d, 0, 2 * d, true);
    return;
  }
  if (model.spec.task == "speech") {
    const size_t inputs = Size(model.spec.speech.Inputs());
    model.input_projection = packer.Columns(model.predictor_precision(), "input_projection",
                                            model.value_embedding, inputs, 0, inputs, true);
  }
  for (size_t l = 0; l < model.layers.size(); ++l) {
    PackedLayer& layer = model.layers[l];
    const std::string name = StrCat("transformer.layers.", l, ".");
    if (model.spec.convolution > 0) {
      layer.convolution = {packer.Values(checkpoint.Tensor(name + "convolution.weight")),
                           packer.Values(checkpoint.Tensor(name + "convolution.bias")),
                           packer.Norm(name + "convolution_norm")};
    }
    for (PackedGroup& group : layer.attention) {
      std::vector<Packer::Rows> heads;
      for (size_t h = group.begin; h < group.end; ++h) {
        for (auto [projection, width] : {std::pair("query", model.dim), std::pair("key", model.dim),
                                         std::pair("value", model.value_dim)}) {
          heads.push_back(
              {StrCat(name, "attention.", projection, "_projection"), h * width, (h + 1) * width});
        }
      }
      group.in = packer.Stacked(model.precision, heads, d);
      group.out = packer.Columns(model.precision, name + "attention.out_projection", d,
                                 model.heads * m, group.begin * m, group.end * m, group.begin == 0);
    }
    if (model.omega_columns > 0) {
      layer.omega =
          packer.Values(checkpoint.Tensor(name + "attention.inner_attention.feature_map.omega"));
    }
    layer.norm1 = packer.Norm(name + "norm1");
    if (model.precision == Precision::kInt8) {
      layer.feed_forward_factor = packer.Factors(name + "linear1");
    }
    for (PackedGroup& group : layer.feed_forward) {
      group.in = packer.Stacked(model.precision, {{name + "linear1", group.begin, group.end}}, d);
      group.out = packer.Columns(model.precision, name + "linear2", d, model.d_ff, group.begin,
                                 group.end, group.begin == 0);
    }
    layer.norm2 = packer.Norm(name + "norm2");
  }
  if (model.spec.final_norm) model.final_norm = packer.Norm("transformer.norm");
  model.predictor =
      packer.Columns(model.predictor_precision(), "predictor", model.outputs, d, 0, d, true);
}

}  // namespace

Model::Packed::Packed(const Checkpoint& checkpoint, Precision precision)
    : spec(checkpoint.spec()),
      precision(precision),
      path(checkpoint.path()),
      training(checkpoint.training()),
      layout(checkpoint.spec(), precision) {
  const bool speech = spec.task == "speech";
  const bool lstm = spec.network == "lstm";
  if (spec.network == "encoder-decoder") {
    throw InputError(path,
                     ": an encoder with a decoder is for comparisons in training; what runs "
                     "here is the network 'transformer'");
  }
  if (lstm && precision != Precision::kF32) {
    throw InputError(path, ": an LSTM runs in f32 alone; leave out the precision ",
                     PrecisionName(precision));
  }
  if (speech && !lstm && spec.attention.kind == "kernel") {
    throw InputError(path,
                     ": this runtime does not run attention 'kernel'; of speech it runs "
                     "linear, causal-linear, full and reformer");
  }
  const bool reformer = spec.attention.kind == "reformer" && !lstm;
  if (reformer && spec.attention.lsh_variant != "published") {
    throw InputError(path, ": this runtime does not run the lsh_variant '",
                     spec.attention.lsh_variant, "'; it runs 'published'");
  }
  if (!speech && !reformer && !FindAttentionKind(spec.attention.kind).recurrent) {
    throw InputError(path, ": this runtime does not run attention '", spec.attention.kind,
                     "'; it runs causal-linear and full, and reads whole sequences with reformer");
  }
  const bool maps = FindAttentionKind(spec.attention.kind).maps;
  if (maps && !lstm &&
      (!FindFeatureMap(spec.attention.feature_map).runtime ||
       (speech && spec.attention.feature_map == "rff"))) {
    throw InputError(path, ": this runtime does not run the feature map '",
                     spec.attention.feature_map, "'; it runs elu, relu, polynomial2, ",
                     speech ? "" : "rff ", "and favor");
  }
  if (spec.head == "logistics" && Size(spec.mixtures) > kernels::kMaxMixtures) {
    throw InputError(path, ": ", spec.mixtures, " mixtures are more than the ",
                     kernels::kMaxMixtures, " that this runtime takes");
  }
  for (const TensorInfo& info : TensorTable(spec)) {
    CheckFinite(checkpoint.Tensor(info.name), path, info.name);
  }
  d_model = Size(spec.d_model), heads = Size(spec.heads), dim = Size(spec.query_dim);
  value_dim = Size(spec.value_dim), d_ff = Size(spec.d_ff), outputs = Size(spec.OutputSize());
  value_embedding = Size(spec.value_embedding);
  head_width = 2 * dim + value_dim;
  features = maps ? layout.linear.dim : dim;
  if (maps) {
    feature_map = FindFeatureBody(spec.attention.feature_map);
    omega_columns = static_cast<size_t>(OmegaColumns(spec.attention, spec.query_dim));
    if (feature_map && feature_map->floor) {
      floor = 1 / std::sqrt(static_cast<float>(features));
    }
  }
  softmax_scale = 1 / std::sqrt(static_cast<float>(dim));
  attention = {feature_map ? kernels::FeatureMap::kIdentity : kernels::FeatureMap::kElu,
               /*normalize=*/true, spec.attention.eps};
  activation = spec.activation == "relu" ? kernels::Activation::kRelu : kernels::Activation::kGelu;

  const size_t step = narrow() ? kernels::kNarrowInputs : 1;
  const size_t most = narrow() ? kMaxNarrowGroups : kMaxGroups;
  const PackedLayer cut{.attention = Groups(heads, (step + value_dim - 1) / value_dim, most),
                        .feed_forward = Groups(d_ff, std::max(step, kPanel), most)};
  if (!lstm) layers.assign(Size(spec.layers), cut);
  widest = most_heads = 0;
  for (const PackedGroup& group : cut.attention) {
    widest = std::max(widest, QkvWidth(group));
    most_heads = std::max(most_heads, group.end - group.begin);
  }
  for (const PackedGroup& group : cut.feed_forward) {
    widest = std::max(widest, group.end - group.begin);
  }
  const size_t inputs = std::max({d_model, most_heads * value_dim,
                                  cut.feed_forward[0].end - cut.feed_forward[0].begin + step});
  if (precision == Precision::kInt8 && inputs > kernels::kMostInt8Inputs) {
    throw InputError(path, ": its matrices are too wide for int8 (", inputs, " inputs, at most ",
                     kernels::kMostInt8Inputs, "); choose the precision bf16");
  }
  Packer measure(checkpoint, nullptr);
  Pack(*this, checkpoint, measure);
  weights = AlignedBuffer<std::byte>(measure.used());
  Packer packer(checkpoint, weights.data());
  Pack(*this, checkpoint, packer);

  if (!speech) {
    values = Copied(checkpoint.Tensor(spec.tied ? "predictor.weight" : "value_embedding.weight"));
    const float scale = spec.tied ? std::sqrt(static_cast<float>(spec.d_model)) : 1.0f;
    for (float& value : values) value *= scale;
  } else if (spec.speech.normalise == "corpus") {
    input_mean = Copied(checkpoint.Tensor("input_norm.mean"));
    input_deviation = Copied(checkpoint.Tensor("input_norm.deviation"));
    for (const float deviation : input_deviation) {
      if (!(deviation >= 1e-6f)) {
        throw InputError(path, ": input_norm.deviation holds ", deviation, "; mend the file");
      }
    }
  }
  if (reformer) {
    lsh_rounds = Size(spec.attention.lsh_rounds);
    lsh = {.buckets = Size(spec.attention.lsh_buckets),
           .chunk = Size(spec.attention.lsh_chunk),
           .causal = spec.Causal()};
    planes = Copied(LshPlanes(spec.attention, spec.query_dim));
  }
  if (spec.PositionDims() > 0 && !lstm) positions = Copied(checkpoint.Tensor("pos_embedding.pe"));
  if (spec.pixel_above) above = Copied(checkpoint.Tensor("above_embedding.weight"));
  if (spec.task == "images") {
    first_value = Copied(checkpoint.Tensor("first_value.probability"));
    double sum = 0;
    bool valid = true;
    for (float p : first_value) {
      valid = valid && p >= 0 && std::isfinite(p);
      sum += p;
    }
    if (!valid || !(sum > 0)) {
      throw InputError(path, ": first_value.probability holds no probabilities; train the model ",
                       "again or mend the file");
    }
  }
  const std::string about = ToJson(spec) + PrecisionName(precision);
  fingerprint = Hash(std::as_bytes(std::span(about)));
  for (const TensorInfo& info : TensorTable(spec)) {
    fingerprint = Hash(std::as_bytes(checkpoint.Tensor(info.name)), fingerprint);
  }
}

Model::Model(std::unique_ptr<Packed> packed) : packed_(std::move(packed)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::Open(const std::string& path, const ModelOptions& options) {
  return FromCheckpoint(Checkpoint::Open(path), options);
}

std::shared_ptr<const Model> Model::FromMemory(std::span<const std::byte> bytes,
                                               const std::string& label,
                                               const ModelOptions& options) {
  return FromCheckpoint(Checkpoint::FromMemory(bytes, label), options);
}

std::shared_ptr<const Model> Model::FromCheckpoint(const Checkpoint& checkpoint,
                                                   const ModelOptions& options) {
  const Precision precision = options.precision.value_or(checkpoint.precision());
  return std::shared_ptr<const Model>(new Model(std::make_unique<Packed>(checkpoint, precision)));
}

const ModelSpec& Model::spec() const { return packed_->spec; }
const std::string& Model::path() const { return packed_->path; }
const std::string& Model::training() const { return packed_->training; }
Precision Model::precision() const { return packed_->precision; }
bool Model::steps() const { return packed_->lsh_rounds == 0; }
size_t Model::weight_bytes() const { return packed_->weights.size(); }
uint64_t Model::fingerprint() const { return packed_->fingerprint; }
std::span<const float> Model::first_value() const {
  return {packed_->first_value.data(), packed_->first_value.size()};
}

std::span<const float> Model::input_mean() const {
  return {packed_->input_mean.data(), packed_->input_mean.size()};
}
std::span<const float> Model::input_deviation() const {
  return {packed_->input_deviation.data(), packed_->input_deviation.size()};
}

}  // namespace linnet
