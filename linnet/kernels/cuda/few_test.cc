// The tile programs of few.h step a network of two layers on the executor. Plain loops give the
// expected outputs.
#include "linnet/kernels/cuda/few.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/cuda/few_tile.h"
#include "linnet/kernels/cuda/tile_executor.h"
#include "linnet/kernels/linear_step_ref.h"
#include "linnet/rng.h"

namespace linnet::kernels::cuda {
namespace {

using Doubles = std::vector<double>;

constexpr unsigned kBatch = 2, kHeads = 3, kDim = 8, kValues = 16, kWidth = 40, kHidden = 40;
constexpr unsigned kSlice = 16, kSlices = 3, kMixtures = 3, kOutputs = 9, kLayers = 2;

template <typename T>
class Network {
 public:
  explicit Network(bool norm_first) : norm_first_(norm_first) {
    for (Layer& layer : layers_) {
      layer.project = Random<T>(kHeads * (2 * kDim + kValues) * kWidth, 0.3f);
      layer.project_bias = Random<T>(kHeads * (2 * kDim + kValues), 1);
      layer.merge = Random<T>(kWidth * kHeads * kValues, 0.3f);
      layer.merge_bias = Random<T>(kWidth, 1);
      layer.up = Random<T>(kHidden * kWidth, 0.3f), layer.up_bias = Random<T>(kHidden, 1);
      layer.down = Random<T>(kWidth * kHidden, 0.3f), layer.down_bias = Random<T>(kWidth, 1);
      for (AlignedBuffer<float>* norm : {&layer.norm1, &layer.norm2}) {
        *norm = Random<float>(2 * kWidth, 1);
      }
      layer.refs.assign(kBatch * kHeads, LinearStepRef(kDim, kValues, Options(), kNarrow));
      layer.states = AlignedBuffer<float>(kBatch * Stride());
    }
  }

  // Steps on the executor and in plain loops. Returns the largest difference between the outputs.
  double Step(unsigned position) {
    for (unsigned n = 0; n < kBatch; ++n) {
      tokens_[position * kBatch + n] = static_cast<int32_t>((position * 7 + n * 3) % 11);
    }
    control_.next_position = position;
    OnExecutor(position);
    EXPECT_EQ(control_.position, position);
    EXPECT_EQ(control_.next_position, position + 1);
    double worst = 0;
    for (unsigned n = 0; n < kBatch; ++n) {
      const Doubles want = Outputs(position, n);
      for (unsigned o = 0; o < kOutputs; ++o) {
        worst = std::max(worst, std::abs(want[o] - outputs_[n * kOutputs + o]));
      }
    }
    return worst;
  }

 private:
  static constexpr bool kNarrow = std::is_same_v<T, BFloat16>;

  struct Layer {
    AlignedBuffer<T> project, project_bias, merge, merge_bias, up, up_bias, down, down_bias;
    AlignedBuffer<float> norm1, norm2;  // each: weights, then biases
    AlignedBuffer<float> states;
    std::vector<LinearStepRef> refs;
  };

  static CausalLinearOptions Options() { return {FeatureMap::kElu, true, 1e-6f}; }
  static LinearStepShape Shape() {
    return {.heads = kHeads, .dim = kDim, .value_dim = kValues, .narrow = kNarrow};
  }
  static size_t Stride() { return Shape().HotFloats() + Shape().ColdFloats(); }

  template <typename U>
  AlignedBuffer<U> Random(size_t size, float scale) {
    AlignedBuffer<U> values(size);
    for (U& value : values) StoreAs(&value, 0, scale * rng_.Normal());
    return values;
  }

