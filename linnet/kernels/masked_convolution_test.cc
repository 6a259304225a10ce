#include "linnet/kernels/masked_convolution.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/thread_pool.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/masked_convolution_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(MaskedConvolutionTest);

// Windows that are wider or higher than the image, that have one row or one column, whose last row
// is empty or ends within a pixel; channels that do not fill vectors.
const std::vector<MaskedConvolutionShape>& Shapes() {
  static const std::vector<MaskedConvolutionShape> shapes = {
      {1, 1, 1, 1, 1, 1, 1, 1},   {2, 5, 4, 3, 7, 2, 3, 6},      {1, 7, 9, 8, 16, 3, 5, 24},
      {2, 6, 3, 4, 5, 9, 9, 20},  {1, 5, 6, 3, 20, 4, 7, 9},     {1, 4, 5, 3, 13, 3, 1, 0},
      {3, 2, 8, 17, 33, 1, 5, 3}, {1, 2, 7, 64, 128, 3, 5, 192}, {1, 3, 4, 5, 26, 2, 3, 8},
  };
  return shapes;
}
std::string Name(const MaskedConvolutionShape& s) {
  std::string name;
  for (const size_t n :
       {s.images, s.rows, s.columns, s.in, s.out, s.window_rows, s.window_columns, s.last}) {
    name += std::to_string(n) + " ";
  }
  return name;
}

// [rows, columns, channels] -> [rows, side + columns + side, channels]
Floats Padded(const MaskedConvolutionShape& shape, size_t channels, const Floats& x) {
  Floats padded(shape.images * shape.rows * shape.PaddedRow(channels));
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / (shape.columns * channels), at = i % (shape.columns * channels);
    padded[row * shape.PaddedRow(channels) + shape.Side() * channels + at] = x[i];
  }
  return padded;
}

struct Arrays {
  explicit Arrays(const MaskedConvolutionShape& shape)
      : x(Random(shape.images * shape.rows * shape.columns * shape.in, 1)),
        weight(Random(shape.out * shape.Inputs(), 2)),
        bias(Random(shape.out, 3)),
        grad_out(Random(shape.images * shape.rows * shape.columns * shape.out, 4)) {}
  Floats x, weight, bias, grad_out;
};

struct Gradients {
  Gradients(const MaskedConvolutionShape& shape, const Arrays& in, ParallelFor parallel_for)
      : x(in.x.size(), NAN), weight(in.weight.size(), NAN), bias(in.bias.size(), NAN) {
    if (shape.last % shape.in == 0) {
      AlignedBuffer<float> scratch(MaskedConvolutionScratch(shape));
      MaskedConvolutionGradX(shape,
                             {.weight = in.weight.data(),
                              .grad_out = Padded(shape, shape.out, in.grad_out).data(),
                              .grad_x = x.data(),
                              .scratch = scratch.data()},
                             parallel_for);
    }
    MaskedConvolutionGradWeight(shape,
                                {.x = Padded(shape, shape.in, in.x).data(),
                                 .grad_out = in.grad_out.data(),
                                 .grad_weight = weight.data(),
                                 .grad_bias = bias.data()},
                                parallel_for);
  }
  Floats x, weight, bias;
};

Floats Forward(const MaskedConvolutionShape& shape, const Arrays& in, ParallelFor parallel_for) {
  Floats out(in.grad_out.size(), NAN);
  AlignedBuffer<float> scratch(MaskedConvolutionScratch(shape));
  MaskedConvolution(shape,
                    {.x = Padded(shape, shape.in, in.x).data(),
                     .weight = in.weight.data(),
                     .bias = in.bias.data(),
                     .out = out.data(),
                     .scratch = scratch.data()},
                    parallel_for);
  return out;
}

TEST_P(MaskedConvolutionTest, MatchesTheReference) {
  for (const MaskedConvolutionShape& shape : Shapes()) {
    const Arrays in(shape);
    const Floats out = Forward(shape, in, SerialFor);
    const Doubles want = MaskedConvolutionRef(shape, Wide(in.x), Wide(in.weight), Wide(in.bias));
    const double tolerance = 3e-6 * (1 + std::sqrt(static_cast<double>(shape.Inputs())));
    ASSERT_EQ(out.size(), want.size());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], want[i], tolerance) << i << " of " << Name(shape);
    }
  }
}

// The numbers rounded to bf16.
std::vector<BFloat16> Narrowed(const Floats& x) {
  std::vector<BFloat16> narrow(x.size());
  Narrow(x.size(), x.data(), narrow.data());
  return narrow;
}
Floats Rounded(const Floats& x) {
  Floats rounded;
  for (const BFloat16 value : Narrowed(x)) {
    rounded.push_back(std::bit_cast<float>(uint32_t{value.bits} << 16));
  }
  return rounded;
}

