#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <algorithm>
#include <vector>

#include "linnet/kernels/activation.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/masked_convolution.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::Activation;
using kernels::BFloat16;
using kernels::MaskedConvolutionShape;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

MaskedConvolutionShape ShapeOf(const Tensor& x, const Tensor& weight, int64_t rows,
                               int64_t columns) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  return {.images = size(x.size(0)),
          .rows = size(x.size(1)),
          .columns = size(x.size(2)),
          .in = size(x.size(3)),
          .out = size(weight.size(0)),
          .window_rows = size(rows),
          .window_columns = size(columns),
          .last = size(weight.size(1) - (rows - 1) * columns * x.size(3))};
}

Tensor ScratchOf(const MaskedConvolutionShape& shape) {
  return Floats(kernels::MaskedConvolutionScratch(shape));  // libtorch aligns to 64 bytes
}

template <typename T>
T* DataOf(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Memory for padded images of type T: zeros at the ends of the rows, the rest not initialized.
template <typename T>
Tensor PaddedMemory(const MaskedConvolutionShape& shape, size_t channels) {
  const auto rows = static_cast<int64_t>(shape.images * shape.rows);
  const auto length = static_cast<int64_t>(shape.PaddedRow(channels));
  const auto type = sizeof(T) == sizeof(float) ? torch::kFloat32 : torch::kBFloat16;
  const Tensor padded = torch::empty({rows, length}, type);
  const auto side = static_cast<int64_t>(shape.Side() * channels);
  padded.narrow(1, 0, side).zero_();
  padded.narrow(1, length - side, side).zero_();
  return padded;
}

// Calls body(index of the row's first number without padding, and with it) for each image row.
template <class Body>
void ForRows(const MaskedConvolutionShape& shape, size_t channels, Body body) {
  AtParallelFor(shape.images * shape.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      body(row * shape.columns * channels,
           row * shape.PaddedRow(channels) + shape.Side() * channels);
    }
  });
}

void Copy(size_t n, const float* from, bool gelu, float* to) {
  if (gelu) {
    kernels::Activate(Activation::kGelu, n, from, to);
  } else {
    std::copy_n(from, n, to);
  }
}
void Copy(size_t n, const float* from, bool gelu, BFloat16* to) {
  if (!gelu) return kernels::Narrow(n, from, to);
  std::vector<float> activated(n);
  kernels::Activate(Activation::kGelu, n, from, activated.data());
  kernels::Narrow(n, activated.data(), to);
}

// Images [N, R, C, channels] as type T with zeros at the ends of their rows; with `gelu`, of
// gelu(x).
template <typename T>
Tensor Padded(const MaskedConvolutionShape& shape, const Tensor& x, bool gelu) {
  const auto channels = static_cast<size_t>(x.size(3));
  const Tensor padded = PaddedMemory<T>(shape, channels);
  const float* from = x.data_ptr<float>();
  T* to = DataOf<T>(padded);
  ForRows(shape, channels, [&](size_t at, size_t at_padded) {
    Copy(shape.columns * channels, from + at, gelu, to + at_padded);
  });
  return padded;
}

// Multiplies grad [N, R, C, in] by gelu'(x). Returns Padded<float>(shape, x, true).
Tensor GeluBackward(const MaskedConvolutionShape& shape, const Tensor& x, const Tensor& grad) {
  const Tensor padded = PaddedMemory<float>(shape, shape.in);
  const float* from = x.data_ptr<float>();
  float *gradient = grad.data_ptr<float>(), *to = padded.data_ptr<float>();
  ForRows(shape, shape.in, [&](size_t at, size_t at_padded) {
    kernels::ActivateBackward(
        Activation::kGelu, 1, shape.columns * shape.in,
        {.x = from + at, .grad_out = gradient + at, .out = to + at_padded, .grad = gradient + at});
  });
  return padded;
}

