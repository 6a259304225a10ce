// Runs the tile programs of training_rows_tile.h on the executor and compares the results with
// plain loops in double.
#include "linnet/kernels/cuda/training_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/cuda/test_util.h"
#include "linnet/kernels/cuda/tile_executor.h"
#include "linnet/kernels/cuda/training_rows_tile.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {
namespace {

template <class Body>
void RunSums(unsigned blocks, unsigned parts, const Body& body) {
  RunTiles({.blocks = {blocks, parts, 1},
            .threads = kSumThreads,
            .shared_bytes = 4 * 128 * kSumWarps,
            .seed = 3},
           body);
}
void RunSumPartial(unsigned count, unsigned width, const float* partial, float* sums) {
  RunTiles({.blocks = {(width + kWarp - 1) / kWarp, 1, 1},
            .threads = kPartialThreads,
            .shared_bytes = 4 * kPartialThreads,
            .seed = 3},
           [&](ExecutorTile& tile) { SumPartialTile(tile, count, width, partial, sums); });
}

template <unsigned kParts>
void CheckAddNorm(unsigned rows, unsigned width) {
  SCOPED_TRACE(testing::Message() << rows << " x " << width);
  const size_t n = size_t{rows} * width;
  const auto product = Random<float>(n, 1), residual = Random<float>(n, 2),
             bias = Random<float>(width, 3), weight = Random<float>(width, 4),
             offset = Random<float>(width, 5), grad_out = Random<float>(n, 6);
  auto x = Random<float>(n, 1);
  AlignedBuffer<float> out(n), stats(2 * rows), grad_x(n), sums(3 * width);
  AlignedBuffer<BFloat16> narrow(n);
  // For many rows, at most 4 blocks, so that each warp sums several rows.
  const unsigned blocks = rows > 20 ? SumBlocks(rows, 66) : SumBlocks(rows, 1);
  AlignedBuffer<float> partial(size_t{blocks} * 3 * width);
  RunTiles({.blocks = {(rows + 3) / 4, 1, 1}, .threads = kRowThreads, .shared_bytes = 0, .seed = 3},
           [&](ExecutorTile& tile) {
             AddNormTile<kParts>(tile, {.rows = rows,
                                        .width = width,
                                        .x = x.data(),
                                        .bias = bias.data(),
                                        .residual = residual.data(),
                                        .weight = weight.data(),
                                        .offset = offset.data(),
                                        .eps = 1e-5f,
                                        .out = out.data(),
                                        .stats = stats.data()});
           });
  RunSums(blocks, 1, [&](ExecutorTile& tile) {
    AddNormGradTile<kParts>(tile,
                            {.rows = rows,
                             .width = width,
                             .x = x.data(),
                             .stats = stats.data(),
                             .weight = weight.data(),
                             .grad_out = grad_out.data(),
                             .grad_x = grad_x.data(),
                             .grad_x_narrow = narrow.data(),
                             .sums = sums.data(),
                             .partial = partial.data()},
                            blocks);
  });
  RunSumPartial(blocks, 3 * width, partial.data(), sums.data());
  std::vector<double> want_sums(3 * width);
  for (unsigned r = 0; r < rows; ++r) {
    std::vector<double> sum(width), normal(width), grad(width);
    double mean = 0, variance = 0, mean_grad = 0, mean_product = 0;
    for (unsigned c = 0; c < width; ++c) {
      sum[c] = double{product[r * width + c]} + bias[c] + residual[r * width + c];
      mean += sum[c] / width;
    }
    for (unsigned c = 0; c < width; ++c) variance += std::pow(sum[c] - mean, 2) / width;
    const double scale = 1 / std::sqrt(variance + 1e-5);
    for (unsigned c = 0; c < width; ++c) {
      normal[c] = (sum[c] - mean) * scale;
      grad[c] = double{grad_out[r * width + c]} * weight[c];
      mean_grad += grad[c] / width;
      mean_product += grad[c] * normal[c] / width;
    }
    for (unsigned c = 0; c < width; ++c) {
      const size_t i = size_t{r} * width + c;
      const double want = scale * (grad[c] - mean_grad - normal[c] * mean_product);
      ASSERT_NEAR(x[i], sum[c], 1e-5);
      ASSERT_NEAR(out[i], normal[c] * weight[c] + offset[c], 1e-4);
      ASSERT_NEAR(grad_x[i], want, 1e-4);
      ASSERT_NEAR(ToFloat(narrow[i]), want, 0.01 * std::abs(want) + 1e-4);
      want_sums[c] += grad_out[i] * normal[c];
      want_sums[width + c] += grad_out[i];
      want_sums[2 * width + c] += want;
    }
  }
  for (unsigned c = 0; c < 3 * width; ++c) ASSERT_NEAR(sums[c], want_sums[c], 1e-3) << c;
}

TEST(TrainingRows, AddNormAndItsGradient) {
  CheckAddNorm<1>(1, 4);
  CheckAddNorm<1>(70, 128);
  CheckAddNorm<2>(9, 256);
  CheckAddNorm<2>(50, 200);
  CheckAddNorm<4>(5, 512);
}

template <typename T>
void CheckColumnSums(unsigned rows, unsigned width, size_t stride) {
  SCOPED_TRACE(testing::Message() << rows << " x " << width);
  const auto x = Random<T>(rows * stride, 1);
  const unsigned parts = (width + 127) / 128, blocks = SumBlocks(rows, parts * 60);
  AlignedBuffer<float> sums(width), partial(size_t{blocks} * width);
  const ColumnSumsArgs<T> args{.rows = rows,
                               .width = width,
                               .stride = stride,
                               .x = x.data(),
                               .sums = sums.data(),
                               .partial = partial.data()};
  RunSums(blocks, parts, [&](ExecutorTile& tile) { ColumnSumsTile(tile, args, blocks); });
  RunSumPartial(blocks, width, partial.data(), sums.data());
  for (unsigned c = 0; c < width; ++c) {
    double want = 0;
    for (unsigned r = 0; r < rows; ++r) want += ToFloat(x[r * stride + c]);
    ASSERT_NEAR(sums[c], want, 1e-3) << c;
  }
}

TEST(TrainingRows, ColumnSums) {
  CheckColumnSums<float>(1, 4, 4);
  CheckColumnSums<float>(300, 256, 256);
  CheckColumnSums<BFloat16>(101, 300, 768);
  CheckColumnSums<BFloat16>(7, 128, 128);
}

}  // namespace
}  // namespace linnet::kernels::cuda
