#include "linnet/model/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <numeric>

#include "linnet/io/test_util.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

// Images of 4 x 3; all sizes differ where they can.
ModelSpec Tiny() {
  ModelSpec spec;
  spec.stack.repeat = 2, spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 2,
  spec.stack.mixer().value_dim = 5, spec.stack.d_model = 16;
  spec.stack.d_ff = 7, spec.input.value_embedding = 8, spec.image()->width = 4,
  spec.image()->height = 3, spec.input.max_length = 11;
  spec.head.mixtures = 2;
  return spec;
}
ReferenceChoices TinyChoices() { return {.heads = 3, .width = 4, .height = 3}; }

// The tensors of a file, with distinct values.
class Tensors {
 public:
  explicit Tensors(const ModelSpec& spec) {
    for (const TensorInfo& info : TensorTable(spec)) {
      if (info.name == "first_value.probability") continue;
      size_t size = 1;
      for (int64_t n : info.shape) size *= static_cast<size_t>(n);
      std::vector<float> values(size);
      for (size_t i = 0; i < size; ++i) values[i] = static_cast<float>(list.size() * 1000 + i);
      if (info.name == "pos_embedding.pe") values = PositionTable(spec);
      Add(info.name, DType::kF32, info.shape, values.data());
    }
  }
  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
           const void* data) {
    size_t bytes = DTypeSize(dtype);
    for (int64_t n : shape) bytes *= static_cast<size_t>(n);
    const auto* begin = static_cast<const std::byte*>(data);
    data_.emplace_back(begin, begin + bytes);
    list.push_back({name, dtype, shape, data_.back(), "a.pth"});
  }
  void Remove(const std::string& name) {
    std::erase_if(list, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  Tensor& Get(const std::string& name) {
    for (Tensor& tensor : list) {
      if (tensor.name == name) return tensor;
    }
    throw InputError("no ", name);
  }
  std::string Error(const ReferenceChoices& choices) const {
    return ErrorOf([&] { FromReference(list, "a.pth", choices); });
  }

  std::vector<Tensor> list;

 private:
  std::list<std::vector<std::byte>> data_;
};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReferenceName, StripsPrefixesOfWrappers) {
  for (const char* name :
       {"transformer.layers.0.norm1.weight", "module.transformer.layers.0.norm1.weight",
        "model.module.layers.0.norm1.weight", "_orig_mod.encoder.layers.0.norm1.weight",
        "layers.0.norm1.weight", "transformer_encoder.layers.0.norm1.weight"}) {
    EXPECT_EQ(ReferenceName(name), "transformer.layers.0.norm1.weight") << name;
  }
  EXPECT_EQ(ReferenceName("norm.bias"), "transformer.norm.bias");
  EXPECT_EQ(ReferenceName("module.predictor.weight"), "predictor.weight");
  EXPECT_EQ(ReferenceName(""), "");
}

TEST(Reference, SpecsComeFromShapes) {
  ModelSpec spec = Tiny();
  EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", TinyChoices()).spec(), spec);
  spec.stack.final_norm = false;
  spec.stack.activation = Activation::kGelu;
  ReferenceChoices choices = TinyChoices();
  choices.activation = Activation::kGelu;
  EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", choices).spec(), spec);
  // Options that only linnet has.
  spec = Tiny();
  spec.input.positions = Positions::kGrid, spec.input.pixel_above = true,
  spec.stack.norm_first = true;
  choices = TinyChoices();
  choices.norm_first = true;
  EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", choices).spec(), spec);

  spec = Tiny();
  spec.task = "copy", spec.part = std::monostate(), spec.head.kind = HeadKind::kCategorical,
  spec.input.vocabulary = spec.head.classes = 11;
  spec.input.max_length = 40;
  const ModelSpec copy = FromReference(Tensors(spec).list, "a.pth", {.heads = 3}).spec();
  EXPECT_EQ(copy.task, "copy");
  EXPECT_EQ(copy.input.max_length, 40);

  spec = ModelSpec{};
  spec.stack.repeat = 1, spec.input.max_length = 3071;
  const ModelSpec cifar = FromReference(Tensors(spec).list, "a.pth", {.heads = 8}).spec();
  EXPECT_EQ(cifar.image()->width * cifar.image()->height * cifar.image()->channels, 3072);
  EXPECT_EQ(cifar.image()->channels, 3);
}

