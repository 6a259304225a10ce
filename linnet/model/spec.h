// The description of a model, as plain data: an input, a stack of layers and a head. Both halves read
// it, and it travels inside every checkpoint.
//
//   ModelSpec spec;                                  // the paper's MNIST model
//   spec.stack.repeat = 4, spec.stack.d_model = 128; ...
//   Validate(spec);
//   for (const TensorInfo& tensor : TensorTable(spec)) ...   // names and shapes, in file order
//   std::string json = ToJson(spec);                 // goes into the checkpoint's metadata
//
// Tokens x_0 .. x_{L-1} are embedded (value embedding beside sine positions; images may say more of
// where a byte stands), go through the layers, and a linear head predicts x_{t+1} from the output at t.
// In speech x_t are frames of a filterbank, projected, and the head tells which phone is spoken at t, or none.
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

// Where a position stands in its sequence, as its embedding says.
enum class Positions : uint8_t {
  kSequence,  // the place t, in the dimensions beside the value embedding; in none: not at all
  kGrid,      // half of them that; a quarter each the row and the column of byte t + 1 of an image
  kAdded,     // the place t, in d_model dimensions that are added to the value embedding
};
enum class HeadKind : uint8_t { kLogistics, kCategorical };
enum class Activation : uint8_t { kRelu, kGelu };  // gelu: the exact one, with erf
enum class NetworkKind : uint8_t {
  kTransformer,
  kLstm,            // that many layers in both directions, d_model wide each
  kEncoderDecoder,  // the stack twice: one reads up to the separator, one writes behind it
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
  int vocabulary = 256;  // tokens 0 .. vocabulary-1
  int max_length = 783;  // positions seen in training; sine positions go on behind them
  // Dimensions of the value embedding; positions take the rest of d_model, unless they are added to it.
  int value_embedding = 128;
  Positions positions = Positions::kSequence;
  // Adds an embedding of the byte above the one to be predicted to that of the token read.
  bool pixel_above = false;
};

// Layers: the mixers of `pattern` in turn, the whole `repeat` times, all else alike.
struct StackSpec {
  std::vector<MixerSpec> pattern = {MixerSpec()};
  int repeat = 8;
  int d_model = 256;
  int d_ff = 1024;
  Activation activation = Activation::kRelu;
  // Layers are x = LN(x + f(x)), or with norm_first x = x + f(LN(x)).
  bool norm_first = false;
  // A depthwise convolution over this many positions in front of each layer's mixer (the last ones where
  // the network is causal, else those around, an odd number); 0: none.
  int convolution = 0;
  bool final_norm = true;  // layer norm after the last layer; norm_first needs it
  float norm_eps = 1e-5f;

  int layers() const { return static_cast<int>(pattern.size()) * repeat; }
  const MixerSpec& mixer(size_t layer = 0) const { return pattern[layer % pattern.size()]; }
  MixerSpec& mixer(size_t layer = 0) { return pattern[layer % pattern.size()]; }
};

struct HeadSpec {
  HeadKind kind = HeadKind::kLogistics;
  int mixtures = 10;  // logistics over bytes: logits, means and log-scales, in this order
  int classes = 0;    // categorical
  // Its weights are the value embedding's, times sqrt(d_model) where they embed: for a vocabulary that is
  // large beside the rest. Needs the categorical head and value_embedding = d_model.
  bool tied = false;
};

// The tasks' own parts.

struct ImageSpec {
  int width = 28, height = 28, channels = 1;  // width * height * channels = max_length + 1

  int RowBytes() const { return width * channels; }
};

// Meaning of the tokens of a text (model/vocabulary.h).
struct TextSpec {
  TextUnit unit = TextUnit::kByte;
  std::string characters =
      {};  // one behind the other, in the order of their tokens; bytes have none
};

// Position p of a speech model is a window of `stack` frames, the last of which is frame
// p * stride + stride - 1 + lookahead; frames that are not there are zeros.
struct SpeechSpec {
  int sample_rate = 16'000;
  int bands = 40;     // of the mel filterbank (tasks/speech/filterbank.h), a frame every 10 ms
  int stack = 9;      // frames that a position sees
  int stride = 3;     // frames from one position to the next
  int lookahead = 3;  // frames of the future, in a position's window, beyond those of its stride
  BandNorm normalization =
      BandNorm::kUtterance;  // statistics that bring bands to mean 0, deviation 1
  // Names with a space between two; class 0 is the blank, 1 the first phone.
  std::string phones;

