#include "linnet/kernels/narrow_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "linnet/base/larger_error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/narrow_linear_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

// A random matrix: its rounded values in double, and its packed form.
struct Layer {
  NarrowType type;
  size_t in, out;
  Floats bias;
  std::vector<double> weight;
  AlignedBuffer<std::byte> packed;

  Layer(NarrowType type, size_t in, size_t out)
      : type(type),
        in(in),
        out(out),
        bias(Random(out, 2)),
        weight(in * out),
        packed(PackedNarrowSize(type, in, out)) {
    const Floats wide = Random(in * out, 1);
    if (type == NarrowType::kBf16) {
      std::transform(wide.begin(), wide.end(), weight.begin(), RoundedToBFloat16);
      PackBf16(in, out, wide.data(), in, bias.data(), packed.data());
      return;
    }
    std::vector<int8_t> values(in * out);
    Floats scales(out);
    for (size_t o = 0; o < out; ++o) {
      scales[o] = QuantizeWeights(in, &wide[o * in], &values[o * in]);
      for (size_t k = 0; k < in; ++k) weight[o * in + k] = double{scales[o]} * values[o * in + k];
    }
    PackInt8(in, out, values.data(), in, scales.data(), bias.data(), packed.data());
  }

  double Expected(const float* x, size_t o) const {
    double sum = bias[o];
    const std::vector<double> row = type == NarrowType::kInt8 ? Int8RowRef(in, x) : Rounded(x);
    for (size_t k = 0; k < in; ++k) sum += row[k] * weight[o * in + k];
    return sum;
  }

 private:
  std::vector<double> Rounded(const float* x) const {
    std::vector<double> row(in);
    std::transform(x, x + in, row.begin(), RoundedToBFloat16);
    return row;
  }
};

struct Rows {
  AlignedBuffer<std::byte> memory;
  NarrowRows rows;

  Rows(NarrowType type, size_t count, size_t in, const float* x, size_t stride,
       const float* factor = nullptr)
      : memory(NarrowRowsSize(type, count, in)),
        rows(TakeNarrowRows(type, count, in, memory.data())) {
    std::fill(memory.begin(), memory.end(), std::byte{0x7f});  // padding must be written
    NarrowActivations(count, in, x, stride, factor, rows);
  }
};

// Every instruction set with each of its dot-product units.
struct Target {
  std::string isa;
  DotUnit unit;
};
std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    for (const DotUnit unit : AvailableDotUnits()) targets.push_back({isa, unit});
  }
  ForceIsa("");
  return targets;
}

using Parameter = std::tuple<Target, NarrowType>;

class NarrowLinearTest : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    ForceIsa(std::get<0>(GetParam()).isa);
    ForceDotUnit(std::get<0>(GetParam()).unit);
  }
  void TearDown() override {
    ForceDotUnit({});
    ForceIsa("");
  }
  NarrowType type() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Targets, NarrowLinearTest,
                         testing::Combine(testing::ValuesIn(Targets()),
                                          testing::Values(NarrowType::kBf16, NarrowType::kInt8)),
                         [](const auto& info) {
                           const Target& target = std::get<0>(info.param);
                           return TestName(target.isa) + "_" + DotUnitName(target.unit) +
                                  (std::get<1>(info.param) == NarrowType::kBf16 ? "_bf16"
                                                                                : "_int8");
                         });

