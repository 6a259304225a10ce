// Computes the parts of a transformer layer that treat each row (one token) on its own, that is,
// everything but attention: projections, the feed-forward block, residuals and layer norms. Each
// function below makes one pass over blocks of rows. A block stays in cache from one matrix product
// to the next, so each input row is read from memory once, and each output row is written once.
//
//   const RowsPlan plan = PlanRows(rows, /*widest=*/d_ff * sizeof(T), threads);
//   FeedForwardArgs<T> args{.dim = 256, .hidden_dim = 1024, .weight1 = w1, ..., .x = x};
//   std::vector<float> scratch(plan.slots * FeedForwardScratch(plan, args));
//   FeedForwardForward(plan, args, y, scratch.data(), parallel_for);
//
// T (float or BFloat16) is the type of the matrix products' operands. Sums, biases, norms and
// residuals are fp32. Weights are [out, in]; a product is y = x W^T + b.
//
// A slot is a share of the rows with its own scratch; parallel_for divides the slots among threads.
// Parameter gradients are summed within each slot, then over the slots in order. Their bits
// therefore depend on the RowsPlan, but not on the order in which threads run. The references are
// the libtorch compositions in ops/layer_rows.cc, which tests run in double precision.
#ifndef LINNET_KERNELS_LAYER_ROWS_H_
#define LINNET_KERNELS_LAYER_ROWS_H_

#include <cstddef>

#include "linnet/base/parallel.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

// How the rows are divided: `blocks` blocks of at most `block` rows each. Each slot gets a
// contiguous range of blocks.
struct RowsPlan {
  size_t rows = 0, block = 0, blocks = 0, slots = 0;
};

// Divides the rows into blocks such that the widest intermediate result of a block, `widest` bytes
// per row, fits the second-level cache. There are at most `threads` slots.
RowsPlan PlanRows(size_t rows, size_t widest, size_t threads);

// A layer norm. A null weight means that there is no norm.
struct RowNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;

  explicit operator bool() const { return weight != nullptr; }
};

// Destination of the parameter gradients. `sum` first holds the gradients of slot 0, then the sum
// over all slots, which is the result. `others` is temporary memory for the gradients of the other
// plan.slots - 1 slots.
struct SlotGradients {
  float* sum = nullptr;
  float* others = nullptr;

  float* Of(size_t slot, size_t count) const {
    return slot == 0 ? sum : others + (slot - 1) * count;
  }
};

// Size, in floats, of the gradients of one product's parameters: first the weight, then the bias.
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

// Size, in floats, of the scratch of each slot. It is enough for forward and backward.
template <typename T>
size_t LinearsScratch(const RowsPlan& plan, const LinearsArgs<T>& args);
// Writes y[i] [rows, out[i]]. `scratch` holds plan.slots * LinearsScratch() floats.
template <typename T>
void LinearsForward(const RowsPlan& plan, const LinearsArgs<T>& args, float* const* y,
                    float* scratch, ParallelFor parallel_for);

// Size, in floats, of the parameter gradients of a slot: W_0, b_0, W_1, b_1, ..., then the norm's
// weight and bias.
template <typename T>
size_t LinearsGradients(const LinearsArgs<T>& args);
// Writes grad_x [rows, in] and the parameter gradients.
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
  RowNorm norm;              // n, applied to the sum
  const float* a = nullptr;  // [rows, in]
  const float* x = nullptr;  // [rows, out]; null: no residual
  // [rows, out]: with a norm, the forward stores x + a W^T + b here, and the backward reads it.
  // Unused without a norm, and may then be null.
  float* sum = nullptr;
};

// Size, in floats, of the scratch of each slot. It is enough for forward and backward.
template <typename T>
size_t ProjectScratch(const RowsPlan& plan, const ProjectArgs<T>& args);
// Writes y [rows, out].
template <typename T>
void ProjectForward(const RowsPlan& plan, const ProjectArgs<T>& args, float* y, float* scratch,
                    ParallelFor parallel_for);
// Size, in floats, of the parameter gradients of a slot: W, b, then the norm's weight and bias.
template <typename T>
size_t ProjectGradients(const ProjectArgs<T>& args);
// Writes grad_a [rows, in], the parameter gradients and, unless grad_x is null, the residual's
// gradient grad_x [rows, out].
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
  RowNorm norm_before, norm_after;  // n1 of pre-norm layers, n2 of post-norm layers
  const float* x = nullptr;         // [rows, dim]
  T* hidden = nullptr;              // [rows, hidden_dim]: n1(x) W1^T + b1, stored by the forward
  float* sum = nullptr;             // [rows, dim]: n2's input, stored by the forward; null if no n2
};

// Size, in floats, of the scratch of each slot. It is enough for forward and backward.
template <typename T>
size_t FeedForwardScratch(const RowsPlan& plan, const FeedForwardArgs<T>& args);
// Writes y [rows, dim]. args.hidden may be null if FeedForwardBackward() will not be called.
template <typename T>
void FeedForwardForward(const RowsPlan& plan, const FeedForwardArgs<T>& args, float* y,
                        float* scratch, ParallelFor parallel_for);
// Size, in floats, of the parameter gradients of a slot: W1, b1, W2, b2, then the weight and bias
// of n1 if present, then those of n2 if present.
template <typename T>
size_t FeedForwardGradients(const FeedForwardArgs<T>& args);
// Writes grad_x [rows, dim] and the parameter gradients.
template <typename T>
void FeedForwardBackward(const RowsPlan& plan, const FeedForwardArgs<T>& args, const float* grad_y,
                         float* grad_x, const SlotGradients& gradients, float* scratch,
                         ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LAYER_ROWS_H_
