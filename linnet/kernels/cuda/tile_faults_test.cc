// The faults that the executor finds in a program: races, divergent barriers, bad bounds or
// alignment, uninitialized reads, and misuse of copies.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "linnet/kernels/cuda/test_util.h"
#include "linnet/kernels/cuda/tile_executor.h"

namespace linnet::kernels::cuda {
namespace {

using Fault = TileFault::Fault;

// Expects that `program` fails with `fault` in every order of threads, with a message that contains
// `parts`.
template <typename Program>
void ExpectFault(const TileLaunch& launch, Fault fault, const std::vector<std::string>& parts,
                 const Program& program) {
  for (const uint64_t seed : kOrders) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TileLaunch seeded = launch;
    seeded.seed = seed;
    try {
      RunTiles(seeded, program);
      ADD_FAILURE() << "no fault";
    } catch (const TileFault& e) {
      EXPECT_EQ(e.fault(), fault) << e.what();
      EXPECT_NE(std::string(e.what()).find("tile_faults_test.cc:"), std::string::npos) << e.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
            << e.what() << "\n lacks: " << part;
      }
    }
  }
}

// Writes 64 floats of shared memory, waits at a barrier, and returns the array.
ExecutorShared<float> Written(ExecutorTile& tile) {
  const auto memory = tile.Shared<float>(0, 64);
  for (unsigned i = tile.thread(); i < 64; i += tile.threads()) memory.Set(i, 1.0f);
  tile.Barrier();
  return memory;
}

TEST(Faults, RaceAcrossWarps) {
  // The seed decides whether the read or the write comes first, and so which one the message
  // reports.
  ExpectFault(kTwoWarps, Fault::kRace,
              {"byte 16 of shared memory", "thread 4 ", "thread 36 ", "no barrier between"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.thread() == 4) memory.Set(4, 2.0f);
                tile.WarpBarrier();
                if (tile.thread() == 36) memory.Get(4);
              });
  ExpectFault(kTwoWarps, Fault::kRace, {"writes byte", "wrote at"}, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 1);
    if (tile.lane() == 0) memory.Set(0, 2.0f);
  });
}

// In the executor, the shuffle makes lane 3 run before lane 5. But on a GPU, a shuffle does not
// order accesses to memory.
TEST(Faults, MissingWarpBarrier) {
  ExpectFault(kOneWarp, Fault::kRace, {"thread 5 ", "reads byte 12 ", "thread 3 wrote"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 3) memory.Set(3, 2.0f);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 5) memory.Get(3);
              });
  ExpectFault(kOneWarp, Fault::kRace, {"thread 5 ", "writes byte 12 ", "thread 3 read"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 3) memory.Get(3);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 5) memory.Set(3, 2.0f);
              });
  ExpectFault(kOneWarp, Fault::kRace, {"thread 5 ", "writes byte 12 ", "thread 3 wrote"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 3) memory.Set(3, 2.0f);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 5) memory.Set(3, 2.0f);
              });
}

// Two threads have read the byte. One of them writes it, which races with the read of the other.
TEST(Faults, SecondReader) {
  ExpectFault(kOneWarp, Fault::kRace, {"thread 5 ", "writes byte 12 ", "thread 9 read"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 5) memory.Get(3);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 9) memory.Get(3);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 5) memory.Set(3, 2.0f);
              });
}

// The race occurs in one block only, and the message names it.
TEST(Faults, RaceInALaterBlock) {
  TileLaunch launch = kTwoWarps;
  launch.blocks = {1, 3, 2};
  ExpectFault(launch, Fault::kRace, {"block (0, 2, 1)"}, [](ExecutorTile& tile) {
    const auto memory = Written(tile);
    if (tile.y() == 2 && tile.z() == 1) memory.Set(3, 2.0f);
  });
}

// The two accesses overlap only in part.
TEST(Faults, RaceOfPartOfAVector) {
  ExpectFault(kOneWarp, Fault::kRace, {"thread 5 ", "reads byte 28 ", "thread 3 wrote"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 3) memory.Set(7, 2.0f);
                tile.Shuffle(0u, 0);
                if (tile.lane() == 5) memory.Load<Vector16>(4);
              });
}

TEST(Faults, LoadMatrixWithoutBarrier) {
  for (const bool transposed : {false, true}) {
    ExpectFault(kOneWarp, Fault::kRace, {"reads byte", "wrote"}, [=](ExecutorTile& tile) {
      const auto memory = tile.Shared<BFloat16>(0, 256);
      memory.Store(tile.lane() * 8, Vector16{});
      uint32_t r[4];
      if (transposed) {
        tile.LoadMatrixTransposed(r, memory, tile.lane() * 8);
      } else {
        tile.LoadMatrix(r, memory, tile.lane() * 8);
      }
    });
  }
}

