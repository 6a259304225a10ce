// Tests the import of RWKV-7 models, valid and invalid, as BlinkDL's programs save them.
#include "linnet/model/rwkv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/test_util.h"
#include "linnet/model/checkpoint.h"
#include "tests/gated_models.h"

namespace linnet {
namespace {

// May edit a tensor (name, shape, numbers). Returns false to leave it out.
using Change = std::function<bool(std::string&, std::vector<int64_t>&, std::vector<float>&)>;
// Writes the golden model's tensors, changed by `change`, in fp32 or, if `narrow`, in bf16.
void WriteModel(const std::string& path, const Change& change, bool narrow = false) {
  const GatedModel golden("rwkv7");
  PyTorchWriter writer;
  std::vector<std::vector<float>> wide;
  std::vector<std::vector<uint16_t>> halves;
  wide.reserve(golden.rwkv.size()), halves.reserve(golden.rwkv.size());
  for (const Tensor& tensor : golden.rwkv) {
    std::string name = tensor.name;
    std::vector<int64_t> shape = tensor.shape;
    std::vector<float>& values = wide.emplace_back(tensor.f32().begin(), tensor.f32().end());
    if (!change(name, shape, values)) continue;
    std::vector<uint16_t>& upper = halves.emplace_back();
    for (const float value : values) {
      upper.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    }
    if (narrow) {
      writer.Add(name, DType::kBF16, shape, upper.data());
    } else {
      writer.Add(name, DType::kF32, shape, values.data());
    }
  }
  writer.Write(path);
}
bool Same(std::string&, std::vector<int64_t>&, std::vector<float>&) { return true; }

TEST(Rwkv, SizesComeFromTheTensors) {
  TempDir dir;
  WriteModel(dir / "a.pth", Same);
  const PyTorchFile file = PyTorchFile::Open(dir / "a.pth");
  ASSERT_TRUE(IsRwkv(file.tensors()));
  const RwkvModel model = RwkvModel::Of(file.tensors(), file.path(), /*context=*/100);
  const ModelSpec& spec = model.spec();
  EXPECT_EQ(spec.stack.layers(), 2);
  EXPECT_EQ(spec.stack.d_model, 24);
  EXPECT_EQ(spec.stack.d_ff, 96);
  EXPECT_EQ(spec.input.vocabulary, 61);
  EXPECT_EQ(spec.input.max_length, 100);
  const MixerSpec &first = spec.stack.mixer(0), &second = spec.stack.mixer(1);
  EXPECT_EQ(first.heads, 2);
  EXPECT_EQ(first.query_dim, 12);
  EXPECT_EQ(first.value_dim, 12);
  for (const MixerSpec& mixer : {first, second}) {
    EXPECT_EQ(mixer.decay_rank, 6);
    EXPECT_EQ(mixer.rate_rank, 5);
    EXPECT_EQ(mixer.gate_rank, 7);
  }
  EXPECT_EQ(first.value_rank, 0);
  EXPECT_EQ(second.value_rank, 4);
}

TEST(Rwkv, MatricesInBf16StaySo) {
  TempDir dir;
  WriteModel(dir / "a.pth", Same, /*narrow=*/true);
  const PyTorchFile file = PyTorchFile::Open(dir / "a.pth");
  const RwkvModel model = RwkvModel::Of(file.tensors(), file.path());
  EXPECT_EQ(model.precision(), Precision::kBf16);
  model.Write(dir / "m.safetensors", "{}");
  const Checkpoint checkpoint = Checkpoint::Open(dir / "m.safetensors");
  EXPECT_EQ(checkpoint.precision(), Precision::kBf16);
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    const RwkvPart part = RwkvPartOf(info.name);
    const std::span<const uint16_t> from{
        reinterpret_cast<const uint16_t*>(file.Get(part.name).data.data()),
        static_cast<size_t>(file.Get(part.name).numel())};
    const std::span<const float> got = checkpoint.Tensor(info.name);
    ASSERT_EQ(got.size(), from.size()) << info.name;
    const size_t columns = got.size() / static_cast<size_t>(info.shape[0]);
    const size_t rows = static_cast<size_t>(info.shape[0]);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t at = part.transposed ? i % columns * rows + i / columns : i;
      ASSERT_EQ(got[i], std::bit_cast<float>(uint32_t{from[at]} << 16)) << info.name << " " << i;
    }
  }
}