  int Inputs() const { return bands * stack; }
  // Frame of the first one of position 0's window; negative: that many zeros.
  int FirstFrame() const { return stride + lookahead - stack; }
};

struct ModelSpec {
  std::string task = "images";  // in the registry of linnet/tasks
  NetworkKind network = NetworkKind::kTransformer;
  InputSpec input;
  StackSpec stack;
  HeadSpec head;
  std::variant<std::monostate, ImageSpec, TextSpec, SpeechSpec> part = ImageSpec();

  // Null where the model has no such part.
  const ImageSpec* image() const { return std::get_if<ImageSpec>(&part); }
  const TextSpec* text() const { return std::get_if<TextSpec>(&part); }
  const SpeechSpec* speech() const { return std::get_if<SpeechSpec>(&part); }
  ImageSpec* image() { return std::get_if<ImageSpec>(&part); }
  TextSpec* text() { return std::get_if<TextSpec>(&part); }
  SpeechSpec* speech() { return std::get_if<SpeechSpec>(&part); }

  // Whether it reads frames of numbers, not tokens.
  bool ReadsFrames() const { return speech() != nullptr; }
  bool lstm() const { return network == NetworkKind::kLstm; }
  bool encoder_decoder() const { return network == NetworkKind::kEncoderDecoder; }
  bool logistics() const { return head.kind == HeadKind::kLogistics; }
  // Whether a position sees those before it alone: always over tokens; over frames, where every mixer
  // does so by nature.
  bool Causal() const;
  // The head's outputs per position: 3 * mixtures or classes.
  int OutputSize() const { return logistics() ? 3 * head.mixtures : head.classes; }
  // Dimensions of the positions.
  int PositionDims() const {
    return input.positions == Positions::kAdded ? stack.d_model
                                                : stack.d_model - input.value_embedding;
  }
  // Past tokens that the embedding looks back at, beside the one read.
  int Reach() const { return input.pixel_above ? image()->RowBytes() - 1 : 0; }
};

bool operator==(const ModelSpec& a, const ModelSpec& b);

// The words of a text, which blanks separate.
std::vector<std::string> Words(const std::string& text);

// The first field in which two specs differ, with its value in each.
struct SpecDifference {
  std::string field, a, b;
};
std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b);

// Throws InputError on a value that makes no model: zero or absurd sizes, unknown names, sizes that
// disagree. `where` begins the message (a file's path, say).
void Validate(const ModelSpec& spec, const std::string& where = "model");

// JSON: one flat object of names and values, the same since the first version. FromJson leaves absent
// fields at their defaults, refuses unknown ones (InputError beginning with `where`), and validates.
std::string ToJson(const ModelSpec& spec, int indent = -1);
ModelSpec FromJson(const std::string& json, const std::string& where);

// Tensor names and shapes of a checkpoint with this spec, all fp32. fast-transformers' names under
// "transformer." (an encoder-decoder has them under "encoder." and "decoder."), with those of each mixer
// (MixerInfo::tensors); value_embedding.weight [vocabulary, value_embedding] (unless it is tied: then the
// predictor's is it); pos_embedding.pe [1, max_length, PositionDims()]; above_embedding.weight
// [vocabulary + 1, value_embedding] (its last row: nothing is above) where pixel_above is set;
// predictor.{weight,bias}; of images first_value.probability [vocabulary], the distribution of first
// bytes. Of frames: input_projection.{weight,bias} [value_embedding, Inputs()] in place of the value
// embedding, and input_norm.{mean,deviation} [bands] where the corpus normalizes. A layer with a convolution has
// convolution.weight [convolution, d_model], convolution.bias [d_model] and convolution_norm. An LSTM has
// PyTorch's names under "lstm.", and its predictor reads 2 d_model.
std::vector<TensorInfo> TensorTable(const ModelSpec& spec);

// Trainable numbers: the table without what IsBuffer() knows.
int64_t ParameterCount(const ModelSpec& spec);

// The tensor names that are data, not parameters (see ParameterCount).
bool IsBuffer(const std::string& tensor_name);

// Sine/cosine positions [length, dim]: pe[t, 2i] = sin(t / 10000^(2i/dim)), pe[t, 2i+1] =
// cos(same).
std::vector<float> PositionTable(int length, int dim);

// What pos_embedding.pe of this spec holds: [max_length, PositionDims()].
std::vector<float> PositionTable(const ModelSpec& spec);

// Row t of those positions, for any t: to [PositionDims()].
void PositionRow(const ModelSpec& spec, int64_t t, float* to);

}  // namespace linnet

#endif  // LINNET_MODEL_SPEC_H_
