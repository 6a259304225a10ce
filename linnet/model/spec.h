// What a model is, as plain data: the description that both halves read and that travels inside
// every checkpoint.
//
//   ModelSpec spec;                                  // the paper's MNIST model
//   spec.layers = 4; spec.d_model = 128; ...
//   Validate(spec);
//   for (const TensorInfo& tensor : TensorTable(spec)) ...   // names and shapes, in file order
//   std::string json = ToJson(spec);                 // goes into the checkpoint's metadata
//
// The network: symbols x_0 .. x_{L-1} are embedded (value embedding beside sine/cosine positions;
// images may say more of where a byte stands, see `positions` and `pixel_above`), go through a
// stack of transformer layers, and a linear head predicts x_{t+1} from the output at t. Of speech, x_t
// are frames of a filterbank, projected, and the head tells which phone is spoken at t, or none.
#ifndef LINNET_MODEL_SPEC_H_
#define LINNET_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linnet/model/attention.h"

namespace linnet {

// What a model of speech hears and says. Its position p is a window of `stack` frames, the last of which
// is frame p * stride + stride - 1 + lookahead; frames that are not there are zeros.
struct SpeechSpec {
  int sample_rate = 16'000;
  int bands = 40;     // of the mel filterbank (data/filterbank.h), a frame every 10 ms
  int stack = 9;      // frames that a position sees
  int stride = 3;     // frames from one position to the next
  int lookahead = 3;  // frames of the future, in a position's window, beyond those of its stride
  // What brings each band to mean 0 and deviation 1: "utterance", its own; "corpus", the training set's.
  std::string normalise = "utterance";
  // Their names, with a space between two; class 0 is the blank, 1 the first phone.
  std::string phones;

  int Inputs() const { return bands * stack; }
  // Frame of the first one of position 0's window; negative: that many zeros.
  int FirstFrame() const { return stride + lookahead - stack; }
};

// What the symbols of a text stand for (model/vocabulary.h).
struct TextSpec {
  std::string unit = "byte";  // or "character"
  // One behind the other, in the order of their symbols; bytes have none.
  std::string characters = {};
};

struct ModelSpec {
  // What the symbols are: "images" (bytes in raster order, RGB interleaved), "copy", "text", "couplet" (a
  // first line, a separator, the second line) or "speech".
  std::string task = "images";
  // "transformer"; "lstm": that many layers in both directions, d_model wide each, for speech; or
  // "encoder-decoder", for couplets: that many layers read the first line, and as many write the second.
  std::string network = "transformer";

  AttentionSpec attention;
  int layers = 8;
  int heads = 8;
  int query_dim = 32;  // D, per head
  int value_dim = 32;  // M, per head
  int d_model = 256;
  int d_ff = 1024;
  std::string activation = "relu";  // "relu" or "gelu" (the exact one, with erf)
  // Layers are x = LN(x + f(x)), or with norm_first x = x + f(LN(x)).
  bool norm_first = false;
  // A depthwise convolution over this many positions in front of each layer's attention (speech only; the
  // last ones where the network is causal, else those around, an odd number); 0: none.
  int convolution = 0;
  bool final_norm = true;  // layer norm after the last layer; norm_first needs it
  float norm_eps = 1e-5f;

  int vocabulary = 256;  // input symbols 0 .. vocabulary-1
  int max_length = 783;  // positions with an embedding
  // Dimensions of the value embedding; positions take the rest of d_model, unless they are added to it.
  int value_embedding = 128;
  // The head's weights are the value embedding's, times sqrt(d_model) where they embed: for a vocabulary
  // that is large beside the rest. Needs the categorical head and value_embedding = d_model.
  bool tied = false;

  std::string head = "logistics";  // "logistics": mixture over bytes; "categorical": logits
  int mixtures = 10;               // logistics: logits, means and log-scales, in this order
  int classes = 0;                 // categorical

  // task "images"; width * height * channels = max_length + 1
  int width = 28, height = 28, channels = 1;
  // What the position dimensions tell: "sequence": the place t in the sequence; "grid": half of
  // them that, a quarter each the row and the place in the row of the byte to be predicted, t + 1;
  // "added": the place t, in d_model dimensions that are added to the value embedding's.
  std::string positions = "sequence";
  // Adds an embedding of the byte above the one to be predicted to that of the symbol read.
  bool pixel_above = false;

  SpeechSpec speech;  // task "speech"
  TextSpec text;      // tasks "text" and "couplet"

  // Whether a position sees those before it alone.
  bool Causal() const { return task != "speech" || attention.kind == "causal-linear"; }
  // The head's outputs per position: 3 * mixtures or classes.
  int OutputSize() const { return head == "logistics" ? 3 * mixtures : classes; }
  // Dimensions of the table of positions.
  int PositionDims() const { return positions == "added" ? d_model : d_model - value_embedding; }
  // Bytes in a row of an image.
  int RowBytes() const { return width * channels; }
  // Past symbols that the embedding looks back at, beside the one read.
  int Reach() const { return pixel_above ? RowBytes() - 1 : 0; }
};

bool operator==(const ModelSpec& a, const ModelSpec& b);

// What stands between blanks: the names in SpeechSpec::phones.
std::vector<std::string> Words(const std::string& text);

// The first field, in the order above, in which two specs differ, with what each says.
struct SpecDifference {
  std::string field, a, b;
};
std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b);

// Throws InputError on a value that makes no model: zero or absurd sizes, unknown names, sizes that
// disagree. `where` begins the message (a file's path, say).
void Validate(const ModelSpec& spec, const std::string& where = "model");

// JSON with the names of the fields above. FromJson leaves absent fields at their defaults, refuses
// unknown ones (InputError beginning with `where`), and validates.
std::string ToJson(const ModelSpec& spec, int indent = -1);
ModelSpec FromJson(const std::string& json, const std::string& where);

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
};

// Every tensor of a checkpoint with this spec, all fp32: the reference library's names under
// "transformer.", value_embedding.weight [vocabulary, value_embedding] (unless it is tied: then the
// predictor's is it), pos_embedding.pe [1, max_length, PositionDims()], above_embedding.weight [vocabulary + 1,
// value_embedding] (its last row: nothing is above) where pixel_above is set, each layer's
// attention.inner_attention.feature_map.omega [query_dim, OmegaColumns()] where the feature map is
// random, predictor.{weight,bias}; and, for images, first_value.probability [vocabulary]: how often the
// data begins with each byte. Of speech: input_projection.{weight,bias} [value_embedding, Inputs()] in
// place of the value embedding, input_norm.{mean,deviation} [bands] where the corpus normalises; and each layer with a
// convolution has convolution.weight [convolution, d_model], convolution.bias [d_model] and convolution_norm; an
// LSTM has those of PyTorch under "lstm.", and its predictor reads 2 d_model. An encoder-decoder has the
// reference library's names under "encoder." and "decoder.".
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

}  // namespace linnet

#endif  // LINNET_MODEL_SPEC_H_