TEST(Reference, KeepsTensorsUnchanged) {
  Tensors tensors(Tiny());
  ReferenceModel model = FromReference(tensors.list, "a.pth", TinyChoices());
  for (const Tensor& tensor : tensors.list) {
    EXPECT_EQ(model.Tensor(tensor.name).data(), tensor.f32().data()) << tensor.name;
  }
  EXPECT_FALSE(model.has_first_value());
  ASSERT_EQ(model.Tensor("first_value.probability").size(), 256u);
  EXPECT_EQ(model.Tensor("first_value.probability")[7], 1.0f / 256);
  std::vector<float> measured(256);
  measured[3] = 1;
  model.SetFirstValue(measured);
  const ReferenceModel moved = std::move(model);
  EXPECT_EQ(moved.Tensor("first_value.probability")[3], 1.0f);

  tensors.Add("first_value.probability", DType::kF32, {256}, measured.data());
  EXPECT_TRUE(FromKnownSpec(tensors.list, "a.pth", Tiny()).has_first_value());
}

TEST(Reference, ConvertsOtherTypes) {
  Tensors tensors(Tiny());
  const uint16_t half[6] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x83ff, 0x8000};
  const float as_half[6] = {1, -2, 5.9604645e-8f, 65504, -6.097555e-5f, -0.0f};
  const uint16_t bfloat[6] = {0x3f80, 0xc000, 0x0001, 0x7f7f, 0x8001, 0x4049};
  const double doubles[6] = {1, 1e-60, 0.1, -3, 1e30, 2};
  const auto replace = [&](DType dtype, const void* data) {
    Tensor& bias = tensors.Get("predictor.bias");
    bias.dtype = dtype;
    bias.data = {static_cast<const std::byte*>(data), 6 * DTypeSize(dtype)};
    const ReferenceModel model = FromReference(tensors.list, "a.pth", TinyChoices());
    const auto got = model.Tensor("predictor.bias");
    return std::vector<float>(got.begin(), got.end());
  };
  EXPECT_EQ(replace(DType::kF16, half), std::vector<float>(as_half, as_half + 6));
  EXPECT_EQ(replace(DType::kBF16, bfloat)[5], 3.140625f);
  EXPECT_EQ(replace(DType::kF64, doubles)[2], 0.1f);
  const int16_t integers[6] = {};
  EXPECT_TRUE(Contains(ErrorOf([&] { replace(DType::kI16, integers); }),
                       "is I16, not a floating-point type"));
}

TEST(Reference, RefusesNonFiniteTensors) {
  Tensors tensors(Tiny());
  Tensor& bias = tensors.Get("predictor.bias");
  const auto replace = [&](DType dtype, const void* data) {
    bias.dtype = dtype;
    bias.data = {static_cast<const std::byte*>(data), 6 * DTypeSize(dtype)};
    return tensors.Error(TinyChoices());
  };
  const float nan[6] = {1, 2, 3, 4, 5, NAN};
  const uint16_t infinite[6] = {0, 0x7c00};
  const double large[6] = {0, 1e300};
  for (const std::string& error :
       {replace(DType::kF32, nan), replace(DType::kF16, infinite), replace(DType::kF64, large)}) {
    EXPECT_TRUE(Contains(error, "input: a.pth: tensor 'predictor.bias' holds NaN, infinity"));
  }
}

// Text with added positions, as linnet train text makes it.
ModelSpec TinyText(const TextSpec& text) {
  ModelSpec spec = Tiny();
  spec.task = "text", spec.part = text;
  spec.head.mixtures = HeadSpec().mixtures;
  spec.head.kind = HeadKind::kCategorical;
  spec.input.vocabulary = spec.head.classes = static_cast<int>(Vocabulary(text).size());
  spec.input.value_embedding = spec.stack.d_model, spec.input.positions = Positions::kAdded;
  spec.input.max_length = 20;
  return spec;
}
const TextSpec kLetters = {.unit = TextUnit::kCharacter, .characters = "etaoin shrdlu"};

