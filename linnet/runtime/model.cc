#include "linnet/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "linnet/base/hash.h"
#include "linnet/error.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/model/stem.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/packer.h"

namespace linnet {
namespace {

size_t Size(int n) { return static_cast<size_t>(n); }

// Splits [0, count) into at most `most` ranges of nearly equal size, at multiples of `step`.
std::vector<PackedGroup> Groups(size_t count, size_t step, size_t most) {
  const size_t steps = (count + step - 1) / step, groups = std::min(steps, most);
  std::vector<PackedGroup> cut(groups);
  for (size_t g = 0; g < groups; ++g) {
    cut[g].begin = steps * g / groups * step;
    cut[g].end = std::min(count, steps * (g + 1) / groups * step);
  }
  return cut;
}

// Number of columns of a group of heads.
size_t Width(const std::vector<Projection>& projections, size_t heads) {
  size_t width = 0;
  for (const Projection& projection : projections) {
    width += (projection.shared ? 1 : heads) * projection.width;
  }
  return width;
}

// Packs weights in the order in which a step reads them, and stores their addresses in the model.
class StackPacker {
 public:
  StackPacker(Model::Packed& model, Packer& packer) : model_(model), packer_(packer) {}

  void Pack() {
    if (model_.spec.lstm()) return Lstm();
    if (const SpeechSpec* speech = model_.spec.speech()) {
      const size_t inputs = Size(speech->Inputs());
      model_.input_projection = packer_.Columns(model_.predictor_precision(), "input_projection",
                                                model_.value_embedding, inputs, 0, inputs, true);
    }
    for (size_t k = 0; k < model_.stem.colors.size(); ++k) Stem(k);
    if (model_.spec.input.norm) model_.embedding_norm = packer_.Norm("embedding_norm");
    if (model_.spec.patches()) Patch(model_.patch);
    if (model_.spec.encoder_decoder()) {
      Stack(model_.encoder, "encoder", /*decoder=*/false);
      Stack(model_.stack, "decoder", /*decoder=*/true);
    } else {
      Stack(model_.stack, "transformer", /*decoder=*/false);
    }
    const size_t in = model_.embedding_width;
    model_.predictor =
        packer_.Columns(model_.predictor_precision(), "predictor", model_.outputs, in, 0, in, true);
  }

 private:
  void Stem(size_t k) {
    const PackedStem& stem = model_.stem;
    PackedStem::Color& color = model_.stem.colors[k];
    const int number = static_cast<int>(k);
    color.features = packer_.Columns(Precision::kF32, StemFeaturesName(number), stem.channels,
                                     color.bytes, 0, color.bytes, true);
    color.output = packer_.Columns(model_.precision, StemOutputName(number), model_.embedding_width,
                                   stem.window, 0, stem.window, true);
  }

  void Patch(PackedPatch& patch) {
    const auto linear = [&](const char* name, size_t out, size_t in) {
      return packer_.Columns(model_.precision, StrCat("patch.", name), out, in, 0, in, true);
    };
    patch.in = linear("in", model_.d_model, patch.floats());
    patch.out = linear("out", patch.floats(), model_.d_model);
    if (patch.convolution > 0) {
      patch.convolution_weight = packer_.Tensor("patch.convolution.weight");
      patch.convolution_bias = packer_.Tensor("patch.convolution.bias");
    }
    if (model_.precision == Precision::kInt8) patch.factor = packer_.Factors("patch.linear1");
    patch.norm1 = packer_.Norm("patch.norm1");
    patch.linear1 =
        packer_.Stacked(model_.precision, {{"patch.linear1", 0, patch.d_ff}}, patch.width);
    patch.linear2 = linear("linear2", patch.width, patch.d_ff);
    patch.norm2 = packer_.Norm("patch.norm2");
  }

  void Lstm() {
    const size_t d = model_.d_model;
    model_.lstm.clear();
    for (int l = 0; l < model_.spec.stack.layers(); ++l) {
      for (const char* direction : {"", "_reverse"}) {
        const size_t in = l == 0 ? Size(model_.spec.speech()->Inputs()) : 2 * d;
        model_.lstm.push_back(packer_.Lstm(model_.precision, StrCat(l, direction), in, d));
      }
    }
    model_.predictor = packer_.Columns(model_.predictor_precision(), "predictor", model_.outputs,
                                       2 * d, 0, 2 * d, true);
  }