TEST(Faults, OutOfBounds) {
  // The access is inside of the block's memory but outside of the array.
  ExpectFault(kOneWarp, Fault::kBounds, {"thread 31 ", "writes bytes 156 to 160", "32 to 156"},
              [](ExecutorTile& tile) { tile.Shared<float>(32, 31).Set(tile.thread(), 0.0f); });
  ExpectFault(kOneWarp, Fault::kBounds, {"thread 9 ", "reads bytes"}, [](ExecutorTile& tile) {
    const auto memory = Written(tile);
    if (tile.lane() == 9) memory.Load<Vector16>(64);
  });
  ExpectFault(kOneWarp, Fault::kBounds, {"bytes 512 to 1028", "1024 bytes"},
              [](ExecutorTile& tile) { tile.Shared<float>(512, 129); });
  ExpectFault(kOneWarp, Fault::kBounds, {"thread 2 ", "copies to"}, [](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 62);
    if (tile.lane() == 2) tile.CopyAsync(memory, 60, static_cast<const float*>(nullptr), false);
  });
  ExpectFault(kOneWarp, Fault::kBounds, {"thread 31 ", "loads"}, [](ExecutorTile& tile) {
    uint32_t r[4];
    tile.LoadMatrix(r, tile.Shared<BFloat16>(0, 255), tile.lane() * 8);
  });
  ExpectFault(kOneWarp, Fault::kBounds, {"lane 32"},
              [](ExecutorTile& tile) { tile.Shuffle(0u, 32); });
}

TEST(Faults, Misaligned) {
  ExpectFault(kOneWarp, Fault::kAlignment, {"thread 1 ", "byte 4 ", "aligned to 16"},
              [](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.lane() == 1) memory.Load<Vector16>(1);
              });
  ExpectFault(kOneWarp, Fault::kAlignment, {"array at byte 6", "aligned to 4"},
              [](ExecutorTile& tile) { tile.Shared<float>(6, 1); });
  ExpectFault(kOneWarp, Fault::kAlignment, {"thread 2 ", "copies to byte 8"},
              [](ExecutorTile& tile) {
                const auto memory = tile.Shared<float>(0, 64);
                if (tile.lane() == 2) {
                  tile.CopyAsync(memory, 2, static_cast<const float*>(nullptr), false);
                }
              });
  alignas(16) const float global[8] = {};
  ExpectFault(kOneWarp, Fault::kAlignment, {"global memory"}, [&](ExecutorTile& tile) {
    tile.CopyAsync(tile.Shared<float>(0, 4), 0, global + 1, true);
  });
  ExpectFault(kOneWarp, Fault::kAlignment, {"thread 31 ", "loads byte 504"},
              [](ExecutorTile& tile) {
                uint32_t r[4];
                tile.LoadMatrix(r, tile.Shared<BFloat16>(0, 512),
                                tile.lane() == 31 ? 252 : tile.lane() * 8);
              });
}

TEST(Faults, Uninitialized) {
  ExpectFault(kOneWarp, Fault::kUninitialized, {"thread 30 ", "reads byte 120 "},
              [](ExecutorTile& tile) {
                const auto memory = tile.Shared<float>(0, 64);
                if (tile.lane() != 30) memory.Set(tile.lane(), 1.0f);
                memory.Get(tile.lane());
              });
  // Writes of an earlier block do not count.
  TileLaunch launch = kOneWarp;
  launch.blocks = {2, 1, 1};
  unsigned blocks = 0;
  ExpectFault(launch, Fault::kUninitialized, {}, [&](ExecutorTile& tile) {
    const auto memory = tile.Shared<float>(0, 64);
    if (tile.thread() == 0) ++blocks;
    tile.Barrier();
    if (blocks % 2 == 1) memory.Set(tile.lane(), 1.0f);
    memory.Get(tile.lane());
  });
  EXPECT_EQ(blocks, 2 * std::size(kOrders));
}

