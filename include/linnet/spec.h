// A model's description as plain data: an input, a stack of layers and a head. It is stored in
// every model file.
//
//   linnet::ModelSpec spec;                                  // the paper's MNIST model
//   spec.stack.repeat = 4, spec.stack.d_model = 128;
//   linnet::Validate(spec);
//   std::string json = linnet::ToJson(spec);
//
// Tokens x_0 .. x_{L-1} are embedded and go through the layers. A linear head predicts x_{t+1} from
// the output at t. The embedding consists of a value embedding and sine positions. Image models may
// add the row and column of the next byte, the byte above the next byte, and a convolutional stem.
// In speech, x_t are projected windows of filterbank frames, and the head predicts the phone spoken
// at t, or the blank.
#ifndef LINNET_SPEC_H_
#define LINNET_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "linnet/export.h"

namespace linnet {

// The similarity of q and k in attention of kind "kernel", with D the dimension of q. kSoftmax:
// exp(q . k / sqrt(D)). kPolynomial2: (q . k / sqrt(D) + 1)^2. kRbf: exp(-|q - k|^2 / (2 sqrt(D))).
enum class Similarity : uint8_t { kSoftmax, kPolynomial2, kRbf };
// kPublished: Kitaev et al. 2020. kSimple: fast-transformers' variant, where buckets only sort the
// positions and do not limit which keys a query sees.
enum class LshVariant : uint8_t { kPublished, kSimple };

// A mixer by its registered name, with its parameters.
struct MixerSpec {
  std::string kind = "causal-linear";  // one of Mixers()

  // linear kinds
  std::string feature_map = "elu";  // one of FeatureMaps()
  int features = 0;                 // number of random features; 0: twice query_dim
  float eps = 1e-6f;                // added to the sum of weights (kind "kernel" too)

  Similarity similarity = Similarity::kSoftmax;  // kind "kernel"

  // kind "reformer"
  int lsh_rounds = 4;
  int lsh_buckets = 64;  // 1 or an even number
  int lsh_chunk = 32;    // positions per chunk of the sorted sequence
  LshVariant lsh_variant = LshVariant::kPublished;

  // Factor of q . k in the softmax (kinds "full" and "reformer"); 0: 1 / sqrt(query_dim).
  float scale = 0;

  // kind "full"
  int window = 0;       // number of positions that a query attends to, its own included; 0: all
  bool rotary = false;  // rotates channels i, i + D/2 of q and k at position t by t base^(-2i/D)
  float rotary_base = 10000;
  bool qkv_bias = true, out_bias = true;  // whether the projections have biases

  // gated recurrences
  int short_convolution = 4;  // width of the convolutions of queries, keys and values; 0: none
  bool output_gate = true;    // gates the output (kinds "*delta-net" and "gated-delta-product")
  // Delta rules: the strength beta of the transition I - beta k k^T is in (0, 2) instead of (0, 1).
  bool negative_eigenvalues = false;
  // Rank of the projection of the decay (kind "gla") or of the output gate ("rwkv7").
  int gate_rank = 16;
  // Number of key heads; heads / key_heads consecutive heads share one. 0: equal to `heads`, so
  // none is shared. Kinds "gated-delta-net", "kda", "gated-delta-product" and "ssd" (which calls
  // them groups) share queries and keys; kinds "full", "gla" and "retention" share keys and values.
  int key_heads = 0;
  int householders = 2;  // kind "gated-delta-product": delta steps per position
  // Lower bound <= 0 of the logarithm of the decay of a key channel; 0: none. Kind "gla" clamps the
  // logarithm to it; in kind "kda" the logarithm is the bound times a sigmoid.
  float decay_floor = 0;
  bool lower_bound = false;       // kind "hgrn": learned lower bounds of the decays
  float output_norm_eps = 1e-5f;  // epsilon of the RMS norm of a head's output

  // kind "rwkv7"
  int decay_rank = 32;  // rank of the projection of the decays
  int rate_rank = 32;   // rank of the projection of the rates (`a` in model/rwkv7.h)
  // Above 0: mixes the values of an earlier layer (the last "rwkv7" layer before this one with
  // value_rank 0) into the values of this layer. The mixing weights come from a projection of this
  // rank. 0: no mixing.
  int value_rank = 0;