  void Stack(PackedStack& stack, const std::string& name, bool decoder) {
    size_t part = 0;
    for (int l = 0; l < model_.spec.stack.layers(); ++l) {
      const std::string layer = StrCat(name, ".layers.", l, ".");
      if (model_.spec.stack.convolution > 0) {
        PackedPart& convolution = stack.parts[part++];
        convolution.convolution_weight = packer_.Tensor(layer + "convolution.weight");
        convolution.convolution_bias = packer_.Tensor(layer + "convolution.bias");
        convolution.norm = packer_.Norm(layer + "convolution_norm");
      }
      Mixer(stack.parts[part++], layer + (decoder ? "self_attention" : "attention"),
            layer + "norm1");
      if (decoder) Mixer(stack.parts[part++], layer + "cross_attention", layer + "norm2");
      if (model_.spec.stack.feed_forward == FeedForwardKind::kNone) continue;
      FeedForward(stack.parts[part++], layer, layer + (decoder ? "norm3" : "norm2"));
    }
    if (model_.spec.stack.final_norm) stack.final_norm = packer_.Norm(name + ".norm");
  }

  void Mixer(PackedPart& part, const std::string& name, const std::string& norm) {
    const size_t d = model_.d_model, m = part.values;
    const RuntimeMixer& mixer = *part.mixer;
    const bool cross = part.kind == PartKind::kCross;
    // Packs the rows of a group's projections, head by head, then the rows that all heads share.
    const auto stacked = [&](const PackedGroup& group, const std::vector<Projection>& projections) {
      std::vector<Packer::Rows> heads;
      for (size_t h = group.begin; h < group.end; ++h) {
        for (const Projection& p : projections) {
          const size_t part = p.width / p.blocks;
          for (size_t block = 0; !p.shared && block < p.blocks; ++block) {
            const size_t first = (block * (mixer.heads() / p.readers) + h / p.readers) * part;
            heads.push_back({StrCat(name, ".", p.tensor), first, first + part});
          }
        }
      }
      for (const Projection& p : projections) {
        if (p.shared) heads.push_back({StrCat(name, ".", p.tensor), 0, p.width});
      }
      return packer_.Stacked(model_.precision, heads, d);
    };
    std::map<std::string, const float*> shifts;
    for (const MixerInput& input : mixer.inputs()) {
      if (!input.shift.empty()) {
        shifts[input.shift] = packer_.Tensor(StrCat(name, ".", input.shift));
      }
    }
    for (PackedGroup& group : part.groups) {
      group.in.clear();
      const auto add = [&](const std::vector<Projection>& projections, const float* shift) {
        group.in.push_back({.width = Width(projections, group.end - group.begin),
                            .matrix = stacked(group, projections),
                            .shift = shift});
      };
      if (cross) add(mixer.projections(/*memory=*/false), nullptr);
      for (const MixerInput& input : mixer.inputs()) {
        if (cross || input.carried) continue;
        std::vector<Projection> projections;
        for (const size_t i : input.projections) projections.push_back(mixer.projections()[i]);
        add(projections, input.shift.empty() ? nullptr : shifts.at(input.shift));
      }
      if (cross) group.memory = stacked(group, mixer.projections(/*memory=*/true));
      group.out =
          packer_.Columns(model_.precision, StrCat(name, ".", mixer.out_projection()), d,
                          mixer.heads() * m, group.begin * m, group.end * m, group.begin == 0);
    }
    part.norm = packer_.Norm(norm);
  }

  void FeedForward(PackedPart& part, const std::string& layer, const std::string& norm) {
    if (model_.precision == Precision::kInt8) part.factor = packer_.Factors(layer + "linear1");
    const float* shift = model_.shifted() ? packer_.Tensor(layer + "shift") : nullptr;
    for (PackedGroup& group : part.groups) {
      std::vector<Packer::Rows> in = {{layer + "linear1", group.begin, group.end}};
      if (model_.gated()) in.insert(in.begin(), {layer + "gate", group.begin, group.end});
      group.in = {{.width = group.in_width,
                   .matrix = packer_.Stacked(model_.precision, in, model_.d_model),
                   .shift = shift}};
      group.out = packer_.Columns(model_.precision, layer + "linear2", model_.d_model, model_.d_ff,
                                  group.begin, group.end, group.begin == 0);
    }
    part.norm = packer_.Norm(norm);
  }

