// The tile programs of a step of generation run on the executor and are compared with plain loops
// and with the CPU's kernels.
#include "linnet/kernels/cuda/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/cuda/linear_step_tile.h"
#include "linnet/kernels/cuda/recent_keys.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/sample_tile.h"
#include "linnet/kernels/cuda/test_util.h"
#include "linnet/kernels/cuda/tile_executor.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/linear_step_ref.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {
namespace {

template <typename T>
double Epsilon() {
  return std::is_same_v<T, float> ? 0x1p-23 : 0x1p-8;
}

template <typename T>
class DecodeTest : public testing::Test {};
using Types = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(DecodeTest, Types);

template <typename T>
void RunLinearStep(const DecodeStepArgs& args, unsigned warps, uint64_t seed) {
  const unsigned padded = PaddedWidth(args.dim);
  const TileLaunch launch{
      .blocks = {(args.batch * args.heads + warps - 1) / warps, 1, 1},
      .threads = warps * kWarp,
      .shared_bytes = warps * LinearStepShared<T>(padded, PaddedWidth(args.value_dim)),
      .seed = seed};
  RunTiles(launch, [&](ExecutorTile& tile) {
    if (padded == kStepPad) {
      LinearStepTile<T, 1>(tile, args);
    } else if (padded == 2 * kStepPad) {
      LinearStepTile<T, 2>(tile, args);
    } else if (padded == 3 * kStepPad) {
      LinearStepTile<T, 3>(tile, args);
    } else {
      LinearStepTile<T, 4>(tile, args);
    }
  });
}

// Eleven steps of the tile program and eleven of the CPU's kernel alternate over the same states;
// all must match the reference.
TYPED_TEST(DecodeTest, LinearStepSharesItsStatesWithTheCpu) {
  using T = TypeParam;
  constexpr bool kNarrow = std::is_same_v<T, BFloat16>;
  for (const auto& [heads, dim, value_dim] :
       {std::tuple{3u, 5u, 7u}, {2u, 32u, 32u}, {1u, 40u, 33u}, {1u, 72u, 44u}, {2u, 100u, 64u}}) {
    SCOPED_TRACE(testing::Message() << heads << " heads of " << dim << " and " << value_dim);
    const unsigned batch = 3, steps = 60;
    const LinearStepShape shape{
        .heads = heads, .dim = dim, .value_dim = value_dim, .narrow = kNarrow};
    const size_t stride = shape.HotFloats() + shape.ColdFloats() + 32;
    AlignedBuffer<float> states(batch * stride);
    const CausalLinearOptions options{FeatureMap::kElu, true, 1e-6f};
    std::vector<LinearStepRef> refs(size_t{batch} * heads,
                                    LinearStepRef(dim, value_dim, options, kNarrow));
    DecodeControl control{.recent_keys = static_cast<uint32_t>(shape.RecentKeys())};
    const unsigned width = heads * (2 * dim + value_dim);
    std::vector<uint8_t> waiting(batch);
    AlignedBuffer<float> scratch(shape.ScratchFloats());
    double worst = 0;
    for (unsigned t = 0; t < steps; ++t) {
      const auto in = Random<T>(size_t{batch} * width, t);
      AlignedBuffer<float> wide(in.size()), out(size_t{batch} * heads * value_dim);
      for (size_t i = 0; i < in.size(); ++i) wide[i] = ToFloat(in[i]);
      control.waiting = waiting[0];
      const bool on_cpu = t / 11 % 2 == 1;
      if (on_cpu) {
        for (unsigned n = 0; n < batch && t % 11 == 0; ++n) {
          SumRecentKeys(shape, waiting[0], &states[n * stride]);
        }
        const auto rows = [&](size_t at, size_t each) {
          return Strided<const float>{wide.data() + at, static_cast<ptrdiff_t>(width), 0,
                                      static_cast<ptrdiff_t>(each)};
        };
        LinearStep(shape, batch, options,
                   {.heads = {0, heads},
                    .q = rows(0, dim),
                    .k = rows(size_t{heads} * dim, dim),
                    .v = rows(2 * size_t{heads} * dim, value_dim),
                    .out = {out.data(), static_cast<ptrdiff_t>(heads * value_dim), 0,
                            static_cast<ptrdiff_t>(value_dim)},
                    .hot = states.data(),
                    .cold = states.data() + shape.HotFloats(),
                    .state_stride = static_cast<ptrdiff_t>(stride),
                    .recent = waiting.data(),
                    .scratch = scratch.data()});
      } else {
        AlignedBuffer<T> narrow(out.size());
        RunLinearStep<T>({.control = &control,
                          .batch = batch,
                          .heads = heads,
                          .dim = dim,
                          .value_dim = value_dim,
                          .eps = 1e-6f,
                          .in = in.data(),
                          .in_stride = width,
                          .states = states.data(),
                          .state_stride = stride,
                          .out = narrow.data()},
                         /*warps=*/2, /*seed=*/t % 3);
        for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(narrow[i]);
      }
      for (uint8_t& w : waiting) w = shape.NextRecent(w);
      for (unsigned i = 0; i < batch * heads; ++i) {
        const float* row = wide.data() + i / heads * width;
        const float *q = row + i % heads * dim, *k = q + heads * dim;
        const float* v = row + 2 * heads * dim + i % heads * value_dim;
        const auto want = refs[i].Step({q, q + dim}, {k, k + dim}, {v, v + value_dim});
        for (unsigned m = 0; m < value_dim; ++m) {
          worst = std::max(
              worst, std::abs(out[i * value_dim + m] - want[m]) / std::max(1.0, std::abs(want[m])));
        }
      }
    }
    EXPECT_LE(worst, kNarrow ? 2 * Epsilon<T>() : 2e-6);
    // The sums, leading part plus remainder, keep their precision.
    for (unsigned n = 0; n < batch; ++n) {
      std::vector<float> s(size_t{heads} * dim * value_dim), z(size_t{heads} * dim);
      LinearSums(shape, {0, heads}, &states[n * stride], &states[n * stride + shape.HotFloats()],
                 s.data(), z.data());
      for (unsigned h = 0; h < heads; ++h) {
        const LinearStepRef& ref = refs[n * heads + h];
        for (size_t i = 0; i < ref.S().size(); ++i) {
          EXPECT_NEAR(s[h * ref.S().size() + i], ref.S()[i],
                      4e-6 * std::max(1.0, std::abs(ref.S()[i])) + (kNarrow ? 2e-2 : 0));
        }
        for (size_t f = 0; f < dim; ++f) {
          EXPECT_NEAR(z[h * dim + f], ref.Z()[f],
                      4e-6 * std::abs(ref.Z()[f]) + (kNarrow ? 2e-2 : 0));
        }
      }
    }
  }
}

TYPED_TEST(DecodeTest, NormAddsABranchAndNormalizes) {
  using T = TypeParam;
  const unsigned batch = 5;
  for (const unsigned d : {24u, 128u, 200u, 392u, 1024u}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool first = kind % 2 == 1, next = kind >= 2;
      SCOPED_TRACE(testing::Message() << d << " columns, kind " << kind);
      AlignedBuffer<float> x = Random<float>(batch * d, 1);
      const auto before = x.Copy();
      const auto branch = Random<T>(batch * d, 2);
      const auto weight = Random<float>(d, 3), bias = Random<float>(d, 4);
      const auto weight2 = Random<float>(d, 5), bias2 = Random<float>(d, 6);
      AlignedBuffer<T> in(batch * d);
      AlignedBuffer<float> out(batch * d);
      const NormArgs args{.batch = batch,
                          .d_model = d,
                          .norm_first = first,
                          .eps = 1e-5f,
                          .x = x.data(),
                          .branch = branch.data(),
                          .weight = weight.data(),
                          .bias = bias.data(),
                          .next_weight = next ? weight2.data() : nullptr,
                          .next_bias = next ? bias2.data() : nullptr,
                          .in = in.data(),
                          .out = out.data()};
      RunTiles({.blocks = {2, 1, 1}, .threads = kRowThreads}, [&](ExecutorTile& tile) {
        if (d <= 128) {
          NormTile<T, 1>(tile, args);
        } else if (d <= 256) {
          NormTile<T, 2>(tile, args);
        } else if (d <= 512) {
          NormTile<T, 4>(tile, args);
        } else {
          NormTile<T, 8>(tile, args);
        }
      });
      for (unsigned n = 0; n < batch; ++n) {
        std::vector<double> row(d), sum(d);
        for (unsigned c = 0; c < d; ++c) {
          row[c] = sum[c] = double{before[n * d + c]} + ToFloat(branch[n * d + c]);
        }
        const auto normalize = [&](const AlignedBuffer<float>& w, const AlignedBuffer<float>& b) {
          double mean = 0, squares = 0;
          for (const double value : row) mean += value / d;
          for (const double value : row) squares += (value - mean) * (value - mean) / d;
          for (unsigned c = 0; c < d; ++c) {
            row[c] = (row[c] - mean) / std::sqrt(squares + 1e-5) * w[c] + b[c];
          }
        };
        normalize(weight, bias);
        if (next) normalize(weight2, bias2);
        for (unsigned c = 0; c < d; ++c) {
          const size_t at = n * d + c;
          EXPECT_NEAR(x[at], first ? sum[c] : row[c], 1e-5);
          EXPECT_NEAR(out[at], row[c], 1e-5);
          EXPECT_NEAR(ToFloat(in[at]), row[c], 1e-5 + Epsilon<T>() * std::abs(row[c]));
        }
      }
    }
  }
}