  int heads = 8;
  int query_dim = 32;  // D, per head
  int value_dim = 32;  // M, per head
};

// The position embedding.
enum class Positions : uint8_t {
  kSequence,  // sines of t, in the dimensions of d_model that the value embedding leaves free
  // The same dimensions, divided: one half holds sines of t, one quarter sines of the row of byte
  // t + 1, and one quarter sines of the index of byte t + 1 in its row.
  kGrid,
  kAdded,  // sines of t in d_model dimensions, added to the value embedding
};
enum class HeadKind : uint8_t { kLogistics, kCategorical };
enum class Activation : uint8_t { kRelu, kGelu };  // gelu: the exact form, with erf
// kRms: x / sqrt(mean(x^2) + eps) * weight.
enum class NormKind : uint8_t { kLayer, kRms };
// kMlp: W2 act(W1 x + b1) + b2. kGated: W2 (silu(Wg x) * W1 x), without biases ("SwiGLU"). kNone:
// layers consist of a mixer only. kShifted: W2 max(W1 y, 0)^2 without biases, where y = x +
// (x at the previous position - x) * shift (RWKV's "channel mixing").
enum class FeedForwardKind : uint8_t { kMlp, kGated, kNone, kShifted };
enum class NetworkKind : uint8_t {
  kTransformer,
  kLstm,            // bidirectional layers, d_model wide in each direction
  kEncoderDecoder,  // the encoder reads the tokens before the separator, the decoder the rest
};
// kToken: the tokens of a byte-pair vocabulary.
enum class TextUnit : uint8_t { kByte, kCharacter, kToken };
// kUtterance: each utterance's own statistics. kCorpus: statistics of the training corpus.
enum class BandNorm : uint8_t { kUtterance, kCorpus };

// A causal stem of images: two masked 2-D convolutions, whose result is added to the embedding.
//
// Position t predicts byte n = t + 1, which is color k of the pixel in row y and column x. Then
//   u[n] are the bytes before byte n in rows y - rows + 1 .. y and columns x - columns / 2 ..
//     x + columns / 2, each divided by 128, minus 1
//   h[n] = gelu(V_k u[n] + a_k) are the features of byte n
//   g[n] are the features h[m] of color k, m <= n, in rows y - second_rows + 1 .. y and columns
//     x - second_columns / 2 .. x + second_columns / 2
// and W_k g[n] + b_k is added to the embedding at position t. Each color has its own weights. u and
// g are in raster order. Bytes and features outside the image are zeros, and so is h[0], which no
// position computes.
//
// With whole_pixels, position t predicts pixel n = t. u[n] are the three colors of each pixel
// before pixel n in the window, g[n] the features of pixels m <= n. There is one set of weights
// (k = 0), and h[0] is computed like the others.
struct StemSpec {
  int channels = 0;  // of h; 0: no stem
  int rows = 4, columns = 7;
  int second_rows = 3, second_columns = 5;
};

// Patches of images: the layers read `tokens` embedded tokens at a time, which saves most of their
// work. A small network of its own predicts the tokens of a patch one by one.
//
// With patches, embeddings (value, position, byte above and stem) have `width` dimensions. u[n] is
// the embedding at the position that predicts token n of the image. Patch p are the P = `tokens`
// tokens n with n / P = p.
//   x[p] = A (u[n - P + 1], .., u[n]) + a, n = p P, are the inputs of the layers, and y[p] their
//     outputs. Only tokens that positions predict count; other u are zeros, and so is y[0] if no
//     position predicts token 0.
//   z[n] = u[n] + row n % P of (B y[n / P] + b), a matrix of P rows, once y exists. With a
//     convolution of K taps, + c[0] u[n - K + 1] + .. + c[K - 1] u[n] + d, elementwise: it reaches
//     farther back than a stem
//   LN(z + W2 gelu(W1 LN(z) + b1) + b2) is the head's input for token n
struct PatchSpec {
  int tokens = 1;       // P, which divides the number of tokens of an image row; 1: no patches
  int width = 0;        // of u and z; 0 without patches
  int d_ff = 0;         // hidden units, rows of W1; 0 without patches
  int convolution = 0;  // K, at most P; 0: none
};

// The tokens of a model that reads whole pixels are red << 16 | green << 8 | blue, and kBeginPixel,
// which it reads before the first pixel.
inline constexpr int kBeginPixel = 1 << 24;

struct InputSpec {
  int vocabulary = 256;  // tokens 0 .. vocabulary - 1
  int max_length = 783;  // positions seen in training; sine positions continue beyond
  // Dimensions of the value embedding. Sine positions take the rest of EmbeddingWidth() unless they
  // are added (Positions::kAdded).
  int value_embedding = 128;
  Positions positions = Positions::kSequence;
  // Adds an embedding of the byte, or pixel, directly above the next one (the one to predict).
  bool pixel_above = false;
  // Images in color: a position reads a pixel, not a byte, and predicts all colors of the next one.
  // Then vocabulary is kBeginPixel + 1. The embedding of a pixel is the sum of those of its colors.
  bool whole_pixels = false;
  StemSpec stem = {};
  PatchSpec patch = {};
  bool norm = false;  // whether the embeddings are normalized before the first layer
};

// A stack of layers. Their mixers are those of `pattern` in turn, repeated `repeat` times. All
// other options are the same for every layer.
struct StackSpec {
  std::vector<MixerSpec> pattern = {MixerSpec()};
  int repeat = 8;
  int d_model = 256;
  int d_ff = 1024;  // hidden units of the feed-forward block; kNone ignores it
  FeedForwardKind feed_forward = FeedForwardKind::kMlp;
  Activation activation = Activation::kRelu;  // of kMlp and of the convolution
  NormKind norm = NormKind::kLayer;
  // Layers are x = LN(x + f(x)), or with norm_first x = x + f(LN(x)).
  bool norm_first = false;
  // Width in positions of a depthwise convolution before each layer's mixer; 0: none. In a causal
  // network the convolution reads the current and the previous positions, otherwise the surrounding
  // ones (the width must then be odd).
  int convolution = 0;
  bool final_norm = true;  // a norm after the last layer; required by norm_first
  float norm_eps = 1e-5f;

