// A model's description as plain data: an input, a stack of layers and a head. Training and runtime
// both read it, and it is stored in every checkpoint.
//
//   ModelSpec spec;                                  // the paper's MNIST model
//   spec.stack.repeat = 4, spec.stack.d_model = 128; ...
//   Validate(spec);
//   for (const TensorInfo& tensor : TensorTable(spec)) ...   // names and shapes, in file order
//   std::string json = ToJson(spec);                 // goes into the checkpoint's metadata
//
// Tokens x_0 .. x_{L-1} are embedded (value embedding beside sine positions; for images optionally
// the byte's row and column and the byte above it), go through the layers, and a linear head
// predicts x_{t+1} from the output at t. In speech, x_t are projected windows of filterbank frames,
// and the head predicts the phone spoken at t, or none.
#ifndef LINNET_MODEL_SPEC_H_
#define LINNET_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "linnet/model/mixer.h"
#include "linnet/model/names.h"

namespace linnet {

// The position embedding.
enum class Positions : uint8_t {
  kSequence,  // sine of t in the dimensions beside the value embedding, if any
  kGrid,      // half of them for t, a quarter each for the row of byte t + 1 and its place in it
  kAdded,     // sine of t in d_model dimensions, added to the value embedding
};
enum class HeadKind : uint8_t { kLogistics, kCategorical };
enum class Activation : uint8_t { kRelu, kGelu };  // gelu: the exact form, with erf
enum class NetworkKind : uint8_t {
  kTransformer,
  kLstm,            // bidirectional layers, d_model wide in each direction
  kEncoderDecoder,  // two stacks: the encoder reads up to the separator, the decoder from it on
};
enum class TextUnit : uint8_t { kByte, kCharacter };
enum class BandNorm : uint8_t { kUtterance, kCorpus };

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
struct EnumNames<NetworkKind> {
  static constexpr const char* kNames[] = {"transformer", "lstm", "encoder-decoder"};
};
template <>
struct EnumNames<TextUnit> {
  static constexpr const char* kNames[] = {"byte", "character"};
};
template <>
struct EnumNames<BandNorm> {
  static constexpr const char* kNames[] = {"utterance", "corpus"};
};

struct InputSpec {
  int vocabulary = 256;  // tokens 0 .. vocabulary - 1
  int max_length = 783;  // positions seen in training; sine positions continue beyond
  // Dimensions of the value embedding. Positions take the rest of d_model unless they are added.
  int value_embedding = 128;
  Positions positions = Positions::kSequence;
  // Adds an embedding of the byte above the byte to predict.
  bool pixel_above = false;
};

// A stack of layers: the mixers of `pattern` in turn, repeated `repeat` times. All other options
// are the same for every layer.
struct StackSpec {
  std::vector<MixerSpec> pattern = {MixerSpec()};
  int repeat = 8;
  int d_model = 256;
  int d_ff = 1024;
  Activation activation = Activation::kRelu;
  // Layers are x = LN(x + f(x)), or with norm_first x = x + f(LN(x)).
  bool norm_first = false;
  // Width in positions of a depthwise convolution before each layer's mixer, over the last
  // positions if the network is causal, else over the surrounding ones (then odd); 0: none.
  int convolution = 0;
  bool final_norm = true;  // layer norm after the last layer; required by norm_first
  float norm_eps = 1e-5f;

  int layers() const { return static_cast<int>(pattern.size()) * repeat; }
  const MixerSpec& mixer(size_t layer = 0) const { return pattern[layer % pattern.size()]; }
  MixerSpec& mixer(size_t layer = 0) { return pattern[layer % pattern.size()]; }
};

struct HeadSpec {
  HeadKind kind = HeadKind::kLogistics;
  int mixtures = 10;  // logistics over bytes: logits, means and log-scales, in this order
  int classes = 0;    // categorical
  // Shares its weights with the value embedding, which multiplies them by sqrt(d_model); for a
  // vocabulary that is large compared with the rest of the model. Needs the categorical head and
  // value_embedding = d_model.
  bool tied = false;
};

// Task-specific parts.

struct ImageSpec {
  int width = 28, height = 28, channels = 1;  // width * height * channels = max_length + 1

  int RowBytes() const { return width * channels; }
};

// The meaning of text tokens (model/vocabulary.h).
struct TextSpec {
  TextUnit unit = TextUnit::kByte;
  std::string characters = {};  // concatenated in token order; empty for bytes
};

// Position p of a speech model is a window of `stack` frames, the last of which is frame
// p * stride + stride - 1 + lookahead; frames outside the utterance are zeros.
struct SpeechSpec {
  int sample_rate = 16'000;
  int bands = 40;     // of the mel filterbank (tasks/speech/filterbank.h), one frame per 10 ms
  int stack = 9;      // frames per position
  int stride = 3;     // frames between positions
  int lookahead = 3;  // future frames in a position's window, beyond those of its stride
  BandNorm normalization =
      BandNorm::kUtterance;  // source of the mean and deviation that normalize each band
  // Names separated by a space; class 0 is the blank, 1 the first phone.
  std::string phones;

