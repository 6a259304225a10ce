// For runtime tests: models with random weights, and their references.
//
//   const Tokens tokens = Images().RandomTokens(19, 0);
//   const std::vector<Doubles> want = Images().Outputs(tokens);   // ModelRef, in double
//   Engine engine(Images().model, {.threads = 2});                // compared with `want`
#ifndef LINNET_RUNTIME_TEST_MODELS_H_
#define LINNET_RUNTIME_TEST_MODELS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/model.h"
#include "linnet/rng.h"
#include "linnet/runtime/model_ref.h"

namespace linnet {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Tokens = std::vector<int32_t>;

// Most sizes do not fill whole SIMD vectors.
inline ModelSpec RaggedImages() {
  ModelSpec spec;
  spec.stack.repeat = 2, spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 5,
  spec.stack.mixer().value_dim = 7, spec.stack.d_model = 24;
  spec.stack.d_ff = 50, spec.input.value_embedding = 14, spec.head.mixtures = 3;
  spec.image()->width = 5, spec.image()->height = 4, spec.input.max_length = 19;
  return spec;
}

// RaggedImages() with grid positions, pixel_above and norm_first.
inline ModelSpec GridImages() {
  ModelSpec spec = RaggedImages();
  spec.input.value_embedding = 8, spec.input.positions = Positions::kGrid,
  spec.input.pixel_above = true;
  spec.image()->channels = 3, spec.image()->height = 20,
  spec.input.max_length = 299;  // longer than a block
  spec.stack.norm_first = true;
  return spec;
}

// Color images read by whole pixels, with pixel_above; longer than a block.
inline ModelSpec PixelImages() {
  ModelSpec spec = RaggedImages();
  spec.input.whole_pixels = spec.input.pixel_above = true;
  spec.input.vocabulary = kBeginPixel + 1;
  spec.image()->channels = 3, spec.image()->width = 11, spec.image()->height = 20;
  spec.input.max_length = 220;
  return spec;
}

// PixelImages() with a stem.
inline ModelSpec StemOfPixels() {
  ModelSpec spec = PixelImages();
  spec.input.stem = {.channels = 6, .rows = 3, .columns = 5, .second_rows = 2, .second_columns = 3};
  return spec;
}

// Has more heads and hidden units than groups, but no position embedding and no final norm.
// Sequences are longer than a block.
inline ModelSpec LongCopy() {
  ModelSpec spec;
  spec.task = "copy", spec.part = std::monostate(), spec.head.kind = HeadKind::kCategorical,
  spec.input.vocabulary = spec.head.classes = 7;
  spec.stack.repeat = 1, spec.stack.mixer().heads = 10, spec.stack.mixer().query_dim = 2,
  spec.stack.mixer().value_dim = 3, spec.stack.d_model = 17;
  spec.stack.d_ff = 149, spec.input.value_embedding = 17, spec.input.max_length = 250;
  spec.stack.activation = Activation::kRelu, spec.stack.final_norm = false;
  return spec;
}

// Has several groups of heads and of hidden units, also in narrow models.
inline ModelSpec WideImages() {
  ModelSpec spec = RaggedImages();
  spec.stack.mixer().heads = 5, spec.stack.mixer().query_dim = 24,
  spec.stack.mixer().value_dim = 40, spec.stack.d_model = 80, spec.stack.d_ff = 330;
  spec.stack.activation = Activation::kGelu;
  return spec;
}

// Gray images with a stem whose window is wider than the images.
inline ModelSpec StemImages() {
  ModelSpec spec = WideImages();
  spec.input.stem = {.channels = 9};
  return spec;
}

// A stem for color images that are longer than a block, combined with every other image option.
inline ModelSpec StemInColor() {
  ModelSpec spec = GridImages();
  spec.input.stem = {.channels = 6, .rows = 3, .columns = 5, .second_rows = 2, .second_columns = 3};
  spec.input.norm = true, spec.stack.convolution = 4;
  return spec;
}

// Gray images by patches, with every other image option; longer than a block.
inline ModelSpec PatchImages() {
  ModelSpec spec = RaggedImages();
  spec.image()->width = 15, spec.image()->height = 20, spec.input.max_length = 299;
  spec.input.patch = {.tokens = 5, .width = 18, .d_ff = 21, .convolution = 4};
  spec.input.value_embedding = 10, spec.input.positions = Positions::kGrid;
  spec.input.pixel_above = spec.input.norm = spec.stack.norm_first = true;
  spec.input.stem = {.channels = 6, .rows = 3, .columns = 5, .second_rows = 2, .second_columns = 3};
  spec.stack.convolution = 4;
  spec.head = {.kind = HeadKind::kCategorical, .classes = 256};
  return spec;
}

// StemOfPixels() by patches as wide as an image; their network is wider than the layers.
inline ModelSpec PatchesOfPixels() {
  ModelSpec spec = StemOfPixels();
  spec.input.patch = {.tokens = 11, .width = 30, .d_ff = 70, .convolution = 11};
  return spec;
}

// Added positions; embedding and head share one matrix.
inline ModelSpec TiedText() {
  ModelSpec spec = RaggedImages();
  spec.task = "text", spec.head.kind = HeadKind::kCategorical,
  spec.input.positions = Positions::kAdded, spec.head.tied = true;
  spec.part = TextSpec{.unit = TextUnit::kCharacter, .characters = "abcdefghijklmnopqrstuvwxyz"};
  spec.input.vocabulary = spec.head.classes = 29, spec.input.value_embedding = spec.stack.d_model,
  spec.input.max_length = 60;
  return spec;
}

// A language model in today's style: RMS norms with norm_first, gated feed-forward blocks, few
// biases, no position embedding.
inline ModelSpec ModernText() {
  ModelSpec spec = TiedText();
  spec.stack.norm = NormKind::kRms, spec.stack.norm_first = true;
  spec.stack.feed_forward = FeedForwardKind::kGated;
  spec.input.positions = Positions::kSequence;
  spec.head.tied = spec.head.bias = false;
  return spec;
}

// Like ModernText(), but with gated-delta-net and softmax attention over a window in turn.
inline ModelSpec HybridText() {
  ModelSpec spec = ModernText();
  MixerSpec gated = spec.stack.mixer(), full = gated;
  gated.kind = "gated-delta-net";
  full.kind = "full", full.window = 9, full.rotary = true, full.key_heads = 1;
  spec.stack.pattern = {gated, full};
  return spec;
}

// A model with random weights in each precision, and its reference. `wide` is the norm1 weight of
// one channel of each layer; it makes the channel larger than the others.
class TestModel {
 public:
  explicit TestModel(const ModelSpec& spec, float wide = 25) : spec_(spec) {
    const std::string path =
        (std::filesystem::temp_directory_path() / StrCat("linnet_runtime_test.", getpid()))
            .string();
    std::map<std::string, Floats> tensors;
    WriteCheckpoint(path, spec, "{\"steps\": 3}", [&](const TensorInfo& info) {
      size_t size = 1;
      for (int64_t n : info.shape) size *= static_cast<size_t>(n);
      Philox rng(7, tensors.size());
      Floats& values = tensors[info.name];
      const float scale =
          info.shape.size() == 2 ? 2 / std::sqrt(static_cast<float>(info.shape[1])) : 0.3f;
      for (size_t i = 0; i < size; ++i) values.push_back(std::min(scale, 0.3f) * rng.Normal());
      if (info.name.ends_with("norm1.weight")) values[2] = wide;
      if (info.name == "first_value.probability") {
        for (float& value : values) value = value > 0 ? value : 0;
      }
      if (info.name == "input_norm.deviation") std::fill(values.begin(), values.end(), 0.5f);
      // The engine continues positions past a table only if it holds the sine formula's values.
      // Image models have a fixed length, so they keep a random table.
      if (info.name == "pos_embedding.pe" && !spec.image()) values = PositionTable(spec);
      return std::span<const float>(values);
    });
    {
      std::ifstream in(path, std::ios::binary);
      file.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::filesystem::remove(path);
    checkpoint_ = std::make_unique<Checkpoint>(
        Checkpoint::FromMemory(std::as_bytes(std::span(file)), "test model"));
    model = In(Precision::kF32);
  }

  std::shared_ptr<const Model> In(Precision precision) const {
    return Model::FromCheckpoint(*checkpoint_, {precision});
  }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

  // The reference's outputs at each position, for tokens or frames. `as`: the model in the
  // precision to follow.
  template <class Input>
  std::vector<Doubles> Outputs(const Input& input) const {
    return Outputs(input, *model);
  }
  template <class Input>
  std::vector<Doubles> Outputs(const Input& input, const Model& as, size_t prefix = 0) const {
    return ModelRef(*checkpoint_, as).Outputs(input, prefix);
  }

  Tokens RandomTokens(size_t count, uint64_t stream) const {
    Philox rng(3, stream);
    Tokens tokens(count);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec_.input.vocabulary)));
    }
    return tokens;
  }

  // Frames of `count` positions.
  Floats RandomFrames(size_t count, uint64_t stream) const {
    Philox rng(3, stream);
    Floats frames(count * static_cast<size_t>(spec_.speech()->Inputs()));
    for (float& value : frames) value = rng.Normal();
    return frames;
  }

  std::vector<char> file;              // the checkpoint's bytes
  std::shared_ptr<const Model> model;  // in f32

 private:
  ModelSpec spec_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

