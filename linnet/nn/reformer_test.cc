// Tests Reformer's LSH attention as a mixer: its hash planes, chunks and padding. The conformance
// tests compare it with its oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/error.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/test_util.h"
#include "linnet/ops/lsh_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

TEST(Reformer, HashesByAngle) {
  torch::manual_seed(8);
  const Tensor planes = Normal({2, 4, 3});
  const Tensor q = Normal({1, 50, 2, 4});
  const Tensor buckets = ops::LshBuckets(q, planes, 6);
  EXPECT_EQ(Off(ops::LshBuckets(q * 7, planes, 6), buckets), 0);
  // The opposite direction lies in the opposite bucket.
  EXPECT_EQ(Off((buckets + 3).remainder(6), ops::LshBuckets(-q, planes, 6)), 0);
  EXPECT_GT(buckets.max().item<int64_t>(), 3);
}

TEST(Reformer, DrawsNewPlanesOnlyInTraining) {
  const Mixer attention =
      MakeMixer({.kind = "reformer", .lsh_rounds = 1, .lsh_buckets = 8, .lsh_chunk = 4}, {1, 4, 4});
  const Tensor q = torch::randn({1, 64, 1, 4}), v = torch::randn({1, 64, 1, 4});
  const auto run = [&] { return attention->forward(q, q, v, Mask{}); };
  EXPECT_GT(Off(run(), run()), 0);
  attention->eval();
  EXPECT_EQ(Off(run(), run()), 0);
}

// A chunk longer than the sequence acts like a chunk of the sequence's length.
TEST(Reformer, ChunksAreNoLongerThanTheSequence) {
  for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
    const auto run = [&](int chunk) {
      torch::manual_seed(9);
      const Mixer attention = MakeMixer({.kind = "reformer",
                                         .lsh_rounds = 2,
                                         .lsh_buckets = 2,
                                         .lsh_chunk = chunk,
                                         .lsh_variant = variant},
                                        {2, 4, 5});
      attention->eval();
      const Tensor q = Normal({1, 10, 2, 4}), v = Normal({1, 10, 2, 5});
      return attention->forward(q, q, v, Mask{.causal = true});
    };
    EXPECT_TRUE(torch::equal(run(1 << 20), run(10))) << variant;
  }
}

// A position is a query and a key, so padding behind query_lengths is not a key either.
TEST(Reformer, QueriesBehindTheirLengthAreNotKeys) {
  for (const LshVariant variant : {LshVariant::kPublished, LshVariant::kSimple}) {
    const Mixer attention = MakeMixer({.kind = "reformer",
                                       .lsh_rounds = 2,
                                       .lsh_buckets = 2,
                                       .lsh_chunk = 8,
                                       .lsh_variant = variant},
                                      {2, 4, 5});
    attention->eval();
    for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
      torch::manual_seed(10);
      const Tensor q = Normal({2, 20, 2, 4}, type), v = Normal({2, 20, 2, 5}, type);
      const Tensor padded = q.clone(), queries = Lengths({13, 12});
      for (int64_t n = 0; n < 2; ++n) padded[n].slice(0, 13 - n).fill_(NAN);
      for (const bool causal : {false, true}) {
        const auto run = [&](const Tensor& in, const Tensor& keys) {
          const Mask mask{.causal = causal, .lengths = keys, .query_lengths = queries};
          return attention->forward(in, in, v, mask);
        };
        const Tensor want = run(q, queries);
        for (const Tensor& keys : {Tensor(), Lengths({20, 14})}) {
          EXPECT_TRUE(torch::equal(run(padded, keys), want)) << type << causal;
        }
      }
    }
  }
}

TEST(Reformer, RefusesPlanesThatDoNotFit) {
  const Tensor q = Normal({1, 10, 2, 4});
  const auto attend = [&](std::vector<int64_t> planes) {
    ops::LshAttention(q, q, {}, Normal(planes), {.buckets = 4, .chunk = 4});
  };
  attend({2, 4, 2});
  EXPECT_THROW(attend({2, 4, 8}), Error);
  EXPECT_THROW(attend({2, 5, 2}), Error);
  EXPECT_THROW(attend({2, 4}), Error);
}

}  // namespace
}  // namespace linnet::nn
