#include "linnet/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/larger_error.h"
#include "linnet/kernels/linear_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

struct Layer {
  size_t in, out;
  Floats weight, bias;
  AlignedBuffer<float> packed;

  Layer(size_t inputs, size_t outputs)
      : in(inputs),
        out(outputs),
        weight(Random(in * out, 1)),
        bias(Random(out, 2)),
        packed(PackedLinearSize(in, out)) {
    PackLinear(in, out, weight.data(), in, bias.data(), packed.data());
  }
};

LINNET_SUITE_ON_EACH_ISA(LinearTest);

TEST_P(LinearTest, MatchesTheReferenceOverRaggedShapes) {
  for (size_t rows : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25}) {
    for (size_t out : {1, 15, 16, 17, 30, 64, 100, 193}) {
      for (size_t in : {1, 7, 32, 100}) {
        const Layer layer(in, out);
        // Odd strides and alignments; the gaps between rows must not change.
        const size_t x_stride = in + 3, y_stride = out + 2, offset = rows % 4;
        const Floats x = Random(offset + rows * x_stride, 3);
        for (LinearMode mode : {LinearMode::kOverwrite, LinearMode::kAdd}) {
          const Floats before = Random(offset + rows * y_stride, 4);
          Floats y = before;
          Linear(rows, in, out, x.data() + offset, x_stride, layer.packed.data(), mode,
                 y.data() + offset, y_stride);
          double worst = 0;
          for (size_t i = 0; i < y.size(); ++i) {
            const size_t r = (i - offset) / y_stride, o = (i - offset) % y_stride;
            double want = before[i];
            if (i >= offset && o < out) {
              want = LinearRef(in, &x[offset + r * x_stride], &layer.weight[o * in], layer.bias[o]);
              if (mode == LinearMode::kAdd) want += before[i];
            }
            const double off = std::abs(y[i] - want);
            worst = LargerError(worst, off);
          }
          // These are fp32 sums of up to 100 products; the largest sums are near 40.
          EXPECT_LT(worst, 3e-5) << rows << " x " << in << " -> " << out;
        }
      }
    }
  }
}

// A row's bits depend neither on the other rows nor on how the outputs are split.
TEST_P(LinearTest, RowsDoNotDependOnOtherRowsOrTheSplit) {
  const size_t in = 70, out = 150, rows = 40;
  const Layer layer(in, out);
  const Floats x = Random(rows * in, 3);
  Floats alone(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    Linear(1, in, out, &x[r * in], in, layer.packed.data(), LinearMode::kOverwrite, &alone[r * out],
           out);
  }
  for (size_t count = 1; count <= rows; ++count) {
    for (size_t cut : {size_t{0}, kPanel, 3 * kPanel, 9 * kPanel}) {
      Floats y(count * out);
      Linear(count, in, cut, x.data(), in, layer.packed.data(), LinearMode::kOverwrite, y.data(),
             out);
      Linear(count, in, out - cut, x.data(), in, layer.packed.data() + PackedLinearSize(in, cut),
             LinearMode::kOverwrite, y.data() + cut, out);
      EXPECT_TRUE(std::equal(y.begin(), y.end(), alone.begin())) << count << " rows, cut " << cut;
    }
  }
}

TEST(PackLinear, TakesColumnsOfAWiderMatrix) {
  const size_t wide = 20, in = 6, from = 9, out = 18;
  const Floats weight = Random(out * wide, 1), x = Random(in, 2);
  AlignedBuffer<float> packed(PackedLinearSize(in, out));
  PackLinear(in, out, &weight[from], wide, nullptr, packed.data());
  Floats y(out);
  Linear(1, in, out, x.data(), in, packed.data(), LinearMode::kOverwrite, y.data(), out);
  for (size_t o = 0; o < out; ++o) {
    EXPECT_NEAR(y[o], LinearRef(in, x.data(), &weight[o * wide + from], 0), 1e-5);
  }
}

}  // namespace
}  // namespace linnet::kernels
