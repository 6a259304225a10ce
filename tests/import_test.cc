// Imports a fast-transformers model written by torch.save() and compares the engine's outputs with
// fast-transformers'. This covers the reader, the import, the checkpoint and the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "linnet/engine.h"
#include "linnet/io/pytorch.h"
#include "linnet/io/safetensors.h"
#include "linnet/io/test_util.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/reference.h"
#include "linnet/tasks/images/images.h"

namespace linnet {
namespace {

TEST(Import, EngineMatchesFastTransformers) {
  const SafetensorsFile golden = SafetensorsFile::Open("tests/golden/image_model.safetensors");
  const PyTorchFile file = PyTorchFile::Open("tests/golden/image_model.pth");
  const ReferenceModel imported =
      FromReference(file.tensors(), file.path(), {.heads = 4, .width = 8, .height = 8});
  TempDir dir;
  WriteCheckpoint(dir / "m.safetensors", imported.spec(), "",
                  [&](const TensorInfo& info) { return imported.Tensor(info.name); });

  const auto model = Model::Open(dir / "m.safetensors");
  Engine engine(model, {.threads = 2});
  const std::span<const int64_t> images = golden.Get("images").i64();
  const std::span<const float> want = golden.Get("y_hat").f32();
  const size_t count = 5, length = 63, pixels = 64, outputs = engine.output_size();
  ASSERT_EQ(images.size(), count * pixels);
  ASSERT_EQ(want.size(), count * length * outputs);
  std::vector<int32_t> tokens(count * length);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(images[i / length * pixels + i % length]);
  }
  float largest = 0;
  for (float value : want) largest = std::max(largest, std::abs(value));
  const auto expect_close = [&](std::span<const float> got, const char* what) {
    float off = 0;
    for (size_t i = 0; i < want.size(); ++i) off = std::max(off, std::abs(got[i] - want[i]));
    EXPECT_LE(off, 1e-4f * largest) << what;
  };

  std::vector<float> got(want.size());
  State state = engine.NewState(count);
  engine.Prefix(state, tokens, length, got);
  expect_close(got, "all at once");

  state.Reset();
  std::vector<int32_t> now(count);
  std::vector<float> row(count * outputs);
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < count; ++i) now[i] = tokens[i * length + t];
    engine.Step(state, now, row);
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(row.begin() + static_cast<ptrdiff_t>(i * outputs), outputs,
                  got.begin() + static_cast<ptrdiff_t>((i * length + t) * outputs));
    }
  }
  expect_close(got, "step by step");

  const std::vector<uint8_t> bytes(images.begin(), images.end());
  const double nats = BitsPerDim(engine, bytes).mean * std::numbers::ln2;
  EXPECT_NEAR(nats, golden.Get("nats_per_dim").f32()[0], 1e-4 * nats);
}

}  // namespace
}  // namespace linnet
