#include "linnet/kernels/cuda/tile_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "linnet/kernels/cuda/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {
namespace {

// ---- Correct programs ----

struct SumArgs {
  const float* x;
  float* sums;  // one per block
};

template <class Tile>
LINNET_TILE void SumTile(Tile& tile, const SumArgs& args) {
  const auto parts = tile.template Shared<float>(0, tile.threads() / kWarp);
  const unsigned block = (tile.z() * 3 + tile.y()) * 2 + tile.x();
  float sum = args.x[block * tile.threads() + tile.thread()];
  for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) sum += tile.ShuffleXor(sum, mask);
  if (tile.lane() == 0) parts.Set(tile.warp(), sum);
  tile.Barrier();
  if (tile.warp() > 0) return;
  sum = tile.lane() < tile.threads() / kWarp ? parts.Get(tile.lane()) : 0.0f;
  for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) sum += tile.ShuffleXor(sum, mask);
  sum = tile.Shuffle(sum, 0);
  if (tile.thread() == 0) args.sums[block] = sum;
}

TEST(Executor, SumsOfBlocks) {
  const std::vector<float> ones = [] {  // 0, 1, 2, ...
    std::vector<float> x(2 * 3 * 2 * 128);
    std::iota(x.begin(), x.end(), 0.0f);
    return x;
  }();
  for (const uint64_t seed : kOrders) {
    std::vector<float> sums(12);
    RunTiles({.blocks = {2, 3, 2}, .threads = 128, .shared_bytes = 16, .seed = seed},
             [&](ExecutorTile& tile) {
               SumTile(tile, SumArgs{ones.data(), sums.data()});
             });
    for (size_t i = 0; i < sums.size(); ++i) {
      const double first = 128.0 * static_cast<double>(i);
      EXPECT_EQ(sums[i], 128 * first + 127 * 64) << "block " << i << " seed " << seed;
    }
  }
}

struct ProductArgs {
  const BFloat16 *a, *b;  // [64, 64], row-major
  float* out;             // [64, 64]
};

// out = a b, one warp per 16 rows, in two steps of 32 over the inner dimension. The copy of the
// second step is under way during the products of the first.
template <class Tile>
LINNET_TILE void ProductTile(Tile& tile, const ProductArgs& args) {
  constexpr unsigned kStride = 32 + 8, kStrideB = 64 + 8, kSizeA = 64 * kStride;
  constexpr unsigned kStage = kSizeA + 32 * kStrideB;
  const auto memory = tile.template Shared<BFloat16>(0, 2 * kStage);
  for (unsigned step = 0; step < 2; ++step) {
    for (unsigned i = tile.thread(); i < 64 * 32 / 8; i += tile.threads()) {
      const unsigned row = i / 4, column = i % 4 * 8;
      tile.CopyAsync(memory, step * kStage + row * kStride + column,
                     args.a + row * 64 + step * 32 + column, true);
    }
    for (unsigned i = tile.thread(); i < 32 * 64 / 8; i += tile.threads()) {
      const unsigned row = i / 8, column = i % 8 * 8;
      tile.CopyAsync(memory, step * kStage + kSizeA + row * kStrideB + column,
                     args.b + (step * 32 + row) * 64 + column, true);
    }
    tile.CopyCommit();
  }
  float d[8][4] = {};
  for (unsigned step = 0; step < 2; ++step) {
    if (step == 0) {
      tile.template CopyWait<1>();
    } else {
      tile.template CopyWait<0>();
    }
    tile.Barrier();
    for (unsigned k = 0; k < 32; k += 16) {
      uint32_t a[4];
      tile.LoadMatrix(a, memory,
                      step * kStage + (tile.warp() * 16 + tile.lane() % 16) * kStride + k +
                          tile.lane() / 16 * 8);
      for (unsigned column = 0; column < 64; column += 16) {
        uint32_t b[4];
        tile.LoadMatrixTransposed(b, memory,
                                  step * kStage + kSizeA + (k + tile.lane() % 16) * kStrideB +
                                      column + tile.lane() / 16 * 8);
        tile.Multiply(d[column / 8], a, {b[0], b[1]});
        tile.Multiply(d[column / 8 + 1], a, {b[2], b[3]});
      }
    }
  }
  for (unsigned i = 0; i < 8; ++i) {
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned row = tile.warp() * 16 + tile.lane() / 4 + j / 2 * 8;
      args.out[row * 64 + i * 8 + tile.lane() % 4 * 2 + j % 2] = d[i][j];
    }
  }
}