TEST(Reference, TextTaskFollowsFromTheVocabulary) {
  const ReferenceChoices choices = {.heads = 3};
  const ReferenceChoices letters = {.heads = 3, .characters = kLetters.characters};
  for (const bool tied : {false, true}) {
    ModelSpec bytes = TinyText({}), characters = TinyText(kLetters);
    bytes.head.tied = characters.head.tied = tied;
    const ReferenceModel model = FromReference(Tensors(bytes).list, "a.pth", choices);
    EXPECT_EQ(model.spec(), bytes);
    EXPECT_FALSE(model.adds_special_tokens());
    EXPECT_EQ(FromReference(Tensors(characters).list, "a.pth", letters).spec(), characters);
  }
  // Positions have dimensions of their own beside the embedding's, as in the image model.
  ModelSpec beside = TinyText(kLetters);
  beside.input.value_embedding = 8, beside.input.positions = Positions::kSequence;
  EXPECT_EQ(FromReference(Tensors(beside).list, "a.pth", letters).spec(), beside);
  Tensors other(beside);
  EXPECT_EQ(FromReference(other.list, "a.pth", choices).spec().task, "copy");

  ModelSpec none = TinyText({});
  none.input.positions = Positions::kSequence, none.input.max_length = 77;
  for (const bool tied : {false, true}) {
    none.head.tied = tied;
    EXPECT_EQ(FromReference(Tensors(none).list, "a.pth", {.heads = 3, .context = 77}).spec(), none);
  }
}

TEST(Reference, KeepsTheTaskGiven) {
  ModelSpec bytes = TinyText({});
  bytes.input.value_embedding = 8, bytes.input.positions = Positions::kSequence;
  const Tensors tensors(bytes);
  ModelSpec copy = bytes;
  copy.task = "copy", copy.part = std::monostate();
  EXPECT_EQ(FromReference(tensors.list, "a.pth", {.heads = 3, .task = "copy"}).spec(), copy);
  bytes.task = "couplet";
  EXPECT_EQ(FromReference(tensors.list, "a.pth", {.heads = 3, .task = "couplet"}).spec(), bytes);
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .task = "images"}), "not of --task images"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .task = "speech"}), "no task 'speech'"));
  ReferenceChoices text = TinyChoices();
  text.task = "text";
  EXPECT_TRUE(Contains(Tensors(Tiny()).Error(text), "those of images, not of --task text"));
  text.task = "", text.characters = "abc";
  EXPECT_TRUE(Contains(Tensors(Tiny()).Error(text), "--characters is for text"));
}

TEST(Reference, CharactersMustMatchTheVocabulary) {
  const Tensors tensors(TinyText(kLetters));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3}),
                       "added positions are for text; a vocabulary of "
                       "16 is not one of bytes, so give --characters"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .task = "text"}), "259 with linnet's special"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .characters = "abc"}),
                       "a vocabulary of 16 tokens, but --characters has 3, or 6"));
  ModelSpec tied = TinyText(kLetters);
  tied.head.tied = true;
  EXPECT_TRUE(Contains(Tensors(tied).Error({.heads = 3}), "tied embeddings are for text"));
}

// If a vocabulary lacks linnet's three special tokens, their rows are inserted before its rows.
TEST(Reference, AddsSpecialTokens) {
  for (const bool tied : {false, true}) {
    for (const TextSpec& text : {TextSpec(), kLetters}) {
      ModelSpec spec = TinyText(text);
      spec.head.tied = tied;
      Tensors tensors(spec);
      const int64_t own = spec.input.vocabulary - Vocabulary::kFirst;
      std::vector<std::string> names = {"predictor.weight", "predictor.bias"};
      if (!tied) names.emplace_back("value_embedding.weight");
      for (const std::string& name : names) {
        Tensor& tensor = tensors.Get(name);
        const size_t row = tensor.data.size() / static_cast<size_t>(spec.input.vocabulary);
        tensor.shape[0] = own;
        tensor.data = tensor.data.first(row * static_cast<size_t>(own));
      }
      const ReferenceModel model =
          FromReference(tensors.list, "a.pth", {.heads = 3, .characters = text.characters});
      EXPECT_EQ(model.spec(), spec);
      EXPECT_TRUE(model.adds_special_tokens());
      for (const std::string& name : names) {
        const std::span<const float> got = model.Tensor(name);
        const std::span<const float> file = tensors.Get(name).f32();
        const size_t added = got.size() / static_cast<size_t>(spec.input.vocabulary) * 3;
        ASSERT_EQ(got.size(), added + file.size()) << name;
        for (const float value : got.first(added)) {
          EXPECT_EQ(value, name == "predictor.bias" ? -1e9f : 0.0f) << name;
        }
        EXPECT_TRUE(
            std::equal(file.begin(), file.end(), got.begin() + static_cast<ptrdiff_t>(added)));
      }
    }
  }
}