TYPED_TEST(DecodeTest, EmbedReadsTheTokenAndTheOneAbove) {
  using T = TypeParam;
  const unsigned batch = 6, d = 40, vocabulary = 11, row_tokens = 4;
  for (const bool added : {false, true}) {
    const unsigned values_width = added ? d : 24;
    const unsigned positions_width = added ? d : d - values_width;
    const auto values = Random<float>(vocabulary * values_width, 1);
    const auto above = Random<float>((vocabulary + 1) * values_width, 2);
    const auto positions = Random<float>(9 * positions_width, 3);
    std::vector<int32_t> tokens(9 * batch);
    Philox rng(1);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(vocabulary));
    for (unsigned p = 0; p < 9; ++p) {
      DecodeControl control{.next_position = p, .next_waiting = 3};
      AlignedBuffer<float> x(batch * d);
      AlignedBuffer<T> in(batch * d);
      const EmbedArgs args{.control = &control,
                           .batch = batch,
                           .d_model = d,
                           .tokens = tokens.data(),
                           .values = values.data(),
                           .value_width = values_width,
                           .above = above.data(),
                           .row_tokens = row_tokens,
                           .vocabulary = vocabulary,
                           .positions = positions.data(),
                           .position_width = positions_width,
                           .position_begin = added ? 0 : values_width,
                           .x = x.data(),
                           .in = in.data()};
      RunTiles({.blocks = {2, 1, 1}, .threads = kRowThreads},
               [&](ExecutorTile& tile) { EmbedTile<T>(tile, args); });
      EXPECT_EQ(control.position, p);
      EXPECT_EQ(control.waiting, 3u);
      for (unsigned n = 0; n < batch; ++n) {
        const auto token = static_cast<unsigned>(tokens[p * batch + n]);
        const unsigned over = p + 1 < row_tokens
                                  ? vocabulary
                                  : static_cast<unsigned>(tokens[(p + 1 - row_tokens) * batch + n]);
        for (unsigned c = 0; c < d; ++c) {
          float want = 0;
          if (c < values_width) {
            want = values[token * values_width + c] + above[over * values_width + c];
          }
          const unsigned begin = added ? 0 : values_width;
          if (c >= begin) want += positions[p * positions_width + c - begin];
          EXPECT_EQ(x[n * d + c], want);
          EXPECT_EQ(ToFloat(in[n * d + c]), RoundedTo(in.data(), want));
        }
      }
    }
  }
}