TEST_P(NarrowLinearTest, MatchesTheReferenceOverRaggedShapes) {
  for (size_t rows : {1, 2, 3, 5, 6, 7, 15, 16, 17, 18, 31, 32, 33, 50, 65}) {
    for (size_t out : {1, 15, 16, 17, 30, 64, 97}) {
      for (size_t in : {1, 7, 63, 64, 65, 200}) {
        const Layer layer(type(), in, out);
        // Odd strides and alignments; the gaps between rows must not change.
        const size_t x_stride = in + 3, y_stride = out + 2, offset = rows % 4;
        const Floats x = Random(offset + rows * x_stride, 3);
        const Rows narrow(type(), rows, in, x.data() + offset, x_stride);
        for (LinearMode mode : {LinearMode::kOverwrite, LinearMode::kAdd}) {
          const Floats before = Random(offset + rows * y_stride, 4);
          Floats y = before;
          NarrowLinear(rows, in, out, narrow.rows, layer.packed.data(), mode, y.data() + offset,
                       y_stride);
          double worst = 0;
          for (size_t i = 0; i < y.size(); ++i) {
            const size_t r = (i - offset) / y_stride, o = (i - offset) % y_stride;
            double want = before[i];
            if (i >= offset && o < out) {
              want = layer.Expected(&x[offset + r * x_stride], o);
              if (mode == LinearMode::kAdd) want += before[i];
            }
            const double off = std::abs(y[i] - want);
            worst = LargerError(worst, off);
          }
          ASSERT_LT(worst, 3e-5) << rows << " x " << in << " -> " << out;
        }
      }
    }
  }
}

// A matrix that is multiplied in several chunks of its weights.
TEST_P(NarrowLinearTest, LargeMatrix) {
  const size_t in = 3000, out = 200, rows = 70;
  const Layer layer(type(), in, out);
  const Floats x = Random(rows * in, 3);
  const Rows all(type(), rows, in, x.data(), in);
  Floats y(rows * out), alone(out);
  NarrowLinear(rows, in, out, all.rows, layer.packed.data(), LinearMode::kOverwrite, y.data(), out);
  for (size_t r : {size_t{0}, size_t{31}, size_t{32}, rows - 1}) {
    const Rows one(type(), 1, in, &x[r * in], in);
    NarrowLinear(1, in, out, one.rows, layer.packed.data(), LinearMode::kOverwrite, alone.data(),
                 out);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), &y[r * out])) << "row " << r;
  }
}

// A row's bits depend neither on the other rows nor on how the outputs are split.
TEST_P(NarrowLinearTest, RowsDoNotDependOnOtherRowsOrTheSplit) {
  const size_t in = 130, out = 150, rows = 70;
  const Layer layer(type(), in, out);
  const Floats x = Random(rows * in, 3);
  Floats alone(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    const Rows one(type(), 1, in, &x[r * in], in);
    NarrowLinear(1, in, out, one.rows, layer.packed.data(), LinearMode::kOverwrite, &alone[r * out],
                 out);
  }
  for (size_t count = 1; count <= rows; ++count) {
    const Rows all(type(), count, in, x.data(), in);
    for (size_t cut : {size_t{0}, kPanel, 3 * kPanel, 9 * kPanel}) {
      Floats y(count * out);
      NarrowLinear(count, in, cut, all.rows, layer.packed.data(), LinearMode::kOverwrite, y.data(),
                   out);
      NarrowLinear(count, in, out - cut, all.rows,
                   layer.packed.data() + PackedNarrowSize(type(), in, cut), LinearMode::kOverwrite,
                   y.data() + cut, out);
      ASSERT_TRUE(std::equal(y.begin(), y.end(), alone.begin())) << count << " rows, cut " << cut;
    }
  }
}

TEST_P(NarrowLinearTest, FactorsEqualScaledInputs) {
  const size_t in = 70, rows = 5;
  const Floats x = Random(rows * in, 3);
  Floats factor(in), scaled = x;
  for (size_t k = 0; k < in; ++k) factor[k] = std::ldexp(1.0f, static_cast<int>(k % 5) - 2);
  for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= factor[i % in];
  const Rows given(type(), rows, in, x.data(), in, factor.data());
  const Rows before(type(), rows, in, scaled.data(), in);
  EXPECT_TRUE(std::equal(given.memory.begin(), given.memory.end(), before.memory.begin()));
}

