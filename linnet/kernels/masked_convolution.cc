#include "linnet/kernels/masked_convolution.h"

#include <algorithm>
#include <cassert>

#include "linnet/kernels/isa.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/narrow_linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/masked_convolution.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/masked_convolution-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(WeightGradientTiles);
HWY_EXPORT(TilesOfOutputs);

namespace {

// The inputs of a pixel in one row of the window are consecutive in memory. So for the pixels of an
// image row, the window row is a product with a matrix whose rows start one pixel apart and
// overlap. This holds for the input as for the gradient.
//
// Window rows are counted by `above`: 0 is the pixel's own row, 1 the row above it.
size_t InputsOfRow(const MaskedConvolutionShape& shape, size_t above) {
  return above == 0 ? shape.last : shape.window_columns * shape.in;
}
// Index of the row's first input among a pixel's inputs.
size_t FirstInput(const MaskedConvolutionShape& shape, size_t above) {
  return (shape.window_rows - 1 - above) * shape.window_columns * shape.in;
}

// Sizes of a window row's packed weights (linear.h) in the forward and for the gradient of x; the
// pixel's own row is shorter.
size_t PackedRow(const MaskedConvolutionShape& shape) {
  return PackedLinearSize(shape.window_columns * shape.in, shape.out);
}
size_t PackedGradRow(const MaskedConvolutionShape& shape) {
  return PackedLinearSize(shape.window_columns * shape.out, shape.in);
}

// Packs weights for products with rows of type T.
template <typename T>
void Pack(size_t in, size_t out, const float* weight, size_t stride, const float* bias,
          float* packed) {
  if constexpr (sizeof(T) == sizeof(float)) {
    PackLinear(in, out, weight, stride, bias, packed);
  } else {
    PackBf16(in, out, weight, stride, bias, reinterpret_cast<std::byte*>(packed));
  }
}

void Product(size_t rows, size_t in, size_t out, const float* x, size_t x_stride,
             const float* packed, LinearMode mode, float* y, size_t y_stride) {
  Linear(rows, in, out, x, x_stride, packed, mode, y, y_stride);
}
void Product(size_t rows, size_t in, size_t out, const BFloat16* x, size_t x_stride,
             const float* packed, LinearMode mode, float* y, size_t y_stride) {
  BFloat16Linear(rows, in, out, x, x_stride, reinterpret_cast<const std::byte*>(packed), mode, y,
                 y_stride);
}

LinearMode ModeOf(size_t above) { return above == 0 ? LinearMode::kOverwrite : LinearMode::kAdd; }

template <typename T>
void Forward(const MaskedConvolutionShape& shape, const MaskedConvolutionForwardArgs<T>& args,
             ParallelFor parallel_for) {
  assert(shape.window_columns % 2 == 1 && shape.last <= (shape.Side() + 1) * shape.in);
  const auto packed = [&](size_t above) { return args.scratch + above * PackedRow(shape); };
  for (size_t above = 0; above < shape.window_rows; ++above) {
    Pack<T>(InputsOfRow(shape, above), shape.out, args.weight + FirstInput(shape, above),
            shape.Inputs(), above == 0 ? args.bias : nullptr, packed(above));
  }
  parallel_for(shape.images * shape.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* out = args.out + row * shape.columns * shape.out;
      const size_t rows = std::min(shape.window_rows, row % shape.rows + 1);
      for (size_t above = 0; above < rows; ++above) {
        Product(shape.columns, InputsOfRow(shape, above), shape.out,
                args.x + (row - above) * shape.PaddedRow(shape.in), shape.in, packed(above),
                ModeOf(above), out, shape.out);
      }
    }
  });
}

