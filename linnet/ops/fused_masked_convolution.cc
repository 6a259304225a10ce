#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <algorithm>

#include "linnet/kernels/activation.h"
#include "linnet/kernels/masked_convolution.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using kernels::Activation;
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

// Memory for padded images: zeros at the ends of the rows, the rest not initialized.
Tensor PaddedMemory(const MaskedConvolutionShape& shape, size_t channels) {
  const size_t rows = shape.images * shape.rows, length = shape.PaddedRow(channels);
  const Tensor padded = Floats(rows * length);
  const auto side = static_cast<int64_t>(shape.Side() * channels);
  const Tensor view = padded.view({-1, static_cast<int64_t>(length)});
  view.narrow(1, 0, side).zero_();
  view.narrow(1, static_cast<int64_t>(length) - side, side).zero_();
  return padded;
}

// Calls body(index of the row's first float without padding, and with it) for each image row.
template <class Body>
void ForRows(const MaskedConvolutionShape& shape, size_t channels, Body body) {
  AtParallelFor(shape.images * shape.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      body(row * shape.columns * channels,
           row * shape.PaddedRow(channels) + shape.Side() * channels);
    }
  });
}

// Images [N, R, C, channels] with zeros at the ends of their rows; with `gelu`, of gelu(x).
Tensor Padded(const MaskedConvolutionShape& shape, const Tensor& x, bool gelu) {
  const auto channels = static_cast<size_t>(x.size(3));
  const Tensor padded = PaddedMemory(shape, channels);
  const float* from = x.data_ptr<float>();
  float* to = padded.data_ptr<float>();
  ForRows(shape, channels, [&](size_t at, size_t at_padded) {
    if (gelu) {
      kernels::Activate(Activation::kGelu, shape.columns * channels, from + at, to + at_padded);
    } else {
      std::copy_n(from + at, shape.columns * channels, to + at_padded);
    }
  });
  return padded;
}

// Multiplies grad [N, R, C, in] by gelu'(x). Returns Padded(shape, x, true).
Tensor GeluBackward(const MaskedConvolutionShape& shape, const Tensor& x, const Tensor& grad) {
  const Tensor padded = PaddedMemory(shape, shape.in);
  const float* from = x.data_ptr<float>();
  float *gradient = grad.data_ptr<float>(), *to = padded.data_ptr<float>();
  ForRows(shape, shape.in, [&](size_t at, size_t at_padded) {
    kernels::ActivateBackward(
        Activation::kGelu, 1, shape.columns * shape.in,
        {.x = from + at, .grad_out = gradient + at, .out = to + at_padded, .grad = gradient + at});
  });
  return padded;
}

class MaskedConvolutionFunction : public torch::autograd::Function<MaskedConvolutionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight_in,
                        const Tensor& bias_in, int64_t rows, int64_t columns, bool gelu,
                        bool with_grad_x) {
    const Tensor x = x_in.contiguous(), weight = weight_in.contiguous(),
                 bias = bias_in.contiguous();
    const MaskedConvolutionShape shape = ShapeOf(x, weight, rows, columns);
    const Tensor out = torch::empty({x.size(0), x.size(1), x.size(2), weight.size(0)}, x.options());
    kernels::MaskedConvolution(shape,
                               {.x = Padded(shape, x, gelu).data_ptr<float>(),
                                .weight = weight.data_ptr<float>(),
                                .bias = bias.data_ptr<float>(),
                                .out = out.data_ptr<float>(),
                                .scratch = ScratchOf(shape).data_ptr<float>()},
                               AtParallelFor);
    context->save_for_backward({x, weight});
    context->saved_data["rows"] = rows;
    context->saved_data["columns"] = columns;
    context->saved_data["gelu"] = gelu;
    context->saved_data["with_grad_x"] = with_grad_x;
    return out;
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
      kernels::MaskedConvolutionGradX(shape,
                                      {.weight = weight.data_ptr<float>(),
                                       .grad_out = Padded(shape, grad_out, false).data_ptr<float>(),
                                       .grad_x = grad_x.data_ptr<float>(),
                                       .scratch = ScratchOf(shape).data_ptr<float>()},
                                      AtParallelFor);
      if (gelu) padded = GeluBackward(shape, x, grad_x);
    }
    if (!padded.defined()) padded = Padded(shape, x, gelu);
    const Tensor grad_weight = torch::empty_like(weight);
    const Tensor grad_bias = torch::empty({weight.size(0)}, weight.options());
    kernels::MaskedConvolutionGradWeight(shape,
                                         {.x = padded.data_ptr<float>(),
                                          .grad_out = grad_out.data_ptr<float>(),
                                          .grad_weight = grad_weight.data_ptr<float>(),
                                          .grad_bias = grad_bias.data_ptr<float>()},
                                         AtParallelFor);
    return {grad_x, grad_weight, grad_bias, Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedMaskedConvolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const MaskedConvolutionOptions& options) {
  return MaskedConvolutionFunction::apply(x, weight, bias, options.rows, options.columns,
                                          options.gelu, x.requires_grad());
}

}  // namespace linnet::ops