  Model::Packed& model_;
  Packer& packer_;
};

// Returns a tensor of a mixer by its full name; an empty one if only sizes are needed.
using TensorsOf = FunctionRef<std::span<const float>(const std::string&)>;

// The parts of a stack, without weights. `precision` is the precision of its products.
std::vector<PackedPart> Parts(const ModelSpec& spec, Precision precision, const std::string& name,
                              bool causal, bool decoder, TensorsOf tensors) {
  const bool narrow = precision != Precision::kF32;
  const size_t step = narrow ? kernels::kNarrowInputs : 1;
  const size_t most = narrow ? kMaxNarrowGroups : kMaxGroups;
  const bool encoder = spec.encoder_decoder() && !decoder;
  const size_t shift_floats = RoundUp(Size(spec.stack.d_model), kCacheLine / sizeof(float));
  std::vector<PackedPart> parts;
  const auto add_mixer = [&](const MixerSpec& mixer, const std::string& prefix, bool cross) {
    const auto tensor = [&](const std::string& end) { return tensors(prefix + "." + end); };
    PackedPart& part = parts.emplace_back();
    part.kind = cross ? PartKind::kCross : PartKind::kMixer;
    part.mixer = MakeRuntimeMixer({.spec = mixer,
                                   .causal = causal && !cross,
                                   .cross = cross,
                                   .memory = cross ? Size(spec.input.max_length) : 0,
                                   .precision = precision,
                                   .tensor = tensor});
    part.values = part.mixer->value_dim();
    for (const MixerInput& input : part.mixer->inputs()) {
      if (!input.shift.empty()) part.shift_floats = shift_floats;
    }
    // Heads that are normalized together stay in one group, unless they are all heads.
    const size_t set = part.mixer->norm_heads();
    part.groups = Groups(
        part.mixer->heads(),
        std::lcm((step + part.values - 1) / part.values, set < part.mixer->heads() ? set : 1),
        most);
    part.one_norm = set > 1 && set == part.mixer->heads() && part.groups.size() > 1;
    for (PackedGroup& group : part.groups) {
      const size_t heads = group.end - group.begin;
      group.in_width =
          Width(cross ? part.mixer->projections(false) : part.mixer->projections(), heads);
      if (cross) group.memory_width = Width(part.mixer->projections(true), heads);
    }
  };
  for (int l = 0; l < spec.stack.layers(); ++l) {
    const std::string layer = StrCat(name, ".layers.", l, ".");
    const MixerSpec& mixer = spec.stack.mixer(Size(l));
    if (spec.stack.convolution > 0) parts.emplace_back().kind = PartKind::kConvolution;
    add_mixer(encoder ? CrossMixer(mixer) : mixer,
              layer + (decoder ? "self_attention" : "attention"),
              /*cross=*/false);
    if (decoder) add_mixer(CrossMixer(mixer), layer + "cross_attention", /*cross=*/true);
    if (spec.stack.feed_forward == FeedForwardKind::kNone) continue;
    PackedPart& part = parts.emplace_back();
    part.values = 1;
    if (spec.stack.feed_forward == FeedForwardKind::kShifted) part.shift_floats = shift_floats;
    part.groups = Groups(Size(spec.stack.d_ff), std::max(step, kernels::kPanel), most);
    const size_t products = spec.stack.feed_forward == FeedForwardKind::kGated ? 2 : 1;
    for (PackedGroup& group : part.groups) group.in_width = products * (group.end - group.begin);
  }
  return parts;
}

// The stem of a spec, without weights.
PackedStem StemOf(const ModelSpec& spec) {
  PackedStem stem;
  if (spec.input.stem.channels == 0) return stem;
  stem.channels = Size(spec.input.stem.channels);
  stem.window = stem.channels * Size(StemFeatures(spec).Inputs(0));
  for (int k = 0; k < spec.PixelTokens(); ++k) {
    stem.colors.push_back({.bytes = Size(StemInputs(spec, k))});
  }
  return stem;
}

// The patches of a spec, without weights.
PackedPatch PatchOf(const ModelSpec& spec) {
  const PatchSpec& patch = spec.input.patch;
  return {.tokens = Size(patch.tokens),
          .width = Size(patch.width),
          .d_ff = Size(patch.d_ff),
          .convolution = Size(patch.convolution)};
}

// The state layout of the parts of the stack before the predictor, then of the stem and of patches.
// Sets `state` of each of them to its index in the layout. The stem's state are the features of the
// last R = StemFeatures().Reach() bytes, those of byte n at index n mod R.
std::shared_ptr<const StateLayout> Layout(const ModelSpec& spec, Precision precision, bool steps,
                                          std::vector<PackedPart>& parts, PackedStem& stem,
                                          PackedPatch& patch) {
  auto layout = std::make_shared<StateLayout>();
  layout->keeps_tokens = !steps && !spec.ReadsFrames();
  layout->patches = PatchCountOf(spec);
  layout->first_capacity = RoundUp(layout->Capacity(Size(spec.input.max_length)), kCapacityStep);
  layout->reach = Size(spec.Reach());
  if (spec.encoder_decoder()) layout->source = Size(spec.input.max_length);
  for (PackedPart& part : parts) {
    MixerStateSize size;
    if (part.kind == PartKind::kConvolution) {
      const size_t rows = Size(spec.stack.convolution) - 1;
      size.fixed = RoundUp(rows * Size(spec.stack.d_model), kCacheLine / sizeof(float));
    } else if (part.mixer) {
      size = part.mixer->state_size();
      if (part.mixer->folds()) {
        layout->fold_keys = kernels::LinearStepShape::RecentKeys(precision != Precision::kF32);
      }
    }
    size.fixed += part.shift_floats;
    if (!steps || size.Floats(1) == 0) continue;
    part.state = layout->parts.size();
    layout->parts.push_back(size);
  }
  if (steps && !stem.colors.empty()) {
    const size_t floats = Size(StemFeatures(spec).Reach()) * stem.channels;
    if (floats > 0) {
      stem.state = layout->parts.size();
      layout->parts.push_back({.fixed = RoundUp(floats, kCacheLine / sizeof(float))});
    }
  }
  if (steps && spec.patches()) {
    patch.state = layout->parts.size();
    layout->parts.push_back({.fixed = RoundUp(2 * patch.floats(), kCacheLine / sizeof(float))});
  }
  return layout;
}

// Whether the model runs as an RNN (Model::Packed::steps()).
bool Steps(const ModelSpec& spec) {
  if (spec.lstm() || !spec.Causal()) return false;
  return std::all_of(spec.stack.pattern.begin(), spec.stack.pattern.end(),
                     [](const MixerSpec& mixer) { return FindMixer(mixer.kind).recurrent; });
}

// The tensor prefix of the stack before the predictor.
const char* StackName(const ModelSpec& spec) {
  return spec.encoder_decoder() ? "decoder" : "transformer";
}

}  // namespace

std::shared_ptr<const StateLayout> MakeStateLayout(const ModelSpec& spec, Precision precision) {
  const auto no_tensor = [](const std::string&) { return std::span<const float>(); };
  std::vector<PackedPart> parts;
  if (!spec.lstm()) {
    parts =
        Parts(spec, precision, StackName(spec), spec.Causal(), spec.encoder_decoder(), no_tensor);
  }
  PackedStem stem = StemOf(spec);
  PackedPatch patch = PatchOf(spec);
  return Layout(spec, precision, Steps(spec), parts, stem, patch);
}

Model::Packed::Packed(const Checkpoint& checkpoint, Precision precision)
    : spec(checkpoint.spec()),
      precision(precision),
      path(checkpoint.path()),
      training(checkpoint.training()),
      d_model(Size(spec.stack.d_model)),
      d_ff(Size(spec.stack.d_ff)),
      outputs(Size(spec.OutputSize())),
      value_embedding(Size(spec.input.value_embedding)),
      embedding_width(Size(spec.EmbeddingWidth())),
      position_dims(spec.lstm() ? 0 : Size(spec.PositionDims())),
      activation(spec.stack.activation == Activation::kRelu ? kernels::Activation::kRelu
                                                            : kernels::Activation::kGelu),
      steps_(Steps(spec)) {
  if (spec.logistics() && Size(spec.head.mixtures) > kernels::kMaxMixtures) {
    throw InputError(path, ": ", spec.head.mixtures, " mixtures are more than the ",
                     kernels::kMaxMixtures, " that this runtime supports");
  }
  for (const TensorInfo& info : TensorTable(spec)) {
    CheckFinite(checkpoint.Tensor(info.name), path, info.name);
  }
  Cut(checkpoint);
  Packer measure(checkpoint, nullptr);
  StackPacker(*this, measure).Pack();
  weights = AlignedBuffer<std::byte>(measure.used());
  Packer packer(checkpoint, weights.data());
  StackPacker(*this, packer).Pack();
  ReadTables(checkpoint);

  const std::string about = ToJson(spec) + PrecisionName(precision);
  fingerprint = Hash(std::as_bytes(std::span(about)));
  for (const TensorInfo& info : TensorTable(spec)) {
    fingerprint = Hash(std::as_bytes(checkpoint.Tensor(info.name)), fingerprint);
  }
}

// Makes the stacks' parts and their state layout, and finds the widest product.
void Model::Packed::Cut(const Checkpoint& checkpoint) {
  const auto tensors = [&](const std::string& name) { return checkpoint.Tensor(name); };
  if (!spec.lstm()) {
    const bool pair = spec.encoder_decoder();
    stack.causal = spec.Causal();
    stack.parts = Parts(spec, precision, StackName(spec), stack.causal, pair, tensors);
    encoder.causal = false;
    if (pair) encoder.parts = Parts(spec, precision, "encoder", false, false, tensors);
  }
  stem = StemOf(spec);
  patch = PatchOf(spec);
  layout = Layout(spec, precision, steps_, stack.parts, stem, patch);
  size_t inputs = spec.lstm() ? 2 * d_model : d_model;
  for (const PackedStack* one : {&stack, &encoder}) {
    for (const PackedPart& part : one->parts) {
      shifts = shifts || part.shift_floats > 0;
      if (part.mixer) {
        for (const Projection& p : part.mixer->projections()) {
          if (p.carries) carried = std::max(carried, part.mixer->heads() * p.width);
        }
      }
      for (const PackedGroup& group : part.groups) {
        widest = std::max({widest, group.in_width, group.memory_width});
        inputs = std::max(inputs, (group.end - group.begin) * part.values);
      }
    }
  }
  inputs = std::max({inputs, stem.window, patch.floats(), patch.d_ff});
  if (spec.ReadsFrames()) inputs = std::max(inputs, Size(spec.speech()->Inputs()));
  if (precision == Precision::kInt8 && inputs > kernels::kMostInt8Inputs) {
    throw InputError(path, ": its matrices are too wide for int8 (", inputs, " inputs, at most ",
                     kernels::kMostInt8Inputs, "); choose the precision bf16");
  }
}

void Model::Packed::ReadTables(const Checkpoint& checkpoint) {
  if (const SpeechSpec* speech = spec.speech()) {
    if (speech->normalization == BandNorm::kCorpus) {
      input_mean = AlignedCopy(checkpoint.Tensor("input_norm.mean"));
      input_deviation = AlignedCopy(checkpoint.Tensor("input_norm.deviation"));
    }
    for (const float deviation : input_deviation) {
      if (!(deviation >= 1e-6f)) {
        throw InputError(path, ": input_norm.deviation holds ", deviation,
                         "; it must be at least 1e-6");
      }
    }
  } else {
    values = AlignedCopy(
        checkpoint.Tensor(spec.head.tied ? "predictor.weight" : "value_embedding.weight"));
    const float scale = spec.head.tied ? std::sqrt(static_cast<float>(spec.stack.d_model)) : 1.0f;
    for (float& value : values) value *= scale;
  }
  if (position_dims > 0) {
    positions = AlignedCopy(checkpoint.Tensor("pos_embedding.pe"));
    // The table counts as that of the sine formula if its last row and its rows 2^n - 1 agree.
    std::vector<float> row(position_dims);
    for (int64_t t = 0; endless_positions && t < spec.input.max_length; t = 2 * t + 1) {
      const int64_t at = 2 * t + 1 < spec.input.max_length ? t : spec.input.max_length - 1;
      PositionRow(spec, at, row.data());
      const float* given = positions.data() + static_cast<size_t>(at) * position_dims;
      endless_positions = std::equal(row.begin(), row.end(), given,
                                     [](float a, float b) { return std::abs(a - b) <= 1e-4f; });
    }
  }
  if (spec.image()) endless_positions = false;  // images have a fixed length
  if (spec.input.pixel_above) above = AlignedCopy(checkpoint.Tensor("above_embedding.weight"));
  if (!spec.image() || spec.input.whole_pixels) return;
  first_value = AlignedCopy(checkpoint.Tensor("first_value.probability"));
  double sum = 0;
  bool valid = true;
  for (float p : first_value) {
    valid = valid && p >= 0 && std::isfinite(p);
    sum += p;
  }
  if (!valid || !(sum > 0)) {
    throw InputError(path, ": first_value.probability is not a distribution; train the model ",
                     "again or mend the file");
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
bool Model::steps() const { return packed_->steps(); }
std::optional<size_t> Model::most_positions() const {
  if (packed_->endless_positions) return {};
  return Size(packed_->spec.input.max_length);
}
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