template <typename T>
void GradX(const MaskedConvolutionShape& shape, const MaskedConvolutionGradXArgs<T>& args,
           ParallelFor parallel_for) {
  assert(shape.last % shape.in == 0);
  // Pixel x is input column c of pixel x + side - c. So its gradient is a product with the outputs'
  // gradients from pixel x + side - (columns - 1) to x + side, and weights in reverse order.
  const auto columns = [&](size_t above) { return InputsOfRow(shape, above) / shape.in; };
  const auto packed = [&](size_t above) { return args.scratch + above * PackedGradRow(shape); };
  float* reversed = packed(shape.window_rows);
  for (size_t above = 0; above < shape.window_rows; ++above) {
    const size_t count = columns(above), inputs = count * shape.out;
    for (size_t c = 0; c < count; ++c) {
      const float* from = args.weight + FirstInput(shape, above) + (count - 1 - c) * shape.in;
      for (size_t o = 0; o < shape.out; ++o) {
        for (size_t i = 0; i < shape.in; ++i) {
          reversed[i * inputs + c * shape.out + o] = from[o * shape.Inputs() + i];
        }
      }
    }
    Pack<T>(inputs, shape.in, reversed, inputs, nullptr, packed(above));
  }
  parallel_for(shape.images * shape.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* to = args.grad_x + row * shape.columns * shape.in;
      const size_t rows = std::min(shape.window_rows, shape.rows - row % shape.rows);
      for (size_t above = 0; above < rows; ++above) {
        const T* from = args.grad_out + (row + above) * shape.PaddedRow(shape.out) +
                        (shape.window_columns - columns(above)) * shape.out;
        Product(shape.columns, columns(above) * shape.out, shape.in, from, shape.out, packed(above),
                ModeOf(above), to, shape.in);
      }
    }
  });
}

}  // namespace

size_t MaskedConvolutionScratch(const MaskedConvolutionShape& shape) {
  const size_t reversed = shape.window_columns * shape.in * shape.out;
  return shape.window_rows * std::max(PackedRow(shape), PackedGradRow(shape)) + reversed;
}

bool MaskedConvolutionTakesBf16(const MaskedConvolutionShape& shape) {
  return ActiveDotUnit() != DotUnit::kNone && shape.in % kNarrowInputs == 0 &&
         shape.out % kNarrowInputs == 0 && shape.last % kNarrowInputs == 0;
}

void MaskedConvolution(const MaskedConvolutionShape& shape,
                       const MaskedConvolutionForwardArgs<float>& args, ParallelFor parallel_for) {
  Forward(shape, args, parallel_for);
}
void MaskedConvolution(const MaskedConvolutionShape& shape,
                       const MaskedConvolutionForwardArgs<BFloat16>& args,
                       ParallelFor parallel_for) {
  assert(MaskedConvolutionTakesBf16(shape));
  Forward(shape, args, parallel_for);
}

void MaskedConvolutionGradX(const MaskedConvolutionShape& shape,
                            const MaskedConvolutionGradXArgs<float>& args,
                            ParallelFor parallel_for) {
  GradX(shape, args, parallel_for);
}
void MaskedConvolutionGradX(const MaskedConvolutionShape& shape,
                            const MaskedConvolutionGradXArgs<BFloat16>& args,
                            ParallelFor parallel_for) {
  assert(MaskedConvolutionTakesBf16(shape));
  GradX(shape, args, parallel_for);
}

void MaskedConvolutionGradWeight(const MaskedConvolutionShape& shape,
                                 const MaskedConvolutionGradWeightArgs& args,
                                 ParallelFor parallel_for) {
  const size_t tiles = HWY_DYNAMIC_DISPATCH(TilesOfOutputs)(shape.out);
  parallel_for(tiles, [&](size_t begin, size_t end) {
    const size_t first = shape.out * begin / tiles, past = shape.out * end / tiles;
    for (size_t o = first; o < past; ++o) {
      args.grad_bias[o] = 0;
      std::fill_n(args.grad_weight + o * shape.Inputs(), shape.Inputs(), 0.0f);
    }
    for (size_t row = 0; row < shape.images * shape.rows; ++row) {
      const float* grad_out = args.grad_out + row * shape.columns * shape.out;
      for (size_t o = first; o < past; ++o) {
        float sum = 0;
        for (size_t column = 0; column < shape.columns; ++column) {
          sum += grad_out[column * shape.out + o];
        }
        args.grad_bias[o] += sum;
      }
      const size_t rows = std::min(shape.window_rows, row % shape.rows + 1);
      for (size_t above = 0; above < rows; ++above) {
        HWY_DYNAMIC_DISPATCH(WeightGradientTiles)
        ({.positions = shape.columns,
          .outputs = shape.out,
          .inputs = InputsOfRow(shape, above),
          .grad_out = grad_out,
          .grad_out_stride = shape.out,
          .x = args.x + (row - above) * shape.PaddedRow(shape.in),
          .x_stride = shape.in,
          .to = args.grad_weight + FirstInput(shape, above),
          .to_stride = shape.Inputs()},
         begin, end, tiles);
      }
    }
  });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
