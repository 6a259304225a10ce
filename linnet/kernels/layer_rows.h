// The row-wise parts of a transformer layer, that is, everything but its attention: projections,
// the feed-forward block, residuals and layer norms. Each part is one pass over blocks of rows that
// stay in cache between its products, forward and backward, so that each input row is read from
// memory once, and each output row written once.
//
//   const RowsPlan plan = PlanRows(rows, /*widest=*/d_ff * sizeof(T), threads);
//   FeedForwardArgs<T> args{.dim = 256, .hidden_dim = 1024, .weight1 = w1, ..., .x = x};
//   std::vector<float> scratch(plan.slots * FeedForwardScratch(plan, args));
//   FeedForwardForward(plan, args, y, scratch.data(), parallel_for);
//
// T (float or BFloat16) is the type of the products' operands. Sums, biases, norms and residuals
// are fp32. Weights are [out, in]; a product is y = x W^T + b. A slot is a share of the work with
// its own scratch; parallel_for runs the slots. Parameter gradients are summed within each slot,
// then over the slots in order, so their bits depend on the RowsPlan alone. The references are the
// libtorch compositions in ops/layer_rows.cc, which tests run in double precision.
#ifndef LINNET_KERNELS_LAYER_ROWS_H_
#define LINNET_KERNELS_LAYER_ROWS_H_

#include <cstddef>

#include "linnet/base/parallel.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

// Division of the rows into `blocks` blocks of at most `block` rows; each slot gets a range of
// them.
struct RowsPlan {
  size_t rows = 0, block = 0, blocks = 0, slots = 0;
};

// Sizes blocks so that the widest row-wise intermediate, `widest` bytes per row, stays in a
// second-level cache.
RowsPlan PlanRows(size_t rows, size_t widest, size_t threads);

// A layer norm; a null weight means none.
struct RowNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;

  explicit operator bool() const { return weight != nullptr; }
};

// Destination of the parameter gradients. `sum` holds the first slot's gradients and, in the end,
// the result. `others` has room for the gradients of the other plan.slots - 1 slots, and can be
// freed afterwards.
struct SlotGradients {
  float* sum = nullptr;
  float* others = nullptr;

  float* Of(size_t slot, size_t count) const {
    return slot == 0 ? sum : others + (slot - 1) * count;
  }
};

// Floats of one product's gradients: weight, then bias.
constexpr size_t ProductGradient(size_t in, size_t out) { return (in + 1) * out; }

// --- Linears: y_i = n(x) W_i^T + b_i, where n is a layer norm or the identity ---

inline constexpr size_t kMaxProducts = 3;

template <typename T>
struct LinearsArgs {
  size_t in = 0, products = 0;
  size_t out[kMaxProducts] = {};
  const T* weight[kMaxProducts] = {};
  const float* bias[kMaxProducts] = {};
  RowNorm norm;
  const float* x = nullptr;  // [rows, in]
};

// Writes y[i] [rows, out[i]]. `scratch` holds plan.slots pieces of LinearsScratch() floats.
template <typename T>
size_t LinearsScratch(const RowsPlan& plan, const LinearsArgs<T>& args);
template <typename T>
void LinearsForward(const RowsPlan& plan, const LinearsArgs<T>& args, float* const* y,
                    float* scratch, ParallelFor parallel_for);

// Writes grad_x [rows, in]. The gradients of a slot are LinearsGradients() floats: those of W_0,
// b_0, W_1, b_1, ..., then of the norm's weight and bias.
template <typename T>
size_t LinearsGradients(const LinearsArgs<T>& args);
template <typename T>
void LinearsBackward(const RowsPlan& plan, const LinearsArgs<T>& args, const float* const* grad_y,
                     float* grad_x, const SlotGradients& gradients, float* scratch,
                     ParallelFor parallel_for);

// --- Project: y = n(x + a W^T + b), the end of an attention block ---

template <typename T>
struct ProjectArgs {
  size_t in = 0, out = 0;
  const T* weight = nullptr;
  const float* bias = nullptr;
  RowNorm norm;              // of the sum
  const float* a = nullptr;  // [rows, in]
  const float* x = nullptr;  // [rows, out]; null: no residual
  // [rows, out]: x + a W^T + b. The forward writes it if there is a norm; the backward reads it.
  float* sum = nullptr;
};

template <typename T>
size_t ProjectScratch(const RowsPlan& plan, const ProjectArgs<T>& args);
template <typename T>
void ProjectForward(const RowsPlan& plan, const ProjectArgs<T>& args, float* y, float* scratch,
                    ParallelFor parallel_for);
// Writes grad_a [rows, in] and, unless it is null, grad_x [rows, out], the residual's gradient.
// Order of the parameter gradients: W, b, the norm's weight and bias.
template <typename T>
size_t ProjectGradients(const ProjectArgs<T>& args);
template <typename T>
void ProjectBackward(const RowsPlan& plan, const ProjectArgs<T>& args, const float* grad_y,
                     float* grad_a, float* grad_x, const SlotGradients& gradients, float* scratch,
                     ParallelFor parallel_for);

// --- FeedForward: y = n2(x + act(n1(x) W1^T + b1) W2^T + b2) ---

template <typename T>
struct FeedForwardArgs {
  size_t dim = 0, hidden_dim = 0;
  Activation activation = Activation::kRelu;
  const T* weight1 = nullptr;  // [hidden_dim, dim]
  const T* weight2 = nullptr;  // [dim, hidden_dim]
  const float* bias1 = nullptr;
  const float* bias2 = nullptr;
  RowNorm norm_before, norm_after;  // n1 (pre-norm layers) and n2 (post-norm ones)
  const float* x = nullptr;         // [rows, dim]
  T* hidden = nullptr;              // [rows, hidden_dim]: n1(x) W1^T + b1, written by the forward
  float* sum = nullptr;             // [rows, dim]: the input of n2; only if there is an n2
};

template <typename T>
size_t FeedForwardScratch(const RowsPlan& plan, const FeedForwardArgs<T>& args);
// hidden may be null if no backward follows.
template <typename T>
void FeedForwardForward(const RowsPlan& plan, const FeedForwardArgs<T>& args, float* y,
                        float* scratch, ParallelFor parallel_for);
// Writes grad_x [rows, dim]. Order of the parameter gradients: W1, b1, W2, b2, then weight and bias
// of n1 and of n2, if present.
template <typename T>
size_t FeedForwardGradients(const FeedForwardArgs<T>& args);
template <typename T>
void FeedForwardBackward(const RowsPlan& plan, const FeedForwardArgs<T>& args, const float* grad_y,
                         float* grad_x, const SlotGradients& gradients, float* scratch,
                         ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LAYER_ROWS_H_