// The convolution with operands of type T, float or BFloat16.
template <typename T>
Tensor Convolve(const MaskedConvolutionShape& shape, const Tensor& x, const Tensor& weight,
                const Tensor& bias, bool gelu) {
  const Tensor out = torch::empty({x.size(0), x.size(1), x.size(2), weight.size(0)}, x.options());
  const Tensor padded = Padded<T>(shape, x, gelu), scratch = ScratchOf(shape);
  const kernels::MaskedConvolutionForwardArgs<T> args{.x = DataOf<T>(padded),
                                                      .weight = weight.data_ptr<float>(),
                                                      .bias = bias.data_ptr<float>(),
                                                      .out = out.data_ptr<float>(),
                                                      .scratch = scratch.data_ptr<float>()};
  kernels::MaskedConvolution(shape, args, AtParallelFor);
  return out;
}

// Writes the gradient of the convolved images to grad_x.
template <typename T>
void GradX(const MaskedConvolutionShape& shape, const Tensor& weight, const Tensor& grad_out,
           const Tensor& grad_x) {
  const Tensor padded = Padded<T>(shape, grad_out, false), scratch = ScratchOf(shape);
  const kernels::MaskedConvolutionGradXArgs<T> args{.weight = weight.data_ptr<float>(),
                                                    .grad_out = DataOf<T>(padded),
                                                    .grad_x = grad_x.data_ptr<float>(),
                                                    .scratch = scratch.data_ptr<float>()};
  kernels::MaskedConvolutionGradX(shape, args, AtParallelFor);
}

class MaskedConvolutionFunction : public torch::autograd::Function<MaskedConvolutionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight_in,
                        const Tensor& bias_in, int64_t rows, int64_t columns, bool gelu, bool bf16,
                        bool with_grad_x) {
    const Tensor x = x_in.contiguous(), weight = weight_in.contiguous(),
                 bias = bias_in.contiguous();
    const MaskedConvolutionShape shape = ShapeOf(x, weight, rows, columns);
    const bool narrow = bf16 && kernels::MaskedConvolutionTakesBf16(shape);
    const auto convolve = narrow ? Convolve<BFloat16> : Convolve<float>;
    context->save_for_backward({x, weight});
    context->saved_data["rows"] = rows;
    context->saved_data["columns"] = columns;
    context->saved_data["gelu"] = gelu;
    context->saved_data["narrow"] = narrow;
    context->saved_data["with_grad_x"] = with_grad_x;
    return convolve(shape, x, weight, bias, gelu);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("masked convolution");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const MaskedConvolutionShape shape = ShapeOf(x, weight, context->saved_data["rows"].toInt(),
                                                 context->saved_data["columns"].toInt());
    const bool gelu = context->saved_data["gelu"].toBool();
    const Tensor grad_out = grads[0].contiguous();
    Tensor grad_x, padded;
    if (context->saved_data["with_grad_x"].toBool()) {
      grad_x = torch::empty_like(x);
      const auto gradient = context->saved_data["narrow"].toBool() ? GradX<BFloat16> : GradX<float>;
      gradient(shape, weight, grad_out, grad_x);
      if (gelu) padded = GeluBackward(shape, x, grad_x);
    }
    if (!padded.defined()) padded = Padded<float>(shape, x, gelu);
    const Tensor grad_weight = torch::empty_like(weight);
    const Tensor grad_bias = torch::empty({weight.size(0)}, weight.options());
    kernels::MaskedConvolutionGradWeight(shape,
                                         {.x = padded.data_ptr<float>(),
                                          .grad_out = grad_out.data_ptr<float>(),
                                          .grad_weight = grad_weight.data_ptr<float>(),
                                          .grad_bias = grad_bias.data_ptr<float>()},
                                         AtParallelFor);
    return {grad_x,     grad_weight, grad_bias,  Variable(),
            Variable(), Variable(),  Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedMaskedConvolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const MaskedConvolutionOptions& options) {
  return MaskedConvolutionFunction::apply(x, weight, bias, options.rows, options.columns,
                                          options.gelu, options.precision == Precision::kBf16,
                                          x.requires_grad());
}

}  // namespace linnet::ops