TEST(Reference, AnEncoderAndADecoder) {
  ModelSpec spec = TinyText(kLetters);
  spec.task = "couplet", spec.network = NetworkKind::kEncoderDecoder;
  for (const char* kind : {"causal-linear", "full"}) {
    spec.stack.mixer().kind = kind;
    Tensors tensors(spec);
    tensors.Get("encoder.norm.weight").name = "module.encoder.norm.weight";
    ReferenceChoices choices = {.heads = 3, .characters = kLetters.characters};
    choices.attention.kind = kind;
    EXPECT_EQ(FromReference(tensors.list, "a.pth", choices).spec(), spec);
    EXPECT_EQ(FromKnownSpec(tensors.list, "a.pth", spec).spec(), spec);
    choices.characters = "";
    EXPECT_TRUE(Contains(tensors.Error(choices), "an encoder and a decoder are for text"));
  }
}

TEST(Reference, FeatureMaps) {
  ModelSpec spec = Tiny();
  MixerSpec& mixer = spec.stack.mixer();
  ReferenceChoices choices = TinyChoices();
  for (const char* map : {"relu", "polynomial2", "rff", "favor"}) {
    choices.attention.feature_map = mixer.feature_map = map;
    const bool random = FindFeatureMap(map).omega != nullptr;
    choices.attention.features = mixer.features = random ? 12 : 0;
    EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", choices).spec(), spec) << map;
  }
  choices.attention.features = 0;  // unknown: favor's omega may give 12 or 24 features
  EXPECT_TRUE(Contains(Tensors(spec).Error(choices), "omega has 12 columns: 24 features if"));
  choices.attention.features = 20;
  EXPECT_TRUE(Contains(Tensors(spec).Error(choices), "which do not fit 20 features of favor"));
  choices.attention.feature_map = mixer.feature_map = "rff";
  choices.attention.features = 0;
  EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", choices).spec(), spec);
  EXPECT_TRUE(Contains(Tensors(spec).Error(TinyChoices()), "name it with --feature-map"));
}

// For each column w, fast-transformers' Favor has two features, exp(+-y w - |y|^2 / 2).
TEST(Reference, FavorsColumnsHaveBothSigns) {
  ModelSpec spec = Tiny();
  spec.stack.mixer().feature_map = "favor", spec.stack.mixer().features = 6;
  const std::string name = "transformer.layers.1.attention.inner_attention.feature_map.omega";
  Tensors tensors(spec);
  const std::vector<float> omega = {0.5f, -1, 2, 0.25f, 1.5f, -0.75f};  // [2, 3]
  for (const char* layer : {"0", "1"}) {
    const std::string in_layer =
        StrCat("transformer.layers.", layer, ".attention.inner_attention.feature_map.omega");
    tensors.Remove(in_layer);
    tensors.Add(in_layer, DType::kF32, {2, 3}, omega.data());
  }
  ReferenceChoices choices = TinyChoices();
  choices.attention.feature_map = "favor", choices.attention.features = 6;
  const ReferenceModel model = FromReference(tensors.list, "a.pth", choices);
  EXPECT_EQ(model.spec(), spec);
  const std::span<const float> got = model.Tensor(name);
  EXPECT_EQ(
      std::vector<float>(got.begin(), got.end()),
      (std::vector<float>{0.5f, -1, 2, -0.5f, 1, -2, 0.25f, 1.5f, -0.75f, -0.25f, -1.5f, 0.75f}));

  const double q[2] = {0.3, -1.2}, keys[2][2] = {{0.8, 0.1}, {-0.4, 1.1}};
  const auto theirs = [&](const double* x) {
    const double scale = std::pow(2.0, -0.25);
    const double y[2] = {x[0] * scale, x[1] * scale};
    std::vector<double> phi;
    for (const double sign : {1.0, -1.0}) {
      for (size_t c = 0; c < 3; ++c) {
        const double u = y[0] * omega[c] + y[1] * omega[3 + c];
        phi.push_back(std::exp(sign * u - (y[0] * y[0] + y[1] * y[1]) / 2) / std::sqrt(6));
      }
    }
    return phi;
  };
  const auto ours = [&](const double* x, bool query) {
    const float single[2] = {static_cast<float>(x[0]), static_cast<float>(x[1])};
    std::vector<float> phi(6);
    FindFeatureMap("favor").single({.dim = 2, .columns = 6, .omega = got.data()}, single, query,
                                   phi.data());
    return phi;
  };
  // The ratio of a query's weights for two keys. Factors common to all features cancel in it.
  const auto ratio = [&](const auto& phi_q, const auto& phi_a, const auto& phi_b) {
    return std::inner_product(phi_q.begin(), phi_q.end(), phi_a.begin(), 0.0) /
           std::inner_product(phi_q.begin(), phi_q.end(), phi_b.begin(), 0.0);
  };
  EXPECT_NEAR(ratio(theirs(q), theirs(keys[0]), theirs(keys[1])),
              ratio(ours(q, true), ours(keys[0], false), ours(keys[1], false)), 1e-5);
}