TEST(Executor, MatrixProduct) {
  struct alignas(16) Matrix {
    BFloat16 x[64 * 64];
  };
  const auto a = std::make_unique<Matrix>(), b = std::make_unique<Matrix>();
  Philox rng(5);
  for (BFloat16& x : a->x) x = ToBf16(rng.Normal());
  for (BFloat16& x : b->x) x = ToBf16(rng.Normal());
  for (const uint64_t seed : kOrders) {
    std::vector<float> out(64 * 64);
    RunTiles({.threads = 128, .shared_bytes = 2 * (64 * 40 + 32 * 72) * 2, .seed = seed},
             [&](ExecutorTile& tile) {
               ProductTile(tile, ProductArgs{a->x, b->x, out.data()});
             });
    for (unsigned i = 0; i < 64; ++i) {
      for (unsigned j = 0; j < 64; ++j) {
        double want = 0;
        for (unsigned k = 0; k < 64; ++k) {
          want += double{ToFloat(a->x[i * 64 + k])} * ToFloat(b->x[k * 64 + j]);
        }
        EXPECT_NEAR(out[i * 64 + j], want, 1e-5) << i << " " << j << " seed " << seed;
      }
    }
  }
}

// LoadMatrix and LoadMatrixTransposed have the layout that tile.h describes.
TEST(Executor, LayoutOfLoadMatrix) {
  RunTiles(kOneWarp, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<BFloat16>(0, 4 * 64);
    for (unsigned i = tile.lane(); i < 4 * 64; i += kWarp) memory.Set(i, {uint16_t(i)});
    tile.WarpBarrier();
    uint32_t r[4], transposed[4];
    tile.LoadMatrix(r, memory, tile.lane() * 8);
    tile.LoadMatrixTransposed(transposed, memory, tile.lane() * 8);
    const unsigned g = tile.lane() / 4, t = tile.lane() % 4;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned at = i * 64 + g * 8 + 2 * t, at_transposed = i * 64 + 2 * t * 8 + g;
      EXPECT_EQ(r[i], at | (at + 1) << 16);
      EXPECT_EQ(transposed[i], at_transposed | (at_transposed + 8) << 16);
    }
  });
}

TEST(Executor, Shuffles) {
  RunTiles(kTwoWarps, [](ExecutorTile& tile) {
    EXPECT_EQ(tile.Shuffle(tile.thread(), 3), tile.warp() * 32 + 3);
    EXPECT_EQ(tile.Shuffle(tile.thread(), (tile.lane() + 1) % 32),
              tile.warp() * 32 + (tile.lane() + 1) % 32);
    EXPECT_EQ(tile.ShuffleXor(static_cast<float>(tile.thread()), 5),
              static_cast<float>(tile.thread() ^ 5));
  });
}

TEST(Executor, CopyOfZeros) {
  RunTiles(kOneWarp, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 128);
    tile.CopyAsync(memory, tile.thread() * 4, static_cast<const float*>(nullptr), false);
    tile.CopyCommit();
    tile.CopyWait<0>();
    for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(memory.Get(tile.thread() * 4 + i), 0.0f);
  });
}

// A WarpBarrier orders the accesses of a warp's lanes, a Barrier those of all threads.
TEST(Executor, OrderedByBarriers) {
  ExpectNoFault(kTwoWarps, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<uint32_t>(0, 256);
    for (unsigned round = 0; round < 3; ++round) {
      memory.Store(tile.thread() * 4, Vector16{{tile.thread(), 0, 0, round}});
      tile.WarpBarrier();
      const auto other = memory.Load<Vector16>((tile.thread() ^ 1) * 4);
      EXPECT_EQ(other.word[0], tile.thread() ^ 1);
      EXPECT_EQ(other.word[3], round);
      tile.Barrier();
      EXPECT_EQ(memory.Get((63 - tile.thread()) * 4), 63 - tile.thread());
      tile.Barrier();
    }
  });
}

