#include "linnet/model/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>

#include "linnet/io/test_util.h"

namespace linnet {
namespace {

// Images of 4 x 3, with nothing equal that need not be.
ModelSpec Tiny() {
  ModelSpec spec;
  spec.stack.repeat = 2, spec.stack.mixer().heads = 3, spec.stack.mixer().query_dim = 2, spec.stack.mixer().value_dim = 5, spec.stack.d_model = 16;
  spec.stack.d_ff = 7, spec.input.value_embedding = 8, spec.image()->width = 4, spec.image()->height = 3, spec.input.max_length = 11;
  spec.head.mixtures = 2;
  return spec;
}
ReferenceChoices TinyChoices() { return {.heads = 3, .width = 4, .height = 3}; }

// Tensors of a file, with values that tell them apart.
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

TEST(ReferenceName, StripsWhatWrappersAdd) {
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
  // What only linnet has.
  spec = Tiny();
  spec.input.positions = Positions::kGrid, spec.input.pixel_above = true, spec.stack.norm_first = true;
  choices = TinyChoices();
  choices.norm_first = true;
  EXPECT_EQ(FromReference(Tensors(spec).list, "a.pth", choices).spec(), spec);

  spec = Tiny();
  spec.task = "copy", spec.part = std::monostate(), spec.head.kind = HeadKind::kCategorical, spec.input.vocabulary = spec.head.classes = 11;
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

TEST(Reference, TakesTensorsAsTheyAre) {
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
  EXPECT_TRUE(Contains(ErrorOf([&] { replace(DType::kI16, integers); }), "is I16, which holds no"));
}

TEST(Reference, RefusesWhatIsNoNumber) {
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
    EXPECT_TRUE(Contains(error, "input: a.pth: tensor 'predictor.bias' holds values that are no"));
  }
}

TEST(Reference, ReformerIsTheReferences) {
  Tensors tensors(Tiny());
  ReferenceChoices choices = TinyChoices();
  choices.attention.kind = "reformer";
  choices.attention.lsh_rounds = 2;
  const MixerSpec made = FromReference(tensors.list, "a.pth", choices).spec().stack.mixer();
  EXPECT_EQ(made.lsh_variant, LshVariant::kSimple);
  EXPECT_EQ(made.lsh_rounds, 2);
  EXPECT_EQ(made.lsh_buckets, 126);
  // Of another kind they say nothing.
  choices.attention.kind = "full";
  EXPECT_FALSE(Contains(ToJson(FromReference(tensors.list, "a.pth", choices).spec()), "lsh"));
}

// A table of positions that would take gigabytes, beside tensors that have none.
TEST(Reference, NoTableLargerThanTheFile) {
  Tensors tensors(Tiny());
  tensors.Get("pos_embedding.pe").shape = {1, 1 << 20, 0};
  tensors.Get("pos_embedding.pe").data = {};
  tensors.Get("predictor.weight").shape = {6, 8 + 1024};
  ReferenceChoices choices = TinyChoices();
  choices.width = 1 << 10, choices.height = 1 << 10;
  EXPECT_TRUE(Contains(tensors.Error(choices), "'pos_embedding.pe' is [1, 1048576, 0], but"));
}

TEST(Reference, CutsPositionsThatAreNeverReached) {
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

TEST(Reference, NamesAllThatIsWrong) {
  Tensors tensors(Tiny());
  EXPECT_EQ(tensors.Error({.width = 4, .height = 3}),
            "input: a.pth: its tensors do not tell the number of heads; give --heads, a divisor of "
            "6 and 15");
  EXPECT_TRUE(Contains(tensors.Error({.heads = 2}), "2 heads cannot share 6 queries and 15"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3}), "give their --width and --height"));
  EXPECT_TRUE(Contains(tensors.Error({.heads = 3, .width = 4}), "give both"));
  ReferenceChoices choices = TinyChoices();
  choices.attention.kind = "linear";
  EXPECT_TRUE(Contains(tensors.Error(choices), "predicts the future"));

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
  EXPECT_TRUE(Contains(twice.Error(TinyChoices()), "are the same tensor but for a prefix"));

  Tensors shapes(Tiny());
  shapes.Get("transformer.layers.1.linear1.bias").shape = {7, 1};
  EXPECT_TRUE(Contains(shapes.Error(TinyChoices()),
                       "'transformer.layers.1.linear1.bias' is [7, 1], but beside the others it "
                       "must be [7]"));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {11, 8}, {1, 0, 8}, {1, int64_t{1} << 40, 8}}) {
    shapes.Get("pos_embedding.pe").shape = shape;
    EXPECT_TRUE(Contains(shapes.Error(TinyChoices()), "'pos_embedding.pe' has the shape"));
  }
  Tensors head(Tiny());
  head.Get("predictor.weight").shape = {8, 16};
  EXPECT_TRUE(Contains(head.Error(TinyChoices()), "8 outputs for 256 symbols"));
  EXPECT_TRUE(
      Contains(ErrorOf([] { FromReference({}, "a.pth", ReferenceChoices{}); }),
               "lacks 'value_embedding.weight', 'pos_embedding.pe', 'transformer.layers.0"));
}

}  // namespace
}  // namespace linnet