// Some files hold v0, v1 and v2 also for the first block, whose mixer does not read them.
TEST(Rwkv, IgnoresFirstValuesOfTheFirstBlock) {
  TempDir dir;
  WriteModel(dir / "a.pth", Same);
  const PyTorchFile file = PyTorchFile::Open(dir / "a.pth");
  std::vector<Tensor> tensors = file.tensors();
  tensors.push_back(file.Get("blocks.1.att.v0"));
  tensors.back().name = "blocks.0.att.v0";
  EXPECT_EQ(RwkvModel::Of(tensors, "a").spec().stack.layers(), 2);
}

TEST(Rwkv, RefusesWhatDoesNotFitInOneLine) {
  TempDir dir;
  // The error's message without the "input: " that ErrorOf() prepends.
  const auto message = [](FunctionRef<void()> body) {
    const std::string text = ErrorOf(body), kind = "input: ";
    EXPECT_EQ(text.substr(0, kind.size()), kind);
    return text.substr(kind.size());
  };
  const auto error = [&](const Change& change) {
    WriteModel(dir / "a.pth", change);
    const PyTorchFile file = PyTorchFile::Open(dir / "a.pth");
    const std::string text = message([&] { RwkvModel::Of(file.tensors(), "a.pth"); });
    EXPECT_EQ(text.find('\n'), text.npos);
    return text;
  };
  const auto without = [&](const std::string& tensor) {
    return error([&](std::string& name, std::vector<int64_t>&, std::vector<float>&) {
      return name != tensor;
    });
  };
  EXPECT_EQ(without("blocks.1.att.w2"), "a.pth: the tensor 'blocks.1.att.w2' is missing");
  EXPECT_EQ(without("blocks.0.att.w1"), "a.pth: the tensor 'blocks.0.att.w1' is missing");
  EXPECT_EQ(without("ln_out.bias"), "a.pth: the tensor 'ln_out.bias' is missing");
  EXPECT_EQ(without("blocks.0.att.r_k"),
            "a.pth: has no tensor 'blocks.0.att.r_k'; of the RWKV models only those of version 7 "
            "(x070) are supported");
  EXPECT_EQ(error([](std::string& name, std::vector<int64_t>& shape, std::vector<float>&) {
              if (name == "blocks.1.att.a2") shape = {4, 30};
              return true;
            }),
            "a.pth: the tensor 'blocks.1.att.a2' is F32 [4, 30], but the first block's sizes need "
            "F32, F16 or BF16 [5, 24]");
  EXPECT_EQ(error([](std::string& name, std::vector<int64_t>& shape, std::vector<float>&) {
              if (name == "emb.weight") shape = {61 * 24};
              return true;
            }),
            "a.pth: the tensor 'emb.weight' is [1464]; it must have two axes of size 1 to 2^20");
  EXPECT_EQ(error([](std::string& name, std::vector<int64_t>&, std::vector<float>&) {
              if (name == "ln_out.bias") name = "ln_out.other";
              return true;
            }),
            "a.pth: the tensor 'ln_out.bias' is missing");
  const PyTorchFile file = [&] {
    WriteModel(dir / "b.pth", [](std::string& name, std::vector<int64_t>&, std::vector<float>& x) {
      if (name == "blocks.1.ffn.x_k") x[3] = NAN;
      return true;
    });
    return PyTorchFile::Open(dir / "b.pth");
  }();
  const RwkvModel model = RwkvModel::Of(file.tensors(), "b.pth");
  const std::string text = message([&] { model.Write(dir / "m.safetensors", "{}"); });
  EXPECT_EQ(text.find("b.pth: tensor 'blocks.1.ffn.x_k' holds NaN"), 0u) << text;
  EXPECT_FALSE(std::filesystem::exists(dir / "m.safetensors"));
  std::vector<Tensor> more = file.tensors();
  more.push_back(more.back());
  more.back().name = "blocks.0.att.s_emb.weight";
  EXPECT_EQ(message([&] { RwkvModel::Of(more, "b.pth"); }),
            "b.pth: linnet does not know the tensors 'blocks.0.att.s_emb.weight'; the model has a "
            "part that is not supported");
}

}  // namespace
}  // namespace linnet