TEST(Faults, DivergentBarriers) {
  // One warp does not reach the barrier.
  ExpectFault(kTwoWarps, Fault::kDivergence, {"Barrier", "end"}, [](ExecutorTile& tile) {
    if (tile.warp() == 0) tile.Barrier();
  });
  // One lane waits at a WarpBarrier, the others at a Barrier.
  ExpectFault(kTwoWarps, Fault::kDivergence, {"WarpBarrier", "waits at Barrier"},
              [](ExecutorTile& tile) {
                if (tile.thread() == 8) tile.WarpBarrier();
                tile.Barrier();
              });
  // Threads wait at the same operation in two places.
  ExpectFault(kOneWarp, Fault::kDivergence, {"waits at Barrier", "but thread"},
              [](ExecutorTile& tile) {
                if (tile.thread() < 8) {
                  tile.Barrier();
                } else {
                  tile.Barrier();
                }
              });
  ExpectFault(kOneWarp, Fault::kDivergence, {"Shuffle", "Multiply"}, [](ExecutorTile& tile) {
    float d[4] = {};
    if (tile.thread() == 5) {
      tile.Shuffle(1.0f, 0);
    } else {
      tile.Multiply(d, {0, 0, 0, 0}, {0, 0});
    }
  });
}

TEST(Faults, ThreadThatLeavesEarly) {
  ExpectFault(kTwoWarps, Fault::kDivergence, {"thread 20", "end", "Barrier"},
              [](ExecutorTile& tile) {
                if (tile.thread() == 20) return;
                tile.Barrier();
              });
  ExpectFault(kTwoWarps, Fault::kDivergence, {"thread 20", "end", "Shuffle"},
              [](ExecutorTile& tile) {
                if (tile.thread() == 20) return;
                tile.ShuffleXor(1.0f, 1);
              });
}

// Each thread copies 16 bytes; `between` runs before the wait.
template <typename Between>
void Copies(ExecutorTile& tile, const float* from, const Between& between) {
  const auto memory = tile.Shared<float>(0, 128);
  tile.CopyAsync(memory, tile.thread() * 4, from, true);
  tile.CopyCommit();
  between(memory);
  tile.template CopyWait<0>();
}

TEST(Faults, Copies) {
  alignas(16) const float global[4] = {1, 2, 3, 4};
  ExpectFault(kOneWarp, Fault::kCopy, {"thread 7 ", "reads byte 112 ", "CopyAsync of thread 7"},
              [&](ExecutorTile& tile) {
                Copies(tile, global, [&](const auto& memory) {
                  if (tile.thread() == 7) memory.Get(28);
                });
              });
  // A barrier does not wait for copies.
  ExpectFault(kOneWarp, Fault::kCopy, {"thread 7 ", "writes byte 96 ", "CopyAsync of thread 6"},
              [&](ExecutorTile& tile) {
                Copies(tile, global, [&](const auto& memory) {
                  tile.Barrier();
                  if (tile.thread() == 7) memory.Set(24, 1.0f);
                  tile.Barrier();
                });
              });
  // CopyWait() waits only for the copies of its own thread.
  ExpectFault(kOneWarp, Fault::kRace, {"thread 7 ", "reads byte 96 ", "thread 6 wrote"},
              [&](ExecutorTile& tile) {
                Copies(tile, global, [](const auto&) {});
                tile.Shuffle(0u, 0);
                if (tile.thread() == 7) tile.Shared<float>(0, 128).Get(24);
              });
  // Another thread has read the target of the copy.
  ExpectFault(kOneWarp, Fault::kRace, {"thread 7 ", "copies to byte 112 ", "thread 3 read"},
              [&](ExecutorTile& tile) {
                const auto memory = Written(tile);
                if (tile.thread() == 3) memory.Get(28);
                tile.Shuffle(0u, 0);
                if (tile.thread() == 7) tile.CopyAsync(memory, 28, global, true);
                tile.CopyCommit();
                tile.CopyWait<0>();
              });
  // CopyWait<2>() waits for the first of three groups; the second may still be under way.
  ExpectFault(kOneWarp, Fault::kCopy, {"thread 0 ", "reads byte 16 "}, [&](ExecutorTile& tile) {
    if (tile.thread() > 0) return;
    const auto memory = tile.Shared<float>(0, 128);
    for (unsigned i = 0; i < 3; ++i) {
      tile.CopyAsync(memory, i * 4, global, true);
      tile.CopyCommit();
    }
    tile.CopyWait<2>();
    EXPECT_EQ(memory.Get(3), 4.0f);
    memory.Get(4);
  });
  ExpectFault(kOneWarp, Fault::kCopy, {"thread 4 ", "ends without waiting", "byte 0 "},
              [&](ExecutorTile& tile) {
                if (tile.thread() != 4) return;
                tile.CopyAsync(tile.Shared<float>(0, 4), 0, global, true);
                tile.CopyWait<0>();  // does not wait for uncommitted copies
              });
}

}  // namespace
}  // namespace linnet::kernels::cuda
