// The kernels of training_rows.h as tile programs (tile.h). In all but SumPartialTile, a warp
// processes one row, or 128 columns of a row, at a time. Of every 128 columns, lane l holds columns
// 4 l .. 4 l + 3.
#ifndef LINNET_KERNELS_CUDA_TRAINING_ROWS_TILE_H_
#define LINNET_KERNELS_CUDA_TRAINING_ROWS_TILE_H_

#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/training_rows.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kSumThreads = 256;       // threads of a block that sums rows
inline constexpr unsigned kPartialThreads = 1024;  // threads of a block that adds the partial sums
inline constexpr unsigned kMostSumBlocks = 264;    // two for each multiprocessor of an H100

inline constexpr unsigned kSumWarps = kSumThreads / kWarp;

// Number of blocks among which `rows` rows are divided. If the columns are divided into `parts`
// parts, each part has this number of blocks.
inline unsigned SumBlocks(unsigned rows, unsigned parts) {
  const unsigned useful = (rows + kSumWarps - 1) / kSumWarps;
  const unsigned most = parts < kMostSumBlocks ? kMostSumBlocks / parts : 1;
  return useful < 1 ? 1 : useful < most ? useful : most;
}

template <unsigned kParts, typename To>
LINNET_TILE void StoreRow(unsigned first, unsigned width, const RowOf<kParts>& row, To* to) {
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    if (first + 128 * j < width) StoreFour(to + first + 128 * j, row.part[j]);
  }
}

template <unsigned kParts, class Tile>
LINNET_TILE void AddNormTile(Tile& tile, const AddNormArgs& args) {
  const unsigned n = tile.x() * (tile.threads() / kWarp) + tile.warp();
  if (n >= args.rows) return;
  const unsigned first = 4 * tile.lane(), width = args.width;
  const size_t begin = size_t{n} * width;
  RowOf<kParts> row;
  float sum = 0;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    row.part[j] = {{0, 0, 0, 0}};
    if (c >= width) continue;
    const Four x = LoadFour(args.x + begin + c), bias = LoadFour(args.bias + c),
               residual = LoadFour(args.residual + begin + c);
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      row.part[j].at[i] = x.at[i] + bias.at[i] + residual.at[i];
      sum += row.part[j].at[i];
    }
  }
  StoreRow(first, width, row, args.x + begin);
  if (args.weight == nullptr) return;
  const float count = static_cast<float>(width);
  const float mean = SumOfWarp(tile, sum) / count;
  float squares = 0;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    if (first + 128 * j >= width) continue;
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const float off = row.part[j].at[i] - mean;
      squares += off * off;
    }
  }
  const float scale = 1.0f / std::sqrt(SumOfWarp(tile, squares) / count + args.eps);
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    if (c >= width) continue;
    const Four weight = LoadFour(args.weight + c), offset = LoadFour(args.offset + c);
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      row.part[j].at[i] = (row.part[j].at[i] - mean) * scale * weight.at[i] + offset.at[i];
    }
  }
  StoreRow(first, width, row, args.out + begin);
  if (tile.lane() == 0) {
    args.stats[2 * size_t{n}] = mean;
    args.stats[2 * size_t{n} + 1] = scale;
  }
}

// Adds up `sum`, four columns per thread, over the warps of the block, and writes columns begin ..
// begin + 127 of the result to `to`, as far as they are below width. Uses kSumWarps * 128 floats of
// shared memory.
template <class Tile>
LINNET_TILE void WriteSumOfWarps(Tile& tile, const Four& sum, unsigned begin, unsigned width,
                                 float* to) {
  const auto shared = tile.template Shared<float>(0, kSumWarps * 128);
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    shared.Set(tile.warp() * 128 + kWarp * i + tile.lane(), sum.at[i]);
  }
  tile.Barrier();
  // A warp's column 4 l + i is at kWarp * i + l of its 128 floats.
  const unsigned t = tile.thread(), c = begin + t;
  if (t < 128 && c < width) {
    const unsigned at = kWarp * (t % 4) + t / 4;
    float total = 0;
    for (unsigned w = 0; w < kSumWarps; ++w) total += shared.Get(w * 128 + at);
    to[c] = total;
  }
  tile.Barrier();
}