TYPED_TEST(DecodeTest, Gelu) {
  using T = TypeParam;
  auto x = Random<T>(1000, 1);
  const auto before = x.Copy();
  RunTiles({.blocks = {2, 1, 1}, .threads = kRowThreads},
           [&](ExecutorTile& tile) { GeluTile(tile, x.size(), x.data()); });
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = ToFloat(before[i]);
    const double want = value * (1 + std::erf(value / std::sqrt(2.0))) / 2;
    EXPECT_NEAR(ToFloat(x[i]), want, 1e-6 + Epsilon<T>() * std::abs(want));
  }
}

TEST(SampleTest, MatchesTheCpu) {
  const unsigned batch = 200;
  for (const unsigned mixtures : {1u, 10u, 40u}) {
    for (const auto& [temperature, reference_scale] :
         {std::pair{1.0f, false}, {0.3f, false}, {1.0f, true}}) {
      const unsigned stride = 3 * mixtures + 2;
      const auto outputs = Random<float>(batch * stride, mixtures);
      std::vector<int32_t> tokens(batch * 8, -1);
      DecodeControl control{.position = 4,
                            .waiting = 7,
                            .recent_keys = 8,
                            .known = 5,
                            .seed = 0x123456789abcdef,
                            .first_stream = 0xfffffff0,
                            .temperature = temperature,
                            .reference_scale = reference_scale};
      const SampleArgs args{.control = &control,
                            .batch = batch,
                            .mixtures = mixtures,
                            .outputs = outputs.data(),
                            .output_stride = stride,
                            .tokens = tokens.data()};
      const TileLaunch launch{.blocks = {(batch + 3) / 4, 1, 1},
                              .threads = kSampleThreads,
                              .shared_bytes = 4 * mixtures * sizeof(double)};
      RunTiles(launch, [&](ExecutorTile& tile) { SampleTile(tile, args); });
      EXPECT_EQ(control.next_position, 5u);
      EXPECT_EQ(control.next_waiting, 0u);
      for (unsigned n = 0; n < batch; ++n) {
        Philox rng(control.seed, control.first_stream + n, 5);
        const float u = rng.Uniform(), v = rng.Uniform();
        EXPECT_EQ(tokens[5 * batch + n],
                  SampleMixtureOfLogistics(mixtures, &outputs[n * stride], u, v,
                                           {temperature, reference_scale}));
      }
      // Known tokens are not overwritten.
      tokens.assign(tokens.size(), 77);
      control.known = 6;
      RunTiles(launch, [&](ExecutorTile& tile) { SampleTile(tile, args); });
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 77), batch * 8);
    }
  }
}

}  // namespace
}  // namespace linnet::kernels::cuda
