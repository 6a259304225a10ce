// All of a transformer layer but its attention works on each row (token) alone: projections, the
// feed-forward block, residuals, layer norms. Here each of these pieces is one pass over blocks of
// rows that stay in the cache between its products, forward and backward, so that memory is touched
// once for what comes in and once for what goes out.
//
//   const RowsPlan plan = PlanRows(rows, /*widest=*/d_ff * sizeof(T), threads);
//   FeedForwardArgs<T> args{.dim = 256, .hidden_dim = 1024, .weight1 = w1, ..., .x = x};
//   std::vector<float> scratch(plan.slots * FeedForwardScratch(plan, args));
//   FeedForwardForward(plan, args, y, scratch.data(), parallel_for);
//
// T is float or BFloat16: what the products read. Their sums, biases, norms and residuals are fp32.
// Weights are [out, in]; a product is y = x W^T + b. Slots are pieces of work with scratch of their
// own, dealt out to parallel_for; gradients of parameters are summed within each slot, then over
// the slots in order, so bits depend on the number of slots alone. The plain twins are the
// compositions of libtorch operations in ops/layer_rows.cc, which tests run in double precision.
#ifndef LINNET_KERNELS_LAYER_ROWS_H_
#define LINNET_KERNELS_LAYER_ROWS_H_

#include <cstddef>

#include "linnet/base/parallel.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

// How rows are cut: into `blocks` of at most `block` rows, a range of them to each slot.
struct RowsPlan {
  size_t rows = 0, block = 0, blocks = 0, slots = 0;
};

// Blocks whose widest row-wise intermediate, `widest` bytes a row, stays in a second-level cache.
RowsPlan PlanRows(size_t rows, size_t widest, size_t threads);

// A layer norm, or none where weight is null.
struct RowNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;

  explicit operator bool() const { return weight != nullptr; }
};

// Where the gradients of the parameters go: `sum` are the first slot's and, in the end, the result;
// `others` is room for those of the other slots, plan.slots - 1 pieces, and can be freed afterwards.
struct SlotGradients {
  float* sum = nullptr;
  float* others = nullptr;

  float* Of(size_t slot, size_t count) const {
    return slot == 0 ? sum : others + (slot - 1) * count;
  }
};

// The floats that the gradients of one product's weight and bias take, weight first.
constexpr size_t ProductGradient(size_t in, size_t out) { return (in + 1) * out; }

// --- Linears: y_i = n(x) W_i^T + b_i, with n a layer norm or nothing ---

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

// y[i] [rows, out[i]]. `scratch` holds plan.slots pieces of LinearsScratch floats.
template <typename T>
size_t LinearsScratch(const RowsPlan& plan, const LinearsArgs<T>& args);
template <typename T>
void LinearsForward(const RowsPlan& plan, const LinearsArgs<T>& args, float* const* y,
                    float* scratch, ParallelFor parallel_for);

// grad_x [rows, in] is written. `gradients` are pieces of LinearsGradients floats, which hold the
// gradients of: W_0, b_0, W_1, b_1, ..., the norm's weight and bias.
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
  // [rows, out]: x + a W^T + b. The forward writes it where there is a norm; the backward reads it.
  float* sum = nullptr;
};

template <typename T>
size_t ProjectScratch(const RowsPlan& plan, const ProjectArgs<T>& args);
template <typename T>
void ProjectForward(const RowsPlan& plan, const ProjectArgs<T>& args, float* y, float* scratch,
                    ParallelFor parallel_for);
// grad_a [rows, in] and, where there is a residual, grad_x [rows, out] are written. The gradients:
// W, b, the norm's weight and bias.
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
  float* sum = nullptr;             // [rows, dim]: what n2 norms; where there is n2
};

template <typename T>
size_t FeedForwardScratch(const RowsPlan& plan, const FeedForwardArgs<T>& args);
// hidden may be null where no backward follows.
template <typename T>
void FeedForwardForward(const RowsPlan& plan, const FeedForwardArgs<T>& args, float* y,
                        float* scratch, ParallelFor parallel_for);
// grad_x is written. The gradients: W1, b1, W2, b2, n1's weight and bias, n2's, where there are any.
template <typename T>
size_t FeedForwardGradients(const FeedForwardArgs<T>& args);
template <typename T>
void FeedForwardBackward(const RowsPlan& plan, const FeedForwardArgs<T>& args, const float* grad_y,
                         float* grad_x, const SlotGradients& gradients, float* scratch,
                         ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LAYER_ROWS_H_