// Writes the gradient of x for the block's rows. Block b also writes the sums over its rows to row
// b of partial [blocks, 3, width].
template <unsigned kParts, class Tile>
LINNET_TILE void AddNormGradTile(Tile& tile, const AddNormGradArgs& args, unsigned blocks) {
  const unsigned first = 4 * tile.lane(), width = args.width;
  const float count = static_cast<float>(width);
  RowOf<kParts> weight, of_weight, of_offset, of_bias;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    of_weight.part[j] = of_offset.part[j] = of_bias.part[j] = weight.part[j] = {{0, 0, 0, 0}};
    if (c < width) weight.part[j] = LoadFour(args.weight + c);
  }
  for (unsigned n = tile.x() * kSumWarps + tile.warp(); n < args.rows; n += blocks * kSumWarps) {
    const size_t begin = size_t{n} * width;
    const float mean = args.stats[2 * size_t{n}], scale = args.stats[2 * size_t{n} + 1];
    RowOf<kParts> normal, grad;  // normal = (x - mean) scale; grad: gradient of normal, then of x
    float sum = 0, product = 0;  // over the row: sums, then means, of grad and of grad * normal
    LINNET_UNROLL
    for (unsigned j = 0; j < kParts; ++j) {
      const unsigned c = first + 128 * j;
      normal.part[j] = grad.part[j] = {{0, 0, 0, 0}};
      if (c >= width) continue;
      const Four x = LoadFour(args.x + begin + c), g = LoadFour(args.grad_out + begin + c);
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        const float normed = (x.at[i] - mean) * scale;
        of_weight.part[j].at[i] += g.at[i] * normed;
        of_offset.part[j].at[i] += g.at[i];
        normal.part[j].at[i] = normed;
        grad.part[j].at[i] = g.at[i] * weight.part[j].at[i];
        sum += grad.part[j].at[i];
        product += grad.part[j].at[i] * normed;
      }
    }
    sum = SumOfWarp(tile, sum) / count;
    product = SumOfWarp(tile, product) / count;
    LINNET_UNROLL
    for (unsigned j = 0; j < kParts; ++j) {
      if (first + 128 * j >= width) continue;
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        const float x = scale * (grad.part[j].at[i] - sum - normal.part[j].at[i] * product);
        grad.part[j].at[i] = x;
        of_bias.part[j].at[i] += x;
      }
    }
    StoreRow(first, width, grad, args.grad_x + begin);
    StoreRow(first, width, grad, args.grad_x_narrow + begin);
  }
  float* partial = args.partial + size_t{tile.x()} * 3 * width;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    WriteSumOfWarps(tile, of_weight.part[j], 128 * j, width, partial);
    WriteSumOfWarps(tile, of_offset.part[j], 128 * j, width, partial + width);
    WriteSumOfWarps(tile, of_bias.part[j], 128 * j, width, partial + 2 * width);
  }
}

// Block (x, y) writes the sums of its rows, in columns 128 y .. 128 y + 127, to row x of partial
// [blocks, width].
template <typename T, class Tile>
LINNET_TILE void ColumnSumsTile(Tile& tile, const ColumnSumsArgs<T>& args, unsigned blocks) {
  const unsigned begin = 128 * tile.y(), c = begin + 4 * tile.lane();
  Four sum = {{0, 0, 0, 0}};
  if (c < args.width) {
#ifdef __CUDACC__
#pragma unroll 8
#endif
    for (unsigned n = tile.x() * kSumWarps + tile.warp(); n < args.rows; n += blocks * kSumWarps) {
      const Four x = LoadFour(args.x + n * args.stride + c);
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) sum.at[i] += x.at[i];
    }
  }
  WriteSumOfWarps(tile, sum, begin, args.width, args.partial + size_t{tile.x()} * args.width);
}

// sums[c] = the sum over the rows of partial [count, width]; one block per 32 columns.
template <class Tile>
LINNET_TILE void SumPartialTile(Tile& tile, unsigned count, unsigned width, const float* partial,
                                float* sums) {
  const unsigned warps = tile.threads() / kWarp, c = tile.x() * kWarp + tile.lane();
  const auto shared = tile.template Shared<float>(0, tile.threads());
  float sum = 0;
  if (c < width) {
    for (unsigned n = tile.warp(); n < count; n += warps) sum += partial[size_t{n} * width + c];
  }
  shared.Set(tile.thread(), sum);
  tile.Barrier();
  if (tile.warp() != 0 || c >= width) return;
  float total = 0;
  for (unsigned w = 0; w < warps; ++w) total += shared.Get(w * kWarp + tile.lane());
  sums[c] = total;
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TRAINING_ROWS_TILE_H_