  void OnExecutor(unsigned seed) {
    const auto run = [&](unsigned groups, unsigned shared,
                         const std::function<void(ExecutorTile&)>& program) {
      RunTiles({.blocks = {groups, kBatch, 1},
                .threads = kFewThreads,
                .shared_bytes = shared,
                .seed = seed},
               program);
    };
    const auto wait = [] {};
    FewInput<T> input{.embeds = true,
                      .embed = {.control = &control_,
                                .batch = kBatch,
                                .d_model = kWidth,
                                .tokens = tokens_.data(),
                                .values = values_.data(),
                                .value_width = 24,
                                .positions = positions_.data(),
                                .position_width = 16,
                                .position_begin = 24},
                      .batch = kBatch,
                      .d_model = kWidth,
                      .norm_first = norm_first_,
                      .eps = 1e-5f};
    const auto norm = [&](const AlignedBuffer<float>& of) {
      input.weight = of.data(), input.norm_bias = of.data() + kWidth;
    };
    for (unsigned l = 0; l < kLayers; ++l) {
      Layer& layer = layers_[l];
      if (norm_first_ || l > 0) norm(norm_first_ ? layer.norm1 : layers_[l - 1].norm2);
      input.x_next = x_[0].data();
      const FewAttendArgs<T> attend{.input = input,
                                    .step = {.control = &control_,
                                             .batch = kBatch,
                                             .heads = kHeads,
                                             .dim = kDim,
                                             .value_dim = kValues,
                                             .eps = 1e-6f,
                                             .states = layer.states.data(),
                                             .state_stride = Stride()},
                                    .project = layer.project.data(),
                                    .project_bias = layer.project_bias.data(),
                                    .merge = layer.merge.data(),
                                    .sums = sums_[0].data()};
      run(kHeads, FewAttendShared<T>(kDim, kValues, kStepPad, kWidth),
          [&](ExecutorTile& tile) { FewAttendTile<T, 1>(tile, attend, wait); });
      input.embeds = false;
      input.x = x_[0].data(), input.sums = sums_[0].data(), input.groups = kHeads;
      input.bias = layer.merge_bias.data(), input.x_next = x_[1].data();
      norm(norm_first_ ? layer.norm2 : layer.norm1);
      const FewFeedForwardArgs<T> forward{.input = input,
                                          .d_ff = kHidden,
                                          .slice = kSlice,
                                          .gelu = true,
                                          .up = layer.up.data(),
                                          .up_bias = layer.up_bias.data(),
                                          .down = layer.down.data(),
                                          .sums = sums_[1].data()};
      run(kSlices, FewFeedForwardShared<T>(kSlice, kWidth),
          [&](ExecutorTile& tile) { FewFeedForwardTile<T>(tile, forward, wait); });
      input.x = x_[1].data(), input.sums = sums_[1].data(), input.groups = kSlices;
      input.bias = layer.down_bias.data();
    }
    norm(norm_first_ ? final_norm_ : layers_[kLayers - 1].norm2);
    if (!norm_first_) {
      input.next_weight = final_norm_.data(), input.next_bias = final_norm_.data() + kWidth;
    }
    input.x_next = nullptr;
    const FewHeadArgs<T> head{.input = input,
                              .weight = head_.data(),
                              .bias = head_bias_.data(),
                              .outputs = kOutputs,
                              .to = outputs_.data(),
                              .sample = {.control = &control_,
                                         .batch = kBatch,
                                         .mixtures = kMixtures,
                                         .outputs = outputs_.data(),
                                         .output_stride = kOutputs,
                                         .tokens = tokens_.data()}};
    run(1, FewHeadShared(kOutputs, kWidth),
        [&](ExecutorTile& tile) { FewHeadTile<T>(tile, head, wait); });
  }

  template <typename U>
  static Doubles Times(const AlignedBuffer<U>& weight, const AlignedBuffer<U>& bias,
                       const Doubles& x) {
    Doubles y(bias.size());
    for (size_t r = 0; r < y.size(); ++r) {
      y[r] = ToFloat(bias[r]);
      for (size_t c = 0; c < x.size(); ++c) y[r] += ToFloat(weight[r * x.size() + c]) * x[c];
    }
    return y;
  }
  static Doubles Normalized(Doubles x, const AlignedBuffer<float>& norm) {
    double mean = 0, squares = 0;
    for (const double value : x) mean += value / kWidth;
    for (const double value : x) squares += (value - mean) * (value - mean) / kWidth;
    for (unsigned c = 0; c < kWidth; ++c) {
      x[c] = (x[c] - mean) / std::sqrt(squares + 1e-5) * norm[c] + norm[kWidth + c];
    }
    return x;
  }