inline const TestModel& Images() {
  static const TestModel model(RaggedImages());
  return model;
}
inline const TestModel& Grid() {
  static const TestModel model(GridImages());
  return model;
}
inline const TestModel& Pixels() {
  static const TestModel model(PixelImages());
  return model;
}
inline const TestModel& Wide() {
  static const TestModel model(WideImages());
  return model;
}
inline const TestModel& Stemmed() {
  static const TestModel model(StemImages());
  return model;
}
inline const TestModel& StemmedColor() {
  static const TestModel model(StemInColor());
  return model;
}
inline const TestModel& StemmedPixels() {
  static const TestModel model(StemOfPixels());
  return model;
}
inline const TestModel& Patched() {
  static const TestModel model(PatchImages());
  return model;
}
inline const TestModel& PatchedPixels() {
  static const TestModel model(PatchesOfPixels());
  return model;
}
inline const TestModel& Text() {
  static const TestModel model(TiedText());
  return model;
}
inline const TestModel& Modern() {
  static const TestModel model(ModernText());
  return model;
}
inline const TestModel& Hybrid() {
  static const TestModel model(HybridText());
  return model;
}
inline const TestModel& Copy() {
  static const TestModel model(LongCopy());
  return model;
}

// The spec with the attention of a reformer.
inline ModelSpec Hashing(ModelSpec spec) {
  spec.stack.mixer().kind = "reformer";
  spec.stack.mixer().lsh_rounds = 2, spec.stack.mixer().lsh_buckets = 6,
  spec.stack.mixer().lsh_chunk = 7;
  return spec;
}

// The message of the InputError that `body` throws.
template <class Body>
std::string ErrorOf(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// The largest absolute difference between outputs [positions][width] and their reference; infinity
// if one is NaN.
inline double Worst(std::span<const float> got, std::span<const Doubles> want) {
  const size_t width = want[0].size();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(got[i] - want[i / width][i % width]);
    worst = std::max(worst, std::isnan(off) ? INFINITY : off);
  }
  return worst;
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace linnet

#endif  // LINNET_RUNTIME_TEST_MODELS_H_
