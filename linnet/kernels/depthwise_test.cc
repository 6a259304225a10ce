#include "linnet/kernels/depthwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/base/thread_pool.h"
#include "linnet/kernels/depthwise_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(DepthwiseTest);

const std::vector<DepthwiseShape>& Shapes() {
  static const std::vector<DepthwiseShape> shapes = {
      {1, 1, 1, 1, 0},    {1, 1, 5, 7, 3},  {2, 3, 17, 7, 3},   {3, 9, 33, 5, 4},
      {2, 40, 48, 15, 7}, {2, 23, 7, 4, 0}, {1, 8, 16, 31, 15}, {2, 17, 20, 3, 2},
  };
  return shapes;
}

// The first sequence has full length. The others are shorter, and some are empty.
std::vector<int64_t> Lengths(const DepthwiseShape& shape) {
  std::vector<int64_t> lengths;
  for (size_t n = 0; n < shape.batch; ++n) {
    lengths.push_back(static_cast<int64_t>(n == 0 ? shape.length : shape.length / (2 * n) % 5));
  }
  return lengths;
}

TEST_P(DepthwiseTest, MatchesTheReference) {
  for (const DepthwiseShape& shape : Shapes()) {
    const size_t size = shape.batch * shape.length * shape.channels;
    std::vector<float> x = Random(size, 1);
    const std::vector<float> w = Random(shape.width * shape.channels, 2);
    const std::vector<float> b = Random(shape.channels, 3);
    const std::vector<int64_t> lengths = Lengths(shape);
    for (const int64_t* counted : {static_cast<const int64_t*>(nullptr), lengths.data()}) {
      std::vector<float> out(size, NAN);
      DepthwiseForward(shape, {x.data(), w.data(), b.data(), out.data(), counted}, SerialFor);
      const std::vector<double> want =
          DepthwiseRef(shape, Wide(x).data(), Wide(w).data(), Wide(b).data(), counted);
      for (size_t i = 0; i < size; ++i) ASSERT_NEAR(out[i], want[i], 3e-6) << i;
    }
  }
}

TEST_P(DepthwiseTest, ComputesFromTheFirstPositionGiven) {
  DepthwiseShape shape{2, 23, 20, 7, 6};
  const size_t size = shape.batch * shape.length * shape.channels;
  const std::vector<float> x = Random(size, 1), w = Random(140, 2), b = Random(20, 3);
  std::vector<float> all(size), some(size, 5.0f);
  DepthwiseForward(shape, {x.data(), w.data(), b.data(), all.data()}, SerialFor);
  shape.first = 6;
  DepthwiseForward(shape, {x.data(), w.data(), b.data(), some.data()}, SerialFor);
  for (size_t i = 0; i < size; ++i) {
    ASSERT_EQ(some[i], i / 20 % 23 < 6 ? 5.0f : all[i]) << i;
  }
}

// Compares the gradients of sum(out * g) with central differences of the reference, for a sample of
// the elements of each input.
TEST_P(DepthwiseTest, GradientsMatchDifferencesOfTheReference) {
  for (const DepthwiseShape& shape : Shapes()) {
    const size_t size = shape.batch * shape.length * shape.channels;
    const std::vector<float> x = Random(size, 1), w = Random(shape.width * shape.channels, 2);
    const std::vector<float> b = Random(shape.channels, 3), g = Random(size, 4);
    const std::vector<int64_t> lengths = Lengths(shape);
    std::vector<float> grad_x(size, NAN), grad_w(w.size(), NAN), grad_b(b.size(), NAN);
    DepthwiseBackward(
        shape,
        {x.data(), w.data(), g.data(), grad_x.data(), grad_w.data(), grad_b.data(), lengths.data()},
        SerialFor);
    std::vector<double> parts[3] = {Wide(x), Wide(w), Wide(b)};
    const std::vector<float>* grads[3] = {&grad_x, &grad_w, &grad_b};
    const auto loss = [&] {
      const std::vector<double> out =
          DepthwiseRef(shape, parts[0].data(), parts[1].data(), parts[2].data(), lengths.data());
      double sum = 0;
      for (size_t i = 0; i < size; ++i) sum += out[i] * g[i];
      return sum;
    };
    for (int part = 0; part < 3; ++part) {
      for (size_t i = 0; i < parts[part].size(); i += 1 + parts[part].size() / 60) {
        double& at = parts[part][i];
        const double before = at;
        // The loss is linear in each input, so a difference over a large step is exact.
        at = before + 0.5;
        const double up = loss();
        at = before - 0.5;
        const double down = loss();
        at = before;
        ASSERT_NEAR((*grads[part])[i], up - down, 2e-5) << part << " " << i;
      }
    }
  }
}

TEST_P(DepthwiseTest, ResultsDoNotDependOnThreads) {
  const DepthwiseShape shape{2, 29, 100, 7, 3};
  const size_t size = shape.batch * shape.length * shape.channels;
  const std::vector<float> x = Random(size, 1), w = Random(700, 2), b = Random(100, 3);
  ThreadPool pool(3);
  const auto parallel = [&](size_t count, RangeBody body) { pool.For(count, body); };
  std::vector<float> one(size), many(size), one_w(700), many_w(700), grad_b(100);
  DepthwiseForward(shape, {x.data(), w.data(), b.data(), one.data()}, SerialFor);
  DepthwiseForward(shape, {x.data(), w.data(), b.data(), many.data()}, parallel);
  EXPECT_EQ(one, many);
  DepthwiseBackward(shape, {x.data(), w.data(), x.data(), one.data(), one_w.data(), grad_b.data()},
                    SerialFor);
  DepthwiseBackward(
      shape, {x.data(), w.data(), x.data(), many.data(), many_w.data(), grad_b.data()}, parallel);
  EXPECT_EQ(one, many);
  EXPECT_EQ(one_w, many_w);
}

TEST_P(DepthwiseTest, OneRowMatchesItsFormula) {
  for (size_t channels = 1; channels < 40; ++channels) {
    for (const size_t width : {0, 1, 4}) {
      const size_t stride = channels + 3, x_stride = channels + 2;
      const Floats x = Random(width * x_stride, 1), weight = Random(width * stride, 2);
      const Floats bias = Random(channels, 3);
      Floats out(channels + 1, 7.0f), sum = out, added = bias;
      const auto run = [&](const float* start, float* to) {
        DepthwiseRow({width, channels, x.data(), x_stride, weight.data(), stride, start, to});
      };
      run(nullptr, out.data());
      run(bias.data(), sum.data());
      run(added.data(), added.data());
      for (size_t c = 0; c < channels; ++c) {
        double want = 0;
        for (size_t j = 0; j < width; ++j) {
          want += static_cast<double>(weight[j * stride + c]) * x[j * x_stride + c];
        }
        ASSERT_NEAR(out[c], want, 3e-6) << c << " of " << channels;
        ASSERT_NEAR(sum[c], want + bias[c], 3e-6) << c << " of " << channels;
        ASSERT_EQ(added[c], sum[c]);
      }
      ASSERT_EQ(out[channels], 7.0f);
      ASSERT_EQ(sum[channels], 7.0f);
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
