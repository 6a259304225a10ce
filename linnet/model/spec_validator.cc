// Validate() of spec.h.
#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/model/patches.h"
#include "linnet/model/pixels.h"
#include "linnet/model/spec.h"
#include "linnet/model/stem.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

// Validates a spec; messages begin with `where`.
class Validator {
 public:
  Validator(const ModelSpec& spec, const std::string& where) : spec_(spec), where_(where) {}

  void Run() const {
    Task();
    Mixers();
    Stack();
    CarriedValues();
    Input();
    Stem(spec_.input.stem);
    Patch(spec_.input.patch);
    Head();
    if (const ImageSpec* image = spec_.image()) Image(*image);
    if (const TextSpec* text = spec_.text()) Text(*text);
    if (const SpeechSpec* speech = spec_.speech()) Speech(*speech);
  }

 private:
  template <class... Message>
  void Require(bool good, const Message&... message) const {
    if (!good) throw InputError(where_, ": ", message...);
  }
  void InRange(const char* name, int value, int low, int high) const {
    Require(value >= low && value <= high, name, " is ", value, "; it must be between ", low,
            " and ", high);
  }

  // Task names are displayed and compared, so they must be plain words.
  void Task() const {
    constexpr size_t kLongest = 64;
    const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    Require(!spec_.task.empty() && spec_.task.size() <= kLongest &&
                std::all_of(spec_.task.begin(), spec_.task.end(), plain),
            "task ", Quote(spec_.task), ": a name must consist of at most ", kLongest,
            " letters, digits, - and _");
  }

  void Mixers() const {
    const bool frames = spec_.ReadsFrames();
    for (const MixerSpec& mixer : spec_.stack.pattern) {
      InRange("query_dim", mixer.query_dim, 1, 4096);
      std::string fit;  // names of the kinds that the task can use
      bool known = false;
      for (const MixerInfo& kind : linnet::Mixers()) {
        known = known || kind.name == mixer.kind;
        if (kind.causal || frames) fit += (fit.empty() ? "" : ", ") + kind.name;
      }
      Require(known, "unknown attention ", Quote(mixer.kind), "; choose one of ", fit);
      Validate(mixer, mixer.query_dim, where_);
      Require(frames || FindMixer(mixer.kind).causal, "task ", Quote(spec_.task),
              " needs causal attention, which '", mixer.kind, "' is not; choose causal-linear");
      Require(!spec_.encoder_decoder() || !FindMixer(mixer.kind).cross.empty(),
              "an encoder-decoder needs cross attention, which ", Quote(mixer.kind),
              " does not support; choose causal-linear or full");
      InRange("heads", mixer.heads, 1, 1000);
      InRange("value_dim", mixer.value_dim, 1, 4096);
    }
  }

  // If a layer reads an earlier layer's values, the earlier layer must exist and have the same
  // sizes.
  void CarriedValues() const {
    const MixerSpec* from = nullptr;
    for (size_t i = 0; i < static_cast<size_t>(spec_.stack.layers()); ++i) {
      const MixerSpec& mixer = spec_.stack.mixer(i);
      for (const ProjectionInfo& projection : MixerProjections(mixer)) {
        if (projection.carries) from = &mixer;
        if (!projection.carried) continue;
        Require(from != nullptr, "layer ", i, " has value_rank ", mixer.value_rank,
                ", but no earlier layer has values to read; the first layer of this kind must "
                "have value_rank 0");
        Require(from->heads == mixer.heads && from->value_dim == mixer.value_dim, "layer ", i,
                " reads the values of a layer with other heads or another value_dim");
      }
    }
  }

  void Stack() const {
    const StackSpec& stack = spec_.stack;
    Require(!spec_.lstm() || spec_.ReadsFrames(), "the network lstm is for speech");
    Require(!spec_.lstm() || spec_.head.bias, "the network lstm needs head_bias");
    Require(!spec_.encoder_decoder() || spec_.text() != nullptr,
            "the network encoder-decoder is for couplets");
    Require(!stack.pattern.empty() && stack.pattern.size() <= 1000,
            "the pattern must have 1 to 1000 layers");
    // layers() of a huge `repeat` would overflow.
    InRange("layers", stack.repeat > 1000 ? stack.repeat : stack.layers(), 1, 1000);
    InRange("d_model", stack.d_model, 2, 65536);
    InRange("d_ff", stack.d_ff, 1, 1 << 20);
    InRange("convolution", stack.convolution, 0, 4096);
    Require(
        stack.feed_forward != FeedForwardKind::kNone || spec_.network == NetworkKind::kTransformer,
        "layers without feed-forward blocks are for transformers");
    Require(stack.feed_forward != FeedForwardKind::kShifted ||
                spec_.network == NetworkKind::kTransformer,
            "shifted feed-forward blocks are for transformers");
    Require(stack.convolution == 0 || spec_.network == NetworkKind::kTransformer,
            "a convolution is for transformers; set convolution to 0");
    Require(stack.convolution % 2 == 1 || stack.convolution == 0 || spec_.Causal(),
            "convolution is ", stack.convolution,
            "; it must be odd, because the network is not causal");
    Require(stack.final_norm || !stack.norm_first, "norm_first needs final_norm");
    Require(stack.norm_eps > 0 && stack.norm_eps < 1, "norm_eps is ", stack.norm_eps,
            "; it must lie in (0, 1)");
  }