// All threads read the same bytes, before and after a WarpBarrier; then one thread writes them.
TEST(Executor, ReadersMayShare) {
  ExpectNoFault(kTwoWarps, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 1);
    if (tile.thread() == 40) memory.Set(0, 1.0f);
    tile.Barrier();
    memory.Get(0);
    tile.WarpBarrier();
    memory.Get(0);
    tile.Barrier();
    if (tile.thread() == 7) memory.Set(0, 2.0f);
  });
}

// Each warp writes, reads and overwrites its own number; WarpBarriers are enough.
TEST(Executor, WritesAfterReadsOfTheWarp) {
  ExpectNoFault(kTwoWarps, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 2);
    if (tile.lane() == 9) memory.Set(tile.warp(), 1.0f);
    tile.WarpBarrier();
    memory.Get(tile.warp());
    tile.WarpBarrier();
    if (tile.lane() == 30) memory.Set(tile.warp(), 2.0f);
  });
}

// ---- The launch ----

// A thread's exception of any type reaches the caller, after the other threads' destructors have
// run.
TEST(Launch, Exceptions) {
  for (const uint64_t seed : kOrders) {
    int alive = 0;
    struct Count {
      explicit Count(int& n) : n_(n) { ++n_; }
      ~Count() { --n_; }
      int& n_;
    };
    TileLaunch launch = kTwoWarps;
    launch.blocks = {3, 1, 1};
    launch.seed = seed;
    EXPECT_THROW(RunTiles(launch,
                          [&](ExecutorTile& tile) {
                            const Count count(alive);
                            const std::vector<int> memory(100);
                            if (tile.x() == 1 && tile.thread() == 33) throw std::string("x");
                            tile.Barrier();
                          }),
                 std::string);
    EXPECT_EQ(alive, 0);
  }
}

TEST(Launch, BadSizes) {
  const auto nothing = [](ExecutorTile&) {};
  EXPECT_THROW(RunTiles({.threads = 0}, nothing), Error);
  EXPECT_THROW(RunTiles({.threads = 48}, nothing), Error);
  EXPECT_THROW(RunTiles({.threads = 1056}, nothing), Error);
  EXPECT_THROW(RunTiles({.shared_bytes = 228 * 1024}, nothing), Error);
  EXPECT_THROW(RunTiles({.blocks = {1, 0, 1}}, nothing), Error);
  EXPECT_THROW(RunTiles({.blocks = {1, 1, 65536}}, nothing), Error);
  EXPECT_NO_THROW(RunTiles({.threads = 1024, .shared_bytes = 227 * 1024}, nothing));
}

// Different seeds run blocks and threads in different orders; the same seed always gives the same
// order.
TEST(Launch, Orders) {
  const auto order = [](uint64_t seed) {
    TileLaunch launch = kTwoWarps;
    launch.seed = seed;
    std::vector<unsigned> threads;
    RunTiles(launch, [&](ExecutorTile& tile) {
      threads.push_back(tile.thread());
      tile.Barrier();
      threads.push_back(tile.thread());
    });
    return threads;
  };
  const auto block_order = [](uint64_t seed) {
    std::vector<unsigned> blocks;
    RunTiles({.blocks = {9, 1, 2}, .seed = seed}, [&](ExecutorTile& tile) {
      if (tile.thread() == 0) blocks.push_back(tile.z() * 9 + tile.x());
    });
    return blocks;
  };
  std::vector<unsigned> blocks = block_order(1);
  EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks, block_order(0));
  const std::vector<unsigned> ascending = order(0);
  EXPECT_TRUE(std::is_sorted(ascending.begin(), ascending.begin() + 64));
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(0));
  EXPECT_NE(order(1), order(2));
}

}  // namespace
}  // namespace linnet::kernels::cuda