TEST(Reference, RefusesPartsOfModels) {
  ModelSpec spec = TinyText({});
  spec.network = NetworkKind::kEncoderDecoder, spec.task = "couplet";
  // The error for the tensors with this prefix, after `stripped` is removed from their names.
  const auto only = [](Tensors tensors, const std::string& prefix, const std::string& stripped) {
    std::erase_if(tensors.list, [&](const Tensor& t) { return !t.name.starts_with(prefix); });
    for (Tensor& tensor : tensors.list) tensor.name.erase(0, stripped.size());
    return tensors.Error({.heads = 3});
  };
  const std::string whole =
      ", which cannot be imported: linnet imports whole models, with value_embedding and predictor";
  for (const char* stripped : {"", "decoder."}) {
    EXPECT_EQ(only(Tensors(spec), "decoder.", stripped),
              "input: a.pth: holds a decoder" + whole + ", and a decoder with its encoder");
  }
  for (const char* stripped : {"", "transformer."}) {
    EXPECT_EQ(only(Tensors(Tiny()), "transformer.", stripped),
              "input: a.pth: holds a stack of 2 layers alone" + whole);
  }
  Tensors stacks(spec);
  // Keeps "encoder." and "decoder." tensors.
  std::erase_if(stacks.list, [](const Tensor& t) { return t.name.find("coder.") != 2; });
  EXPECT_EQ(stacks.Error({.heads = 3}),
            "input: a.pth: holds the stacks of an encoder and a decoder alone" + whole);

  ModelSpec speech = Tiny();
  speech.task = "speech", speech.part = SpeechSpec{.phones = "a b"};
  speech.head.kind = HeadKind::kCategorical, speech.head.classes = 3;
  EXPECT_TRUE(
      Contains(Tensors(speech).Error({.heads = 3}), "a.pth: holds a model that reads frames"));
  speech.network = NetworkKind::kLstm;
  EXPECT_TRUE(Contains(Tensors(speech).Error({.heads = 3}), "a.pth: holds an LSTM, which cannot"));
}

// 256 outputs for 256 tokens are those of a text unless something speaks of images.
TEST(Reference, CategoricalHeadsOfImages) {
  ModelSpec spec = Tiny();
  spec.head = {.kind = HeadKind::kCategorical, .classes = 256};
  Tensors tensors(spec);
  EXPECT_EQ(FromReference(tensors.list, "a.pth", {.heads = 3}).spec().task, "text");
  EXPECT_EQ(FromReference(tensors.list, "a.pth", TinyChoices()).spec(), spec);
  for (const ReferenceChoices& choices : {ReferenceChoices{.heads = 3, .images = true},
                                          ReferenceChoices{.heads = 3, .task = "images"}}) {
    EXPECT_TRUE(Contains(tensors.Error(choices), "give their --width and --height"));
  }
  const std::vector<float> first(256, 1.0f / 256);
  tensors.Add("first_value.probability", DType::kF32, {256}, first.data());
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3}), "give their --width and --height"));
  EXPECT_EQ(FromReference(tensors.list, "a.pth", TinyChoices()).spec(), spec);

  spec.input.value_embedding = spec.stack.d_model;  // no position table
  const Tensors without(spec);
  EXPECT_EQ(FromReference(without.list, "a.pth", TinyChoices()).spec(), spec);
  EXPECT_TRUE(Contains(without.Error({.heads = 3, .task = "images"}), "no table of positions"));
}