  void Input() const {
    const InputSpec& input = spec_.input;
    const int d_model = spec_.stack.d_model;
    if (input.whole_pixels) {
      Require(spec_.image() && spec_.image()->channels == 3,
              "whole_pixels is for images of three colors");
      Require(input.vocabulary == kBeginPixel + 1, "vocabulary is ", input.vocabulary,
              "; for whole_pixels it is ", kBeginPixel + 1);
      Require(input.positions == Positions::kSequence, "whole_pixels needs sequence positions");
    } else {
      InRange("vocabulary", input.vocabulary, 2, 1 << 20);
    }
    InRange("max_length", input.max_length, 1, 1 << 24);
    InRange("patch", input.patch.tokens, 1, 1 << 16);
    InRange("patch_width", input.patch.width, spec_.patches() ? 2 : 0, 65536);
    const int width = spec_.EmbeddingWidth();
    InRange("value_embedding", input.value_embedding, 1, width);
    Require(
        input.positions != Positions::kAdded || (spec_.text() && input.value_embedding == d_model),
        "added positions are for text, with value_embedding = d_model");
    Require(!input.norm || (spec_.network == NetworkKind::kTransformer && !spec_.ReadsFrames()),
            "embedding_norm is for transformers that read tokens");
    Require(spec_.image() || (input.positions != Positions::kGrid && !input.pixel_above),
            "grid positions and pixel_above are for images");
    Require(spec_.PositionDims() % 2 == 0, WidthName(), " - value_embedding is ",
            width - input.value_embedding, "; positions need an even number of dimensions");
    Require(int64_t{input.max_length} * spec_.PositionDims() <= int64_t{1} << 30,
            "max_length x position dimensions is more than 2^30");
  }

  void Stem(const StemSpec& stem) const {
    constexpr int kMostRows = 16, kMostColumns = 63;
    InRange("stem_channels", stem.channels, 0, 4096);
    Require(stem.channels == 0 || spec_.image() != nullptr,
            "a stem is for images; set stem_channels to 0");
    InRange("stem_rows", stem.rows, 1, kMostRows);
    InRange("stem_columns", stem.columns, 3, kMostColumns);
    InRange("stem_second_rows", stem.second_rows, 1, kMostRows);
    InRange("stem_second_columns", stem.second_columns, 1, kMostColumns);
    Require(stem.columns % 2 == 1 && stem.second_columns % 2 == 1, "stem_columns is ", stem.columns,
            " and stem_second_columns ", stem.second_columns, "; both must be odd");
  }

  void Patch(const PatchSpec& patch) const {
    if (!spec_.patches()) {
      Require(patch.width == 0 && patch.d_ff == 0 && patch.convolution == 0,
              "patch_width, patch_d_ff and patch_convolution are for patches; set them to 0, or "
              "patch above 1");
      return;
    }
    Require(spec_.image() != nullptr && spec_.network == NetworkKind::kTransformer,
            "patches are for transformers of images; set patch to 1");
    InRange("patch_d_ff", patch.d_ff, 1, 1 << 16);
    InRange("patch_convolution", patch.convolution, 0, patch.tokens);
    Require(int64_t{patch.tokens} * patch.width <= 1 << 16, "patch x patch_width is ",
            int64_t{patch.tokens} * patch.width, "; it must be at most ", 1 << 16);
  }

