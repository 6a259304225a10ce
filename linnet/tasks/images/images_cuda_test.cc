// Compares the images that a GPU and the CPU draw with one seed. The test is skipped without a GPU.
// It opens a model in models/, so it must run in the source folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/runtime/cuda/cuda_engine.h"
#include "linnet/tasks/images/images.h"

namespace linnet {
namespace {

TEST(ImagesCudaTest, TheSameSeedDrawsTheSameImages) {
  try {
    CudaEngine::FindDevice();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Checkpoint checkpoint = Checkpoint::Open("models/digits.safetensors");
  const size_t count = 24;
  Engine cpu(Model::FromCheckpoint(checkpoint, {Precision::kF32}));
  const SampleOptions options{.seed = 7, .first_stream = 3, .batch = 10};
  const std::vector<uint8_t> want = SampleImages(cpu, count, options);
  const size_t pixels = want.size() / count;
  for (const auto& [precision, batch] : {std::pair{Precision::kF32, size_t{10}},
                                         {Precision::kF32, size_t{24}},
                                         {Precision::kBf16, size_t{24}}}) {
    CudaEngine gpu(checkpoint, {.batch = batch, .precision = precision, .lanes = batch / 8});
    SampleOptions on_gpu = options;
    on_gpu.batch = batch;
    const std::vector<uint8_t> drawn = SampleImages(gpu, count, on_gpu);
    const std::vector<uint8_t> completed = CompleteImages(gpu, want, pixels / 2, on_gpu);
    size_t bytes = 0, images = 0, kept = 0;
    for (size_t i = 0; i < count; ++i) {
      size_t off = 0;
      for (size_t p = 0; p < pixels; ++p) {
        off += drawn[i * pixels + p] != want[i * pixels + p];
        kept += p < pixels / 2 && completed[i * pixels + p] == want[i * pixels + p];
      }
      bytes += off, images += off > 0;
    }
    std::cout << PrecisionName(precision) << ", " << batch << " together"
              << ": " << bytes << " of " << want.size() << " bytes differ, in " << images << " of "
              << count << " images\n";
    EXPECT_EQ(kept, count * (pixels / 2));
    if (precision == Precision::kF32) {
      // If rounding changes one byte, the rest of its image changes, too. So the limit is on the
      // number of images, not of bytes.
      EXPECT_LE(images, count / 2);
    }
    EXPECT_EQ(SampleImages(gpu, count, on_gpu), drawn) << "a second time";
  }
}

}  // namespace
}  // namespace linnet