// Products of bf16 numbers equal those of the same numbers in fp32, but for the order of the sums.
TEST_P(MaskedConvolutionTest, Bf16) {
  for (const DotUnit unit : AvailableDotUnits()) {
    ForceDotUnit(unit);
    for (const MaskedConvolutionShape& shape :
         {MaskedConvolutionShape{1, 2, 7, 64, 128, 3, 5, 192}, {2, 5, 33, 128, 64, 3, 3, 0}}) {
      ASSERT_EQ(MaskedConvolutionTakesBf16(shape), unit != DotUnit::kNone);
      if (unit == DotUnit::kNone) continue;
      const Arrays in(shape);
      Arrays rounded = in;
      for (Floats* part : {&rounded.x, &rounded.weight, &rounded.grad_out}) *part = Rounded(*part);
      const Floats want = Forward(shape, rounded, SerialFor);
      const Gradients want_grad(shape, rounded, SerialFor);

      Floats out(want.size(), NAN), grad_x(in.x.size(), NAN);
      AlignedBuffer<float> scratch(MaskedConvolutionScratch(shape));
      MaskedConvolution(shape,
                        {.x = Narrowed(Padded(shape, shape.in, in.x)).data(),
                         .weight = in.weight.data(),
                         .bias = in.bias.data(),
                         .out = out.data(),
                         .scratch = scratch.data()},
                        SerialFor);
      MaskedConvolutionGradX(shape,
                             {.weight = in.weight.data(),
                              .grad_out = Narrowed(Padded(shape, shape.out, in.grad_out)).data(),
                              .grad_x = grad_x.data(),
                              .scratch = scratch.data()},
                             SerialFor);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want[i], 1e-4) << Name(shape);
      for (size_t i = 0; i < grad_x.size(); ++i) {
        ASSERT_NEAR(grad_x[i], want_grad.x[i], 1e-4) << Name(shape);
      }
    }
  }
  ForceDotUnit(std::nullopt);
  EXPECT_FALSE(MaskedConvolutionTakesBf16({1, 2, 7, 32, 128, 3, 5, 96}));
}

// Compares the gradients of sum(out * grad_out) with central differences of the reference, for a
// sample of the elements of each input.
TEST_P(MaskedConvolutionTest, GradientsMatchDifferencesOfTheReference) {
  for (const MaskedConvolutionShape& shape : Shapes()) {
    const Arrays in(shape);
    const Gradients got(shape, in, SerialFor);
    Doubles parts[3] = {Wide(in.x), Wide(in.weight), Wide(in.bias)};
    const Floats* grads[3] = {&got.x, &got.weight, &got.bias};
    const auto loss = [&] {
      const Doubles out = MaskedConvolutionRef(shape, parts[0], parts[1], parts[2]);
      double sum = 0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * in.grad_out[i];
      return sum;
    };
    const double terms = static_cast<double>(in.grad_out.size() + shape.Inputs());
    const double tolerance = 3e-6 * (1 + std::sqrt(terms));
    for (int part = shape.last % shape.in == 0 ? 0 : 1; part < 3; ++part) {
      for (size_t i = 0; i < parts[part].size(); i += 1 + parts[part].size() / 15) {
        double& at = parts[part][i];
        const double before = at;
        // The loss is linear in each input, so a difference over a large step is exact.
        at = before + 0.5;
        const double up = loss();
        at = before - 0.5;
        const double down = loss();
        at = before;
        ASSERT_NEAR((*grads[part])[i], up - down, tolerance)
            << i << " of " << part << ", " << Name(shape);
      }
    }
  }
}

TEST_P(MaskedConvolutionTest, ResultsDoNotDependOnThreads) {
  ThreadPool pool(3);
  const auto parallel = [&](size_t count, RangeBody body) { pool.For(count, body); };
  for (const MaskedConvolutionShape& shape : Shapes()) {
    const Arrays in(shape);
    EXPECT_EQ(Forward(shape, in, SerialFor), Forward(shape, in, parallel));
    const Gradients one(shape, in, SerialFor), many(shape, in, parallel);
    if (shape.last % shape.in == 0) {
      EXPECT_EQ(one.x, many.x);
    }
    EXPECT_EQ(one.weight, many.weight);
    EXPECT_EQ(one.bias, many.bias);
  }
}

// No image reads another image's pixels.
TEST_P(MaskedConvolutionTest, ImagesAreIndependent) {
  MaskedConvolutionShape shape{3, 5, 4, 3, 7, 4, 5, 9};
  const Arrays in(shape);
  const Floats all = Forward(shape, in, SerialFor);
  const Gradients gradients(shape, in, SerialFor);
  shape.images = 1;
  Arrays second = in;
  second.x.assign(in.x.begin() + 60, in.x.begin() + 120);
  second.grad_out.assign(in.grad_out.begin() + 140, in.grad_out.begin() + 280);
  EXPECT_EQ(Forward(shape, second, SerialFor), Floats(all.begin() + 140, all.begin() + 280));
  EXPECT_EQ(Gradients(shape, second, SerialFor).x,
            Floats(gradients.x.begin() + 60, gradients.x.begin() + 120));
}

}  // namespace
}  // namespace linnet::kernels