TEST(Reference, ReformerHasTheOptionsOfFastTransformers) {
  Tensors tensors(Tiny());
  ReferenceChoices choices = TinyChoices();
  choices.attention.kind = "reformer";
  choices.attention.lsh_rounds = 2;
  const MixerSpec made = FromReference(tensors.list, "a.pth", choices).spec().stack.mixer();
  EXPECT_EQ(made.lsh_variant, LshVariant::kSimple);
  EXPECT_EQ(made.lsh_rounds, 2);
  EXPECT_EQ(made.lsh_buckets, 126);
  // The lsh options do not apply to another kind.
  choices.attention.kind = "full";
  EXPECT_FALSE(Contains(ToJson(FromReference(tensors.list, "a.pth", choices).spec()), "lsh"));
}

// The sizes ask for a position table of gigabytes, but the file's table has no data.
TEST(Reference, NoTableLargerThanTheFile) {
  Tensors tensors(Tiny());
  tensors.Get("pos_embedding.pe").shape = {1, 1 << 20, 0};
  tensors.Get("pos_embedding.pe").data = {};
  tensors.Get("predictor.weight").shape = {6, 8 + 1024};
  ReferenceChoices choices = TinyChoices();
  choices.width = 1 << 10, choices.height = 1 << 10;
  EXPECT_TRUE(Contains(tensors.Error(choices), "'pos_embedding.pe' is [1, 1048576, 0], but"));
}

TEST(Reference, CutsUnreachablePositions) {
  ModelSpec longer = Tiny();
  longer.input.max_length = 50, longer.image()->width = 51, longer.image()->height = 1;
  Tensors tensors(longer);
  const ReferenceModel model = FromReference(tensors.list, "a.pth", TinyChoices());
  EXPECT_EQ(model.spec(), Tiny());
  EXPECT_EQ(model.Tensor("pos_embedding.pe").size(), 11u * 8u);
  ReferenceChoices wide = TinyChoices();
  wide.width = 100;
  EXPECT_TRUE(Contains(tensors.Error(wide), "100 x 3 x 1 have 300"));
}

TEST(Reference, ErrorsNameEveryFault) {
  Tensors tensors(Tiny());
  EXPECT_EQ(
      tensors.Error({.width = 4, .height = 3}),
      "input: a.pth: the tensors do not determine the number of heads; give --heads, a divisor of "
      "6 and 15");
  EXPECT_TRUE(Contains(tensors.Error({.heads = 2}), "2 heads cannot share 6 query columns and 15"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3}), "give their --width and --height"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .width = 4}), "give both"));
  ReferenceChoices choices = TinyChoices();
  choices.attention.kind = "linear";
  EXPECT_TRUE(Contains(tensors.Error(choices), "needs causal attention"));

  tensors.Get("predictor.bias").name = "head.bias";
  tensors.Get("transformer.layers.1.norm2.weight").name = "transformer.layers.1.norm3.weight";
  const float omega[2] = {};
  tensors.Add("module.transformer.layers.0.attention.inner_attention.feature_map.omega",
              DType::kF32, {2}, omega);
  const std::string error = tensors.Error(TinyChoices());
  for (const char* name :
       {"lacks 'transformer.layers.1.norm2.weight', 'predictor.bias'", "'head.bias'",
        "'transformer.layers.1.norm3.weight'",
        "'module.transformer.layers.0.attention.inner_attention.feature_map.omega'"}) {
    EXPECT_TRUE(Contains(error, name)) << error;
  }

  Tensors twice(Tiny());
  twice.Get("predictor.bias").name = "module.predictor.weight";
  EXPECT_TRUE(Contains(twice.Error(TinyChoices()), "differ only in a prefix"));

  Tensors shapes(Tiny());
  shapes.Get("transformer.layers.1.linear1.bias").shape = {7, 1};
  EXPECT_TRUE(Contains(shapes.Error(TinyChoices()),
                       "'transformer.layers.1.linear1.bias' is [7, 1], but the other tensors "
                       "require [7]"));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {11, 8}, {1, 0, 8}, {1, int64_t{1} << 40, 8}}) {
    shapes.Get("pos_embedding.pe").shape = shape;
    EXPECT_TRUE(Contains(shapes.Error(TinyChoices()), "'pos_embedding.pe' has the shape"));
  }
  Tensors head(Tiny());
  head.Get("predictor.weight").shape = {8, 16};
  EXPECT_TRUE(Contains(head.Error(TinyChoices()), "8 outputs for 256 tokens"));
  EXPECT_TRUE(
      Contains(ErrorOf([] { FromReference({}, "a.pth", ReferenceChoices{}); }),
               "lacks 'value_embedding.weight', 'pos_embedding.pe', 'transformer.layers.0"));
}

}  // namespace
}  // namespace linnet
