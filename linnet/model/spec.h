// The part of ModelSpec's interface that is private to linnet: the names of its enumerators, the
// tensors of its checkpoint, and its position table. The public part is linnet/spec.h.
//
//   for (const TensorInfo& tensor : TensorTable(spec)) ...   // names and shapes, in file order
#ifndef LINNET_MODEL_SPEC_H_
#define LINNET_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linnet/model/mixer.h"
#include "linnet/model/names.h"
#include "linnet/spec.h"

namespace linnet {

template <>
struct EnumNames<Positions> {
  static constexpr const char* kNames[] = {"sequence", "grid", "added"};
};
template <>
struct EnumNames<HeadKind> {
  static constexpr const char* kNames[] = {"logistics", "categorical"};
};
template <>
struct EnumNames<Activation> {
  static constexpr const char* kNames[] = {"relu", "gelu"};
};
template <>
struct EnumNames<NormKind> {
  static constexpr const char* kNames[] = {"layer", "rms"};
};
template <>
struct EnumNames<FeedForwardKind> {
  static constexpr const char* kNames[] = {"mlp", "gated", "none", "shifted"};
};
template <>
struct EnumNames<NetworkKind> {
  static constexpr const char* kNames[] = {"transformer", "lstm", "encoder-decoder"};
};
template <>
struct EnumNames<TextUnit> {
  static constexpr const char* kNames[] = {"byte", "character", "token"};
};
template <>
struct EnumNames<BandNorm> {
  static constexpr const char* kNames[] = {"utterance", "corpus"};
};

// The words of a text, split at white space.
std::vector<std::string> Words(const std::string& text);

// The first field in which two specs differ, with its value in each.
struct SpecDifference {
  std::string field, a, b;
};
std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b);

// Whether two mixers have the same kind and parameters.
bool SameMixer(const MixerSpec& a, const MixerSpec& b);

// Tensor names and shapes of a checkpoint with this spec (types: StoredAs() of precision.h):
//   fast-transformers' names under "transformer." (encoder-decoder: "encoder." and "decoder."),
//     with the tensors of each mixer (MixerTensors())
//   value_embedding.weight [vocabulary, value_embedding], unless tied to predictor.weight
//   pos_embedding.pe [1, max_length, PositionDims()], unless PositionDims() is 0
//   above_embedding.weight [vocabulary + 1, value_embedding] if pixel_above; the last row is for
//     bytes that have no byte above them
//   images with a stem, for each color K (stem.h): stem.features.K.weight [channels, bytes of the
//     window], stem.output.K.weight [d_model, features of the window], and their biases
//   predictor.{weight,bias}; no bias unless head.bias
//   embedding_norm, if input.norm
//   norms have weight and bias, RMS norms only weight; a gated feed-forward block has linear1, gate
//     and linear2 without biases; a shifted one has shift [d_model], and linear1 and linear2
//     without biases
//   images: first_value.probability [vocabulary], the distribution of the first byte
//   whole_pixels: the two embeddings have kPixelRows rows (pixels.h); no first_value.probability
//   frames: input_projection.{weight,bias} [value_embedding, Inputs()] instead of the value
//     embedding, and input_norm.{mean,deviation} [bands] for BandNorm::kCorpus
//   layers with a convolution: convolution.weight [convolution, d_model],
//     convolution.bias [d_model] and convolution_norm
//   LSTM: PyTorch's names under "lstm."; the predictor has 2 d_model inputs
std::vector<TensorInfo> TensorTable(const ModelSpec& spec);

// Whether a tensor is data, not a parameter (see ParameterCount).
bool IsBuffer(const std::string& tensor_name);

// Sinusoidal position embeddings [length, dim]: pe[t, 2i] = sin(a) and pe[t, 2i+1] = cos(a) with
// a = t / 10000^(2i/dim).
std::vector<float> PositionTable(int length, int dim);

// The contents of this spec's pos_embedding.pe: [max_length, PositionDims()].
std::vector<float> PositionTable(const ModelSpec& spec);

// Writes row t of PositionTable(spec) to `to` [PositionDims()]; t may be beyond max_length.
void PositionRow(const ModelSpec& spec, int64_t t, float* to);

}  // namespace linnet

#endif  // LINNET_MODEL_SPEC_H_