  void Head() const {
    const HeadSpec& head = spec_.head;
    const int vocabulary = spec_.input.vocabulary;
    Require(!head.tied || (spec_.text() && !spec_.logistics() && head.classes == vocabulary &&
                           spec_.input.value_embedding == spec_.stack.d_model),
            "tied weights need a text's categorical head, with classes = vocabulary and "
            "value_embedding = d_model");
    Require(!spec_.logistics() || spec_.image() != nullptr, "task ", Quote(spec_.task),
            " needs the categorical head");
    Require(!spec_.image() || vocabulary == 256 || spec_.input.whole_pixels, "vocabulary is ",
            vocabulary, "; images consist of bytes, so it must be 256");
    Require(spec_.logistics() || !spec_.input.whole_pixels,
            "whole_pixels needs the logistics head");
    if (spec_.logistics()) {
      InRange("mixtures", head.mixtures, 1, 1000);
    } else {
      InRange("classes", head.classes, 2, 1 << 20);
      Require(spec_.ReadsFrames() || head.classes == vocabulary, "classes is ", head.classes,
              "; it must be vocabulary = ", vocabulary);
    }
  }

  void Image(const ImageSpec& image) const {
    InRange("width", image.width, 1, 1 << 16);
    InRange("height", image.height, 1, 1 << 16);
    Require(image.channels == 1 || image.channels == 3, "channels is ", image.channels,
            "; it must be 1 or 3");
    const int64_t pixels = int64_t{image.width} * image.height, bytes = pixels * image.channels;
    const int64_t length = spec_.input.max_length;
    if (spec_.input.whole_pixels) {
      Require(pixels == length, "width x height is ", pixels,
              ", which must be max_length = ", length);
    } else {
      Require(bytes == length + 1, "width x height x channels is ", bytes,
              ", which must be max_length + 1 = ", length + 1);
    }
    if (spec_.patches()) {
      const int tokens = spec_.input.patch.tokens, row = spec_.RowTokens();
      Require(row % tokens == 0, "patch is ", tokens,
              "; it must divide the number of tokens of an image row, ", row);
      Require(PatchesBefore(spec_, static_cast<size_t>(length)) > 0, "patch is ", tokens,
              "; the layers would never run on an image of ", image.width, " x ", image.height);
    }
    const int rest = spec_.EmbeddingWidth() - spec_.input.value_embedding;
    Require(spec_.input.positions != Positions::kGrid || rest % 8 == 0, WidthName(),
            " - value_embedding is ", rest, "; grid positions need a multiple of 8 dimensions");
  }

  void Text(const TextSpec& text) const {
    size_t tokens = 0;
    try {
      tokens = Vocabulary(text).size();
    } catch (const Error& error) {
      throw InputError(where_, ": ", error.what());
    }
    if (text.unit == TextUnit::kToken) {
      Require(!spec_.encoder_decoder(),
              "an encoder-decoder reads bytes or characters, not byte-pair tokens");
      // The vocabulary may be larger: other programs pad the embedding to a round number of rows.
      Require(spec_.input.vocabulary >= static_cast<int>(tokens), "vocabulary is ",
              spec_.input.vocabulary, "; the tokenizer has ", tokens, " tokens");
      return;
    }
    Require(spec_.input.vocabulary == static_cast<int>(tokens),
            "text needs the categorical head, with classes and vocabulary equal to the number of "
            "tokens (",
            tokens, ")");
  }

  void Speech(const SpeechSpec& speech) const {
    InRange("sample_rate", speech.sample_rate, 4000, 1'000'000);
    InRange("bands", speech.bands, 1, 1024);
    InRange("stack", speech.stack, 1, 1024);
    InRange("stride", speech.stride, 1, speech.stack);
    InRange("lookahead", speech.lookahead, 0, speech.stack - speech.stride);
    const std::vector<std::string> phones = Words(speech.phones);
    Require(!phones.empty() && phones.size() <= 4096, "phones must list 1 to 4096 names");
    Require(std::set<std::string>(phones.begin(), phones.end()).size() == phones.size(),
            "phones lists a name twice");
    constexpr size_t kLongest = 64;  // bytes
    for (const std::string& phone : phones) {
      Require(phone.size() <= kLongest && IsPrintable(phone), "the phone ",
              Quote(phone.substr(0, kLongest)), " is not printable; a name is UTF-8 of at most ",
              kLongest, " bytes");
    }
    Require(spec_.head.classes == static_cast<int>(phones.size()) + 1, "classes is ",
            spec_.head.classes, "; it must be 1 more than the number of phones (", phones.size(),
            ")");
  }

  // The name of EmbeddingWidth().
  const char* WidthName() const { return spec_.patches() ? "patch_width" : "d_model"; }

  const ModelSpec& spec_;
  const std::string& where_;
};

}  // namespace

void Validate(const ModelSpec& spec, const std::string& where) { Validator(spec, where).Run(); }

}  // namespace linnet
