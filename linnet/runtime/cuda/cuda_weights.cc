#include "linnet/runtime/cuda/cuda_weights.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "linnet/base/aligned.h"
#include "linnet/error.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/cuda/decode.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

using kernels::BFloat16;
using kernels::cuda::DeviceBuffer;

// All widths are multiples of this, so that rows in bf16 are aligned to 16 bytes.
constexpr size_t kMultiple = 8;

size_t Size(int n) { return static_cast<size_t>(n); }

template <typename T>
DeviceBuffer<T> OnDevice(const std::vector<float>& values) {
  DeviceBuffer<T> buffer(values.size());
  if (values.empty()) return buffer;
  if constexpr (std::is_same_v<T, float>) {
    buffer.Write(values.data());
  } else {
    std::vector<BFloat16> narrow(values.size());
    kernels::Narrow(values.size(), values.data(), narrow.data());
    buffer.Write(narrow.data());
  }
  return buffer;
}

DeviceBuffer<float> Copied(std::span<const float> values) {
  return OnDevice<float>({values.begin(), values.end()});
}

// Stacks the rows of matrices that have the same inputs, and their biases.
template <typename T>
CudaMatrix<T> Stacked(const Checkpoint& checkpoint, const std::vector<std::string>& names,
                      size_t in) {
  std::vector<float> weight, bias;
  for (const std::string& name : names) {
    const auto w = checkpoint.Tensor(name + ".weight"), b = checkpoint.Tensor(name + ".bias");
    weight.insert(weight.end(), w.begin(), w.end());
    bias.insert(bias.end(), b.begin(), b.end());
  }
  CudaMatrix<T> matrix;
  matrix.in = in, matrix.out = RoundUp(bias.size(), kMultiple);
  weight.resize(matrix.out * in), bias.resize(matrix.out);
  matrix.weight = OnDevice<T>(weight), matrix.bias = OnDevice<T>(bias);
  return matrix;
}

CudaNorm Norm(const Checkpoint& checkpoint, const std::string& name) {
  return {Copied(checkpoint.Tensor(name + ".weight")), Copied(checkpoint.Tensor(name + ".bias"))};
}

}  // namespace

template <typename T>
void CudaWeights<T>::CheckRuns(const Model& model) {
  const ModelSpec& spec = model.spec();
  const auto require = [&](bool good, const auto&... lacks) {
    if (good) return;
    throw InputError(model.path(), ": does not run on a GPU yet: ", lacks...,
                     "; choose --device cpu");
  };
  require(spec.image() && spec.logistics(), "only image models with a mixture of logistics do");
  require(model.steps() && !spec.encoder_decoder() && !spec.lstm(), "it does not run as an RNN");
  require(spec.stack.convolution == 0, "its layers have convolutions");
  require(spec.input.stem.channels == 0, "it has a stem");
  require(!spec.patches(), "it reads patches");
  require(!spec.input.whole_pixels, "it reads whole pixels");
  require(spec.stack.norm == NormKind::kLayer, "it has RMS norms");
  require(spec.stack.feed_forward == FeedForwardKind::kMlp, "its feed-forward blocks are ",
          NameOf(spec.stack.feed_forward));
  require(!spec.input.norm, "it has a norm of the embeddings");
  require(spec.head.bias, "its head has no bias");
  require(spec.PositionDims() > 0, "it has no position embedding");
  require(spec.head.mixtures <= static_cast<int>(kernels::cuda::kMaxDrawMixtures), "it has ",
          spec.head.mixtures, " mixtures, too many");
  require(model.precision() != Precision::kInt8,
          "int8 is not supported (--precision f32 and bf16 are)");
  for (const PackedPart& part : model.packed().stack.parts) {
    require(!part.mixer || part.mixer->folds(), "its attention is not causal-linear");
  }
  for (const MixerSpec& mixer : spec.stack.pattern) {
    require(FindFeatureMap(mixer.feature_map).fused, "its feature map is ", mixer.feature_map,
            ", not elu");
    const int most = static_cast<int>(kernels::cuda::kMaxHeadWidth);
    require(mixer.query_dim <= most && mixer.value_dim <= most, "its heads are wider than ", most);
    require(mixer.heads * mixer.query_dim % int{kMultiple} == 0 &&
                mixer.heads * mixer.value_dim % int{kMultiple} == 0,
            "the total width of its heads is not a multiple of ", kMultiple);
  }
  require(spec.stack.d_model % int{kMultiple} == 0 && spec.stack.d_ff % int{kMultiple} == 0,
          "its d_model or d_ff is not a multiple of ", kMultiple);
  require(spec.stack.d_model <= static_cast<int>(kernels::cuda::kMaxWidth),
          "its d_model is larger than ", kernels::cuda::kMaxWidth);
}

template <typename T>
size_t CudaWeights<T>::Bytes(const ModelSpec& spec) {
  size_t bytes = 0;
  for (const TensorInfo& info : TensorTable(spec)) {
    if (info.name == "first_value.probability") continue;  // only the CPU needs it
    size_t size = 1;
    for (const int64_t n : info.shape) size *= static_cast<size_t>(n);
    // Only the head may need padding rows: CheckRuns() requires multiples of 8 elsewhere.
    if (info.name.starts_with("predictor.")) {
      const auto out = static_cast<size_t>(info.shape[0]);
      size = size / out * RoundUp(out, kMultiple);
    }
    const bool layer = info.name.find(".layers.") != std::string::npos;
    bytes +=
        size * (layer && info.name.find("norm") == std::string::npos ? sizeof(T) : sizeof(float));
  }
  return bytes;
}

template <typename T>
CudaWeights<T>::CudaWeights(const Checkpoint& checkpoint, const Model& model) {
  const ModelSpec& spec = model.spec();
  const size_t d = Size(spec.stack.d_model), ff = Size(spec.stack.d_ff);
  size_t state_begin = 0;
  const StateLayout& layout = *model.packed().layout;
  for (int l = 0; l < spec.stack.layers(); ++l) {
    const MixerSpec& mixer = spec.stack.mixer(Size(l));
    const std::string name = StrCat("transformer.layers.", l), attention = name + ".attention";
    CudaLayer<T>& layer = layers.emplace_back();
    layer.heads = Size(mixer.heads), layer.dim = Size(mixer.query_dim);
    layer.value_dim = Size(mixer.value_dim), layer.eps = mixer.eps;
    layer.state_begin = state_begin;
    state_begin += layout.parts[Size(l)].Floats(0);
    layer.project = Stacked<T>(checkpoint,
                               {attention + ".query_projection", attention + ".key_projection",
                                attention + ".value_projection"},
                               d);
    layer.merge =
        Stacked<T>(checkpoint, {attention + ".out_projection"}, layer.heads * layer.value_dim);
    layer.up = Stacked<T>(checkpoint, {name + ".linear1"}, d);
    layer.down = Stacked<T>(checkpoint, {name + ".linear2"}, ff);
    layer.norm1 = Norm(checkpoint, name + ".norm1");
    layer.norm2 = Norm(checkpoint, name + ".norm2");
  }
  if (spec.stack.final_norm) final_norm = Norm(checkpoint, "transformer.norm");
  head = Stacked<float>(checkpoint, {"predictor"}, d);
  values = Copied(model.packed().values);
  positions = Copied(model.packed().positions);
  above = Copied(model.packed().above);
}

template struct CudaWeights<float>;
template struct CudaWeights<BFloat16>;

}  // namespace linnet