TEST_P(NarrowLinearTest, RowsOfZerosOrDenormalsGiveTheBias) {
  const size_t in = 20, out = 17;
  const Layer layer(type(), in, out);
  for (const float tiny : {0.0f, FLT_TRUE_MIN, -1e-40f}) {
    const Floats x(in, tiny);
    const Rows rows(type(), 1, in, x.data(), in);
    Floats y(out);
    NarrowLinear(1, in, out, rows.rows, layer.packed.data(), LinearMode::kOverwrite, y.data(), out);
    EXPECT_EQ(y, layer.bias) << tiny;
  }
}

// int8 sums are exact, so every target but the last gives the same bits. The last one, plain code,
// has no fused multiply-add and rounds once more.
TEST(NarrowLinear, Int8GivesTheSameBitsOnEveryTarget) {
  const size_t in = 200, out = 50, rows = 20;
  const Layer layer(NarrowType::kInt8, in, out);
  const Floats x = Random(rows * in, 3);
  Floats first;
  for (const Target& target : Targets()) {
    if (target.isa == AvailableIsas().back()) continue;
    ForceIsa(target.isa);
    ForceDotUnit(target.unit);
    const Rows all(NarrowType::kInt8, rows, in, x.data(), in);
    Floats y(rows * out);
    NarrowLinear(rows, in, out, all.rows, layer.packed.data(), LinearMode::kOverwrite, y.data(),
                 out);
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << target.isa << " " << DotUnitName(target.unit);
  }
  ForceDotUnit({});
  ForceIsa("");
}

TEST(NarrowLinear, LargestInt8SumsAreExact) {
  const size_t in = kMostInt8Inputs, out = 16;
  const Floats ones(out, 1.0f);
  AlignedBuffer<std::byte> packed(PackedNarrowSize(NarrowType::kInt8, in, out));
  for (const int8_t weight : {-127, 127}) {
    const std::vector<int8_t> weights(in * out, weight);
    PackInt8(in, out, weights.data(), in, ones.data(), nullptr, packed.data());
    for (const float input : {-127.0f, 127.0f}) {
      const Floats x(in, input);
      for (const Target& target : Targets()) {
        ForceIsa(target.isa);
        ForceDotUnit(target.unit);
        const Rows rows(NarrowType::kInt8, 1, in, x.data(), in);
        Floats y(out);
        NarrowLinear(1, in, out, rows.rows, packed.data(), LinearMode::kOverwrite, y.data(), out);
        for (float value : y) EXPECT_EQ(value, input * weight * in) << target.isa;
      }
    }
  }
  ForceDotUnit({});
  ForceIsa("");
}

// Memory for rows suits every unit, and RowsFrom() finds rows in the active unit's form.
TEST(NarrowLinear, RowsSuitAUnitThatIsChosenLater) {
  const size_t count = 5, from = 2, in = 70, out = 20;
  const Floats x = Random(count * in, 5);
  for (const NarrowType type : {NarrowType::kBf16, NarrowType::kInt8}) {
    const Layer layer(type, in, out);
    const size_t size = NarrowRowsSize(type, count, in);
    AlignedBuffer<std::byte> memory(size);
    const NarrowRows rows = TakeNarrowRows(type, count, in, memory.data());
    for (const Target& target : Targets()) {
      ForceIsa(target.isa);
      ForceDotUnit(target.unit);
      EXPECT_EQ(NarrowRowsSize(type, count, in), size) << target.isa;
      NarrowActivations(count, in, x.data(), in, nullptr, rows);
      Floats all(count * out), part((count - from) * out);
      NarrowLinear(count, in, out, rows, layer.packed.data(), LinearMode::kOverwrite, all.data(),
                   out);
      NarrowLinear(count - from, in, out, RowsFrom(rows, from, in), layer.packed.data(),
                   LinearMode::kOverwrite, part.data(), out);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + from * out)) << target.isa;
      EXPECT_NEAR(all[0], layer.Expected(x.data(), 0), 1e-3) << target.isa;
    }
    ForceDotUnit({});
    ForceIsa("");
  }
}

