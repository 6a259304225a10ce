#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/utils.h>

#include "linnet/kernels/lstm_cell.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/rows_view.h"

namespace linnet::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The order in which one direction of the LSTM visits the positions.
struct Order {
  int64_t length;
  bool backward;

  int64_t At(int64_t i) const { return backward ? length - 1 - i : i; }
};

// Splits the rows (sequences) of one step among the threads.
template <class Body>
void ForRows(int64_t rows, int64_t hidden, Body body) {
  constexpr int64_t kGrain = 2048;  // minimum cells per thread
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / hidden), body);
}

class LstmFunction : public torch::autograd::Function<LstmFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& sums, const Tensor& w_hh,
                        const Tensor& lengths, bool backward) {
    const int64_t length = sums.size(0), rows = sums.size(1), hidden = w_hh.size(1);
    const Tensor gates = sums.contiguous().clone(), weight = w_hh.t();
    const Tensor cell = torch::empty({length, rows, hidden}, sums.options());
    const Tensor out = torch::empty_like(cell);
    const Order order{length, backward};
    for (int64_t i = 0; i < length; ++i) {
      const int64_t t = order.At(i), before = i > 0 ? order.At(i - 1) : -1;
      Tensor now = gates[t];
      if (i > 0) now.addmm_(out[before], weight);
      ForRows(rows, hidden, [&](int64_t begin, int64_t end) {
        const auto of = [&](const Tensor& x, int64_t at) {
          return x.data_ptr<float>() + (at * rows + begin) * x.size(2);
        };
        kernels::LstmCellForward(static_cast<size_t>(end - begin), static_cast<size_t>(hidden),
                                 {.gates = of(gates, t),
                                  .cell_before = i > 0 ? of(cell, before) : nullptr,
                                  .cell = of(cell, t),
                                  .out = of(out, t),
                                  .lengths = lengths.data_ptr<int64_t>() + begin,
                                  .at = t});
      });
    }
    context->save_for_backward({gates, cell, out, w_hh, lengths});
    context->saved_data["backward"] = backward;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    RefuseSecondDerivative("LSTM");
    const variable_list saved = context->get_saved_variables();
    const Tensor &gates = saved[0], &cell = saved[1], &out = saved[2], &w_hh = saved[3];
    const Tensor& lengths = saved[4];
    const int64_t length = gates.size(0), rows = gates.size(1), hidden = w_hh.size(1);
    const Order order{length, context->saved_data["backward"].toBool()};
    const Tensor grad_out = grads[0].contiguous().clone();
    const Tensor grad_sums = torch::empty_like(gates);
    const Tensor grad_cell = torch::zeros({1, rows, hidden}, gates.options());
    for (int64_t i = length - 1; i >= 0; --i) {
      const int64_t t = order.At(i), before = i > 0 ? order.At(i - 1) : -1;
      ForRows(rows, hidden, [&](int64_t begin, int64_t end) {
        const auto of = [&](const Tensor& x, int64_t at) {
          return x.data_ptr<float>() + (at * rows + begin) * x.size(2);
        };
        kernels::LstmCellBackward(static_cast<size_t>(end - begin), static_cast<size_t>(hidden),
                                  {.gates = of(gates, t),
                                   .cell_before = i > 0 ? of(cell, before) : nullptr,
                                   .cell = of(cell, t),
                                   .grad_out = of(grad_out, t),
                                   .grad_cell = of(grad_cell, 0),
                                   .grad_gates = of(grad_sums, t),
                                   .lengths = lengths.data_ptr<int64_t>() + begin,
                                   .at = t});
      });
      if (i > 0) grad_out[before].addmm_(grad_sums[t], w_hh);
    }
    // The gradient of w_hh: each step adds its gate gradients times the previous step's output.
    // later: the lowest position of steps 1 .. L-1. earlier: the lowest position of steps 0 .. L-2.
    Tensor grad_weight = torch::zeros_like(w_hh);
    if (length > 1) {
      const int64_t later = order.backward ? 0 : 1, earlier = 1 - later;
      grad_weight =
          torch::matmul(grad_sums.narrow(0, later, length - 1).reshape({-1, 4 * hidden}).t(),
                        out.narrow(0, earlier, length - 1).reshape({-1, hidden}));
    }
    return {grad_sums, grad_weight, Variable(), Variable()};
  }
};

}  // namespace

Tensor FusedLstm(const Tensor& sums, const Tensor& w_hh, const Tensor& lengths, bool backward) {
  return LstmFunction::apply(sums, w_hh, lengths, backward);
}

}  // namespace linnet::ops