  Doubles Outputs(unsigned position, unsigned n) {
    const auto token = static_cast<unsigned>(tokens_[position * kBatch + n]);
    Doubles x;
    for (unsigned c = 0; c < 24; ++c) x.push_back(values_[token * 24 + c]);
    for (unsigned c = 0; c < 16; ++c) x.push_back(positions_[position * 16 + c]);
    const auto branch = [&](const AlignedBuffer<float>& norm,
                            const std::function<Doubles(const Doubles&)>& body) {
      const Doubles add = body(norm_first_ ? Normalized(x, norm) : x);
      for (unsigned c = 0; c < kWidth; ++c) x[c] += add[c];
      if (!norm_first_) x = Normalized(x, norm);
    };
    for (Layer& layer : layers_) {
      branch(layer.norm1, [&](const Doubles& y) {
        const Doubles all = Times(layer.project, layer.project_bias, y);
        Doubles merged;
        for (unsigned h = 0; h < kHeads; ++h) {
          const auto part = [&](unsigned begin, unsigned width) {
            const auto from = all.begin() + begin + h * width;
            return Doubles(from, from + width);
          };
          const Doubles out = layer.refs[n * kHeads + h].Step(
              part(0, kDim), part(kHeads * kDim, kDim), part(2 * kHeads * kDim, kValues));
          merged.insert(merged.end(), out.begin(), out.end());
        }
        return Times(layer.merge, layer.merge_bias, merged);
      });
      branch(layer.norm2, [&](const Doubles& y) {
        Doubles hidden = Times(layer.up, layer.up_bias, y);
        for (double& h : hidden) h *= (1 + std::erf(h / std::sqrt(2.0))) / 2;
        return Times(layer.down, layer.down_bias, hidden);
      });
    }
    return Times(head_, head_bias_, Normalized(x, final_norm_));
  }

  const bool norm_first_;
  Philox rng_{9};
  Layer layers_[kLayers];
  AlignedBuffer<float> values_ = Random<float>(11 * 24, 1), positions_ = Random<float>(64 * 16, 1);
  AlignedBuffer<float> final_norm_ = Random<float>(2 * kWidth, 1);
  AlignedBuffer<float> head_ = Random<float>(kOutputs * kWidth, 0.3f);
  AlignedBuffer<float> head_bias_ = Random<float>(kOutputs, 1);
  std::vector<int32_t> tokens_ = std::vector<int32_t>(64 * kBatch);
  DecodeControl control_{.recent_keys = static_cast<uint32_t>(Shape().RecentKeys()), .known = 1000};
  AlignedBuffer<float> x_[2] = {AlignedBuffer<float>(kBatch * kWidth),
                                AlignedBuffer<float>(kBatch* kWidth)};
  AlignedBuffer<float> sums_[2] = {AlignedBuffer<float>(kHeads * kBatch * kWidth),
                                   AlignedBuffer<float>(kSlices* kBatch* kWidth)};
  AlignedBuffer<float> outputs_ = AlignedBuffer<float>(kBatch * kOutputs);
};

template <typename T>
class FewTest : public testing::Test {};
using Types = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(FewTest, Types);

TYPED_TEST(FewTest, StepsLikePlainLoops) {
  for (const bool norm_first : {false, true}) {
    Network<TypeParam> network(norm_first);
    for (unsigned t = 0; t < 20; ++t) {
      // In bf16, keys and values near a rounding boundary may round to either side.
      EXPECT_LE(network.Step(t), (std::is_same_v<TypeParam, float>) ? 2e-4 : 0.1)
          << "position " << t << ", norm_first " << norm_first;
    }
  }
}

}  // namespace
}  // namespace linnet::kernels::cuda