  int Inputs() const { return bands * stack; }
  // First frame of position 0's window; if negative, the window begins with that many zero frames.
  int FirstFrame() const { return stride + lookahead - stack; }
};

struct ModelSpec {
  std::string task = "images";  // a name in the registry of linnet/tasks
  NetworkKind network = NetworkKind::kTransformer;
  InputSpec input;
  StackSpec stack;
  HeadSpec head;
  std::variant<std::monostate, ImageSpec, TextSpec, SpeechSpec> part = ImageSpec();

  // Null if the model has no such part.
  const ImageSpec* image() const { return std::get_if<ImageSpec>(&part); }
  const TextSpec* text() const { return std::get_if<TextSpec>(&part); }
  const SpeechSpec* speech() const { return std::get_if<SpeechSpec>(&part); }
  ImageSpec* image() { return std::get_if<ImageSpec>(&part); }
  TextSpec* text() { return std::get_if<TextSpec>(&part); }
  SpeechSpec* speech() { return std::get_if<SpeechSpec>(&part); }

  // Whether the model reads frames instead of tokens.
  bool ReadsFrames() const { return speech() != nullptr; }
  bool lstm() const { return network == NetworkKind::kLstm; }
  bool encoder_decoder() const { return network == NetworkKind::kEncoderDecoder; }
  bool logistics() const { return head.kind == HeadKind::kLogistics; }
  // Whether a position depends only on itself and earlier ones: always for tokens; for frames, if
  // every mixer is always causal.
  bool Causal() const;
  // The head's outputs per position: 3 * mixtures or classes.
  int OutputSize() const { return logistics() ? 3 * head.mixtures : head.classes; }
  // Dimensions of the position embedding.
  int PositionDims() const {
    return input.positions == Positions::kAdded ? stack.d_model
                                                : stack.d_model - input.value_embedding;
  }
  // Number of past tokens that the embedding uses besides the current one.
  int Reach() const { return input.pixel_above ? image()->RowBytes() - 1 : 0; }
};

bool operator==(const ModelSpec& a, const ModelSpec& b);

// The words of a text, split at white space.
std::vector<std::string> Words(const std::string& text);

// The first field in which two specs differ, with its value in each.
struct SpecDifference {
  std::string field, a, b;
};
std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b);

// Throws InputError on invalid values: zero or absurd sizes, unknown names, inconsistent sizes.
// `where` (a file's path, say) begins the message.
void Validate(const ModelSpec& spec, const std::string& where = "model");

// JSON: one flat object of names and values; "pattern", a list of such objects, holds the mixers if
// they differ. Files of the first version remain readable. FromJson leaves absent fields at their
// defaults, rejects unknown ones (InputError beginning with `where`), and validates.
std::string ToJson(const ModelSpec& spec, int indent = -1);
ModelSpec FromJson(const std::string& json, const std::string& where);

// Tensor names and shapes of a checkpoint with this spec (types: StoredAs() of precision.h):
//   fast-transformers' names under "transformer." (encoder-decoder: "encoder." and "decoder."),
//     with those of each mixer (MixerInfo::tensors)
//   value_embedding.weight [vocabulary, value_embedding], unless tied to predictor.weight
//   pos_embedding.pe [1, max_length, PositionDims()], unless PositionDims() is 0
//   above_embedding.weight [vocabulary + 1, value_embedding] if pixel_above; last row: no byte
//     above
//   predictor.{weight,bias}
//   images: first_value.probability [vocabulary], the distribution of the first byte
//   frames: input_projection.{weight,bias} [value_embedding, Inputs()] instead of the value
//     embedding, and input_norm.{mean,deviation} [bands] for BandNorm::kCorpus
//   layers with a convolution: convolution.weight [convolution, d_model],
//     convolution.bias [d_model] and convolution_norm
//   LSTM: PyTorch's names under "lstm."; the predictor reads 2 d_model
std::vector<TensorInfo> TensorTable(const ModelSpec& spec);

// Number of trainable parameters: the table without the tensors of IsBuffer().
int64_t ParameterCount(const ModelSpec& spec);

// Whether a tensor is data, not a parameter (see ParameterCount).
bool IsBuffer(const std::string& tensor_name);

// Sine positions [length, dim]: pe[t, 2i] = sin(t / 10000^(2i/dim)), pe[t, 2i+1] = cos(same).
std::vector<float> PositionTable(int length, int dim);

// The contents of this spec's pos_embedding.pe: [max_length, PositionDims()].
std::vector<float> PositionTable(const ModelSpec& spec);

// Writes row t of that table to `to` [PositionDims()], for any t, also beyond max_length.
void PositionRow(const ModelSpec& spec, int64_t t, float* to);

}  // namespace linnet

#endif  // LINNET_MODEL_SPEC_H_