// An infinity or NaN makes a row's results NaN wherever in the row it stands: in any lane of a
// vector, or behind the last whole vector.
TEST(Int8Activations, NonFiniteRowsGiveNaN) {
  const size_t in = 67, out = 20;
  std::vector<int8_t> weight(in * out, 1);
  const Floats scales(out, 1);
  AlignedBuffer<std::byte> packed(PackedNarrowSize(NarrowType::kInt8, in, out));
  PackInt8(in, out, weight.data(), in, scales.data(), nullptr, packed.data());
  for (const Target& target : Targets()) {
    ForceIsa(target.isa);
    ForceDotUnit(target.unit);
    for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (size_t at = 0; at < in; ++at) {
        Floats x(in, 0.5f), y(out);
        x[at] = odd;
        const Rows rows(NarrowType::kInt8, 1, in, x.data(), in);
        NarrowLinear(1, in, out, rows.rows, packed.data(), LinearMode::kOverwrite, y.data(), out);
        for (float value : y) EXPECT_TRUE(std::isnan(value)) << target.isa << " at " << at;
      }
    }
  }
  ForceDotUnit({});
  ForceIsa("");
}

TEST(PackNarrow, TakesColumnsOfAWiderMatrix) {
  const size_t wide = 100, in = 37, from = 9, out = 18;
  const Floats weight = Random(out * wide, 1), x = Random(in, 2);
  AlignedBuffer<std::byte> packed(PackedNarrowSize(NarrowType::kBf16, in, out));
  PackBf16(in, out, &weight[from], wide, nullptr, packed.data());
  const Rows rows(NarrowType::kBf16, 1, in, x.data(), in);
  Floats y(out);
  NarrowLinear(1, in, out, rows.rows, packed.data(), LinearMode::kOverwrite, y.data(), out);
  for (size_t o = 0; o < out; ++o) {
    double want = 0;
    for (size_t k = 0; k < in; ++k) {
      want += RoundedToBFloat16(x[k]) * RoundedToBFloat16(weight[o * wide + from + k]);
    }
    EXPECT_NEAR(y[o], want, 1e-5);
  }
}

TEST(QuantizeWeights, RoundsToNearestAndIsIdempotent) {
  for (uint64_t stream = 0; stream < 50; ++stream) {
    const size_t n = 1 + stream * 3;
    Floats weight = Random(n, 10 + stream);
    for (float& w : weight) w *= std::ldexp(1.0f, static_cast<int>(stream) - 25);
    std::vector<int8_t> values(n), again(n);
    const float scale = QuantizeWeights(n, weight.data(), values.data());
    Floats back(n);
    for (size_t i = 0; i < n; ++i) {
      back[i] = scale * values[i];
      EXPECT_LE(std::abs(back[i] - weight[i]), 0.5001f * scale);
    }
    EXPECT_EQ(QuantizeWeights(n, back.data(), again.data()), scale);
    EXPECT_EQ(again, values);
  }
}

TEST(QuantizeWeights, ZeroTinyAndNonFiniteWeightsGiveZero) {
  for (const float odd : {0.0f, 1e-42f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const Floats weight = {0, odd, 0};
    std::vector<int8_t> values(3, 9);
    EXPECT_EQ(QuantizeWeights(3, weight.data(), values.data()), 0.0f) << odd;
    EXPECT_EQ(values, std::vector<int8_t>(3));
  }
  const Floats large = {FLT_MAX, -FLT_MAX, 1};
  std::vector<int8_t> values(3);
  const float scale = QuantizeWeights(3, large.data(), values.data());
  EXPECT_TRUE(std::isfinite(scale * 127));
  EXPECT_EQ(values, (std::vector<int8_t>{127, -127, 0}));
}

}  // namespace
}  // namespace linnet::kernels