  int layers() const { return static_cast<int>(pattern.size()) * repeat; }
  const MixerSpec& mixer(size_t layer = 0) const { return pattern[layer % pattern.size()]; }
  MixerSpec& mixer(size_t layer = 0) { return pattern[layer % pattern.size()]; }
};

struct HeadSpec {
  HeadKind kind = HeadKind::kLogistics;
  // kLogistics: number of components. Outputs: their logits, means and log-scales, in this order.
  // With whole_pixels there are three means and log-scales per component, and three coefficients
  // (kernels/pixel_logistics.h).
  int mixtures = 10;
  int classes = 0;  // kCategorical: number of outputs
  // The value embedding is the head's weight matrix times sqrt(d_model), which saves memory if the
  // vocabulary is large. Needs text, the categorical head and value_embedding = d_model.
  bool tied = false;
  bool bias = true;
};

// Task-specific parts.

struct ImageSpec {
  // width * height * channels = max_length + 1; with whole_pixels, width * height = max_length
  int width = 28, height = 28, channels = 1;

  int RowBytes() const { return width * channels; }
  int Bytes() const { return height * RowBytes(); }
};

// The meaning of text tokens (linnet/vocabulary.h).
struct TextSpec {
  TextUnit unit = TextUnit::kByte;
  std::string characters = {};  // concatenated in token order; of kCharacter only
  std::string tokenizer = {};   // JSON, see Vocabulary::OfTokenizer(); of kToken only

  bool operator==(const TextSpec&) const = default;
};

// Position p of a speech model is a window of `stack` frames, the last of which is frame
// p * stride + stride - 1 + lookahead; frames outside the utterance are zeros.
struct SpeechSpec {
  int sample_rate = 16'000;
  int bands = 40;     // of the mel filterbank (tasks/speech/filterbank.h), one frame per 10 ms
  int stack = 9;      // frames per position
  int stride = 3;     // frames between positions
  int lookahead = 3;  // frames of a position's window that come after its stride
  BandNorm normalization =
      BandNorm::kUtterance;  // source of the mean and deviation that normalize each band
  // Names separated by a space; class 0 is the blank, 1 the first phone.
  std::string phones;

  int Inputs() const { return bands * stack; }
  // First frame of position 0's window; if negative, the window begins with that many zero frames.
  int FirstFrame() const { return stride + lookahead - stack; }
};

struct LINNET_API ModelSpec {
  std::string task = "images";  // a name in the registry of linnet/tasks
  NetworkKind network = NetworkKind::kTransformer;
  InputSpec input;
  StackSpec stack;
  HeadSpec head;
  std::variant<std::monostate, ImageSpec, TextSpec, SpeechSpec> part = ImageSpec();

  // The task-specific part, if it is of this type; else null.
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
  // Whether a position depends only on itself and earlier ones: always true for models of tokens;
  // for models of frames, true if every mixer is always causal (softmax attention is, with a
  // window), and false for an LSTM.
  bool Causal() const;
  // Number of outputs of the head per position.
  int OutputSize() const {
    return logistics() ? (input.whole_pixels ? 10 : 3) * head.mixtures : head.classes;
  }
  // Tokens of a pixel, and of a row of an image.
  int PixelTokens() const { return input.whole_pixels ? 1 : image()->channels; }
  int RowTokens() const { return image()->width * PixelTokens(); }
  bool patches() const { return input.patch.tokens > 1; }
  // Dimensions of the embeddings together, and of the head's input: d_model unless there are
  // patches.
  int EmbeddingWidth() const { return patches() ? input.patch.width : stack.d_model; }
  // Dimensions of the position embedding.
  int PositionDims() const {
    return input.positions == Positions::kAdded ? EmbeddingWidth()
                                                : EmbeddingWidth() - input.value_embedding;
  }
  // Number of past tokens that the embedding uses besides the current one.
  int Reach() const;
};

LINNET_API bool operator==(const ModelSpec& a, const ModelSpec& b);

// Throws InputError on invalid values: zero or absurd sizes, unknown names, inconsistent sizes.
// `where` (a file's path, say) begins the message.
LINNET_API void Validate(const ModelSpec& spec, const std::string& where = "model");

// JSON: one flat object of names and values. If the mixers differ, the field "pattern" lists one
// flat object per mixer. `indent` is in spaces; -1 writes a single line. FromJson also reads files
// of the first version and leaves absent fields at their defaults. It throws InputError, with a
// message that begins with `where`, on unknown fields and invalid values.
LINNET_API std::string ToJson(const ModelSpec& spec, int indent = -1);
LINNET_API ModelSpec FromJson(const std::string& json, const std::string& where);

// Number of trainable parameters.
LINNET_API int64_t ParameterCount(const ModelSpec& spec);

}  // namespace linnet

#endif  // LINNET_SPEC_H_
