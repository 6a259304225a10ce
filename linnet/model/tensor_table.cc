// TensorTable(), IsBuffer() and ParameterCount() of spec.h.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/model/pixels.h"
#include "linnet/model/spec.h"
#include "linnet/model/stem.h"

namespace linnet {
namespace {

// Builds the tensor table of a spec.
class Table {
 public:
  explicit Table(const ModelSpec& spec) : spec_(spec), d_(spec.stack.d_model) {}

  std::vector<TensorInfo> Make() {
    const SpeechSpec* speech = spec_.speech();
    if (speech && speech->normalization == BandNorm::kCorpus) {
      Add("input_norm.mean", {speech->bands});
      Add("input_norm.deviation", {speech->bands});
    }
    if (spec_.lstm()) {
      Lstm(speech->Inputs());
      return std::move(table_);
    }
    const InputSpec& input = spec_.input;
    if (speech) {
      Linear("input_projection", input.value_embedding, speech->Inputs());
    } else if (!spec_.head.tied) {
      Add("value_embedding.weight", {EmbeddingRows(spec_), input.value_embedding});
    }
    if (spec_.PositionDims() > 0) {
      Add("pos_embedding.pe", {1, input.max_length, spec_.PositionDims()});
    }
    if (input.pixel_above) {
      Add("above_embedding.weight", {AboveRows(spec_), input.value_embedding});
    }
    if (input.stem.channels > 0) Stem(spec_.PixelTokens());
    if (input.norm) Norm("embedding_norm", spec_.EmbeddingWidth());
    if (spec_.patches()) Patch(input.patch);
    if (spec_.encoder_decoder()) {
      Stack("encoder", /*decoder=*/false);
      Stack("decoder", /*decoder=*/true);
    } else {
      Stack("transformer", /*decoder=*/false);
    }
    Linear("predictor", spec_.OutputSize(), spec_.EmbeddingWidth(), spec_.head.bias);
    if (spec_.image() && !input.whole_pixels) Add("first_value.probability", {input.vocabulary});
    return std::move(table_);
  }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape) {
    table_.push_back({name, std::move(shape)});
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias = true) {
    Add(name + ".weight", {out, in});
    if (bias) Add(name + ".bias", {out});
  }
  void Norm(const std::string& name) { Norm(name, d_); }
  void Norm(const std::string& name, int64_t width) {
    Add(name + ".weight", {width});
    if (spec_.stack.norm == NormKind::kLayer) Add(name + ".bias", {width});
  }

  void Patch(const PatchSpec& patch) {
    const int64_t all = int64_t{patch.tokens} * patch.width;
    Linear("patch.in", d_, all);
    Linear("patch.out", all, d_);
    if (patch.convolution > 0) {
      Add("patch.convolution.weight", {patch.convolution, patch.width});
      Add("patch.convolution.bias", {patch.width});
    }
    Norm("patch.norm1", patch.width);
    Linear("patch.linear1", patch.d_ff, patch.width);
    Linear("patch.linear2", patch.width, patch.d_ff);
    Norm("patch.norm2", patch.width);
  }

  void Stem(int colors) {
    for (int k = 0; k < colors; ++k) {
      const int channels = spec_.input.stem.channels;
      Linear(StemFeaturesName(k), channels, StemInputs(spec_, k));
      Linear(StemOutputName(k), spec_.EmbeddingWidth(),
             int64_t{channels} * StemFeatures(spec_).Inputs(k));
    }
  }

  void Lstm(int64_t inputs) {
    for (int i = 0; i < spec_.stack.layers(); ++i) {
      for (const char* direction : {"", "_reverse"}) {
        const auto add = [&](const char* name, std::vector<int64_t> shape) {
          Add(StrCat("lstm.", name, i, direction), std::move(shape));
        };
        add("weight_ih_l", {4 * d_, i == 0 ? inputs : 2 * d_});
        add("weight_hh_l", {4 * d_, d_});
        add("bias_ih_l", {4 * d_});
        add("bias_hh_l", {4 * d_});
      }
    }
    Linear("predictor", spec_.OutputSize(), 2 * d_);
  }

  void Stack(const std::string& name, bool decoder) {
    const StackSpec& stack = spec_.stack;
    const bool encoder = spec_.encoder_decoder() && !decoder;
    for (int i = 0; i < stack.layers(); ++i) {
      const std::string layer = StrCat(name, ".layers.", i, ".");
      if (stack.convolution > 0) {
        Add(layer + "convolution.weight", {stack.convolution, d_});
        Add(layer + "convolution.bias", {d_});
        Norm(layer + "convolution_norm");
      }
      const MixerSpec& mixer = stack.mixer(static_cast<size_t>(i));
      MixerTensors(encoder ? CrossMixer(mixer) : mixer, d_,
                   layer + (decoder ? "self_attention" : "attention"), table_);
      if (decoder) MixerTensors(CrossMixer(mixer), d_, layer + "cross_attention", table_);
      const bool feeds = stack.feed_forward != FeedForwardKind::kNone;
      const bool bias = stack.feed_forward == FeedForwardKind::kMlp;
      if (stack.feed_forward == FeedForwardKind::kGated) {
        Linear(layer + "gate", stack.d_ff, d_, /*bias=*/false);
      }
      if (stack.feed_forward == FeedForwardKind::kShifted) Add(layer + "shift", {d_});
      if (feeds) Linear(layer + "linear1", stack.d_ff, d_, bias);
      if (feeds) Linear(layer + "linear2", d_, stack.d_ff, bias);
      Norm(layer + "norm1");
      if (feeds) Norm(layer + "norm2");
      if (decoder) Norm(layer + "norm3");
    }
    if (stack.final_norm) Norm(name + ".norm");
  }

  const ModelSpec& spec_;
  const int64_t d_;  // d_model
  std::vector<TensorInfo> table_;
};

}  // namespace

std::vector<TensorInfo> TensorTable(const ModelSpec& spec) { return Table(spec).Make(); }

bool IsBuffer(const std::string& name) {
  constexpr std::string_view kOmega = ".feature_map.omega";
  return name == "pos_embedding.pe" || name == "first_value.probability" ||
         name.starts_with("input_norm.") ||
         (name.size() > kOmega.size() &&
          name.compare(name.size() - kOmega.size(), kOmega.size(), kOmega) == 0);
}

int64_t ParameterCount(const ModelSpec& spec) {
  int64_t count = 0;
  for (const TensorInfo& tensor : TensorTable(spec)) {
    if (IsBuffer(tensor.name)) continue;
    int64_t size = 1;
    for (int64_t n : tensor.shape) size *= n;
    count += size;
  }
  return count;
}

}  // namespace linnet
