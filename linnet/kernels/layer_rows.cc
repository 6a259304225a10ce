#include "linnet/kernels/layer_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linnet/kernels/layer_norm.h"
#include "linnet/kernels/matmul.h"
#include "linnet/kernels/rows.h"

namespace linnet::kernels {
namespace {

// Size of a block's widest intermediate result. Measured (docs/decisions/025): smaller blocks make
// oneDNN's products slower and need more passes over the gradient sums; larger blocks gain nothing.
constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kMinBlock = 32, kMaxBlock = 1024;

constexpr size_t kLine = 16;  // floats in a cache line
constexpr size_t Padded(size_t n) { return (n + kLine - 1) / kLine * kLine; }

// Number of floats that take as much memory as n values of type T, rounded up to cache lines.
template <typename T>
constexpr size_t FloatsOf(size_t n) {
  return Padded((n * sizeof(T) + sizeof(float) - 1) / sizeof(float));
}

// Hands out consecutive pieces of a slot's scratch.
class Arena {
 public:
  explicit Arena(float* at) : at_(at) {}
  template <typename T>
  T* Take(size_t n) {
    T* piece = reinterpret_cast<T*>(at_);
    at_ += FloatsOf<T>(n);
    return piece;
  }

 private:
  float* at_;
};

struct Block {
  size_t begin, rows;
  // Whether this is the first block of its slot. The first block overwrites the gradient sums, and
  // later blocks add to them.
  bool first;
};

// Runs body(slot, block) over all blocks: slots in parallel, each slot's blocks in order.
template <typename Body>
void ForBlocks(const RowsPlan& plan, ParallelFor parallel_for, Body body) {
  parallel_for(plan.slots, [&](size_t slot_begin, size_t slot_end) {
    for (size_t slot = slot_begin; slot < slot_end; ++slot) {
      const size_t first = plan.blocks * slot / plan.slots;
      const size_t last = plan.blocks * (slot + 1) / plan.slots;
      for (size_t b = first; b < last; ++b) {
        const size_t begin = plan.rows * b / plan.blocks, end = plan.rows * (b + 1) / plan.blocks;
        body(slot, Block{begin, end - begin, b == first});
      }
    }
  });
}

// Adds the gradients of the other slots to those of the first slot.
void SumSlots(const RowsPlan& plan, size_t count, const SlotGradients& gradients,
              ParallelFor parallel_for) {
  constexpr size_t kPiece = 1 << 14;
  if (plan.slots == 1) return;
  parallel_for((count + kPiece - 1) / kPiece, [&](size_t begin, size_t end) {
    for (size_t slot = 1; slot < plan.slots; ++slot) {
      const size_t from = begin * kPiece, to = std::min(end * kPiece, count);
      Add(to - from, gradients.Of(slot, count) + from, gradients.sum + from);
    }
  });
}

// The rows of an operand of a product, `stride` elements apart.
template <typename T>
struct Rows {
  const T* data;
  size_t stride;

  MatOperand Operand() const { return {data, MatTypeOf<T>(), false, stride}; }
  MatOperand Transpose() const { return {data, MatTypeOf<T>(), true, stride}; }
};

template <typename T>
size_t StrideOf(size_t columns) {
  return MatMulStride(columns, MatTypeOf<T>());
}

// Returns x [rows, columns] as an operand: x itself for float, or a rounded copy for BFloat16.
template <typename T>
Rows<T> Read(Arena& arena, size_t rows, size_t columns, const float* x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {x, columns};
  } else {
    T* to = arena.Take<T>(rows * columns);
    Narrow(rows * columns, x, to);
    return {to, columns};
  }
}

// The same with the stride that suits ProductGradWeight(): if that is not `columns`, copies x.
template <typename T>
Rows<T> ReadApart(Arena& arena, size_t rows, size_t columns, const float* x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const size_t stride = StrideOf<T>(columns);
    if (stride != columns) {
      T* to = arena.Take<T>(rows * stride);
      for (size_t r = 0; r < rows; ++r) {
        std::memcpy(to + r * stride, x + r * columns, columns * sizeof(float));
      }
      return {to, stride};
    }
  }
  return Read<T>(arena, rows, columns, x);
}
// Number of floats that ReadApart() takes from the arena, and at most that many Read().
template <typename T>
size_t ReadFloats(size_t rows, size_t columns) {
  if (sizeof(T) != sizeof(float)) return FloatsOf<T>(rows * columns);
  const size_t stride = StrideOf<T>(columns);
  return stride == columns ? 0 : FloatsOf<T>(rows * stride);
}

// y [rows, out] (+)= x W^T + b
template <typename T, typename Y>
void Product(size_t rows, size_t in, size_t out, const Rows<T>& x, const T* weight,
             const float* bias, Y* y, bool accumulate = false) {
  MatMul({rows, out, in}, x.Operand(), {weight, MatTypeOf<T>(), /*transposed=*/true}, bias,
         {y, MatTypeOf<Y>(), accumulate});
}

// grad_x [rows, in] (+)= grad_y W; rows of grad_x are `stride` floats apart (0: dense)
template <typename T>
void ProductGradX(size_t rows, size_t in, size_t out, const Rows<T>& grad_y, const T* weight,
                  float* grad_x, bool accumulate = false, size_t stride = 0) {
  MatMul({rows, in, out}, grad_y.Operand(), {weight, MatTypeOf<T>()}, nullptr,
         {grad_x, MatType::kF32, accumulate, stride});
}

// grad_W [out, in] (+)= grad_y^T x
template <typename T>
void ProductGradWeight(size_t rows, size_t in, size_t out, const Rows<T>& grad_y, const Rows<T>& x,
                       float* grad_weight, bool accumulate) {
  MatMul({out, in, rows}, grad_y.Transpose(), x.Operand(), nullptr,
         {grad_weight, MatType::kF32, accumulate});
}

void Norm(size_t rows, size_t dim, const RowNorm& norm, const float* x, float* y, size_t y_stride) {
  LayerNorm({rows, dim, norm.eps}, {.x = x, .x_stride = dim}, {norm.weight, norm.bias}, y,
            y_stride);
}

// Returns norm(x), x [rows, dim], as an operand.
template <typename T>
Rows<T> ReadNormed(Arena& arena, size_t rows, size_t dim, const RowNorm& norm, const float* x) {
  const size_t stride = sizeof(T) == sizeof(float) ? StrideOf<T>(dim) : dim;
  float* normed = arena.Take<float>(rows * stride);
  Norm(rows, dim, norm, x, normed, stride);
  if constexpr (sizeof(T) == sizeof(float)) {
    return {normed, stride};
  } else {
    return Read<T>(arena, rows, dim, normed);
  }
}

// Writes grad_x [rows, dim]. Adds the gradients of weight, then of bias, to grad [2 dim].
void NormBackward(size_t rows, size_t dim, const RowNorm& norm, const float* x, const float* grad_y,
                  float* grad_x, float* grad) {
  LayerNormBackward({rows, dim, norm.eps}, {.x = x,
                                            .weight = norm.weight,
                                            .grad_y = grad_y,
                                            .grad_x = grad_x,
                                            .grad_weight = grad,
                                            .grad_bias = grad + dim});
}

// Size, in floats, of the gradients of a norm's parameters.
constexpr size_t NormGradient(const RowNorm& norm, size_t dim) {
  return norm.weight != nullptr ? 2 * dim : 0;
}

void Clear(float* x, size_t n) { std::memset(x, 0, n * sizeof(float)); }
void Copy(const float* x, size_t n, float* to) { std::memcpy(to, x, n * sizeof(float)); }

}  // namespace

RowsPlan PlanRows(size_t rows, size_t widest, size_t threads) {
  const size_t block = std::clamp(kBlockBytes / std::max<size_t>(widest, 1), kMinBlock, kMaxBlock);
  RowsPlan plan;
  plan.rows = rows;
  plan.blocks = std::max<size_t>((rows + block - 1) / block, 1);
  // Gives all threads the same number of blocks, unless that needs blocks of under kMinBlock rows.
  const size_t even = (plan.blocks + threads - 1) / threads * threads;
  if (rows / even >= kMinBlock) plan.blocks = even;
  plan.block = (rows + plan.blocks - 1) / plan.blocks;
  plan.slots = std::min(threads, plan.blocks);
  return plan;
}

namespace {

// Size of the largest of the products' gradients as operands, in floats.
template <typename T>
size_t WidestRead(const RowsPlan& plan, const LinearsArgs<T>& args) {
  size_t widest = 0;
  for (size_t i = 0; i < args.products; ++i) {
    widest = std::max(widest, ReadFloats<T>(plan.block, args.out[i]));
  }
  return widest;
}

}  // namespace

template <typename T>
size_t LinearsScratch(const RowsPlan& plan, const LinearsArgs<T>& args) {
  const size_t normed = FloatsOf<float>(plan.block * StrideOf<T>(args.in));
  const size_t grad_u = FloatsOf<float>(plan.block * args.in);
  return (args.norm ? normed + grad_u : 0) + ReadFloats<T>(plan.block, args.in) +
         WidestRead(plan, args);
}

template <typename T>
void LinearsForward(const RowsPlan& plan, const LinearsArgs<T>& args, float* const* y,
                    float* scratch, ParallelFor parallel_for) {
  const size_t scratch_size = LinearsScratch(plan, args);
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    const float* x = args.x + block.begin * args.in;
    const Rows<T> read = args.norm ? ReadNormed<T>(arena, block.rows, args.in, args.norm, x)
                                   : Read<T>(arena, block.rows, args.in, x);
    for (size_t i = 0; i < args.products; ++i) {
      Product(block.rows, args.in, args.out[i], read, args.weight[i], args.bias[i],
              y[i] + block.begin * args.out[i]);
    }
  });
}

template <typename T>
size_t LinearsGradients(const LinearsArgs<T>& args) {
  size_t count = NormGradient(args.norm, args.in);
  for (size_t i = 0; i < args.products; ++i) count += ProductGradient(args.in, args.out[i]);
  return count;
}

template <typename T>
void LinearsBackward(const RowsPlan& plan, const LinearsArgs<T>& args, const float* const* grad_y,
                     float* grad_x, const SlotGradients& gradients, float* scratch,
                     ParallelFor parallel_for) {
  const size_t scratch_size = LinearsScratch(plan, args), count = LinearsGradients(args);
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    float* gradient = gradients.Of(slot, count);
    const float* x = args.x + block.begin * args.in;
    float* grad_x_block = grad_x + block.begin * args.in;
    float* grad_u = args.norm ? arena.Take<float>(plan.block * args.in) : grad_x_block;
    const Rows<T> read = args.norm ? ReadNormed<T>(arena, block.rows, args.in, args.norm, x)
                                   : ReadApart<T>(arena, block.rows, args.in, x);
    for (size_t i = 0; i < args.products; ++i) {
      const size_t out = args.out[i];
      const float* grad = grad_y[i] + block.begin * out;
      float* grad_bias = gradient + args.in * out;
      if (block.first) Clear(grad_bias, out);
      AddColumns(block.rows, out, grad, grad_bias);
      Arena room = arena;  // each product reuses the memory
      const Rows<T> grad_read = ReadApart<T>(room, block.rows, out, grad);
      ProductGradWeight(block.rows, args.in, out, grad_read, read, gradient, !block.first);
      ProductGradX(block.rows, args.in, out, grad_read, args.weight[i], grad_u, i > 0);
      gradient += ProductGradient(args.in, out);
    }
    if (args.norm) {
      if (block.first) Clear(gradient, 2 * args.in);
      NormBackward(block.rows, args.in, args.norm, x, grad_u, grad_x_block, gradient);
    }
  });
  SumSlots(plan, count, gradients, parallel_for);
}

template <typename T>
size_t ProjectScratch(const RowsPlan& plan, const ProjectArgs<T>& args) {
  return FloatsOf<float>(plan.block * args.out) + ReadFloats<T>(plan.block, args.in) +
         ReadFloats<T>(plan.block, args.out);
}

template <typename T>
void ProjectForward(const RowsPlan& plan, const ProjectArgs<T>& args, float* y, float* scratch,
                    ParallelFor parallel_for) {
  const size_t scratch_size = ProjectScratch(plan, args);
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    const size_t at = block.begin * args.out;
    const Rows<T> read = Read<T>(arena, block.rows, args.in, args.a + block.begin * args.in);
    float* sum = args.norm ? args.sum + at : y + at;
    if (args.x != nullptr) Copy(args.x + at, block.rows * args.out, sum);
    Product(block.rows, args.in, args.out, read, args.weight, args.bias, sum, args.x != nullptr);
    if (args.norm) Norm(block.rows, args.out, args.norm, sum, y + at, args.out);
  });
}

template <typename T>
size_t ProjectGradients(const ProjectArgs<T>& args) {
  return ProductGradient(args.in, args.out) + NormGradient(args.norm, args.out);
}

template <typename T>
void ProjectBackward(const RowsPlan& plan, const ProjectArgs<T>& args, const float* grad_y,
                     float* grad_a, float* grad_x, const SlotGradients& gradients, float* scratch,
                     ParallelFor parallel_for) {
  const size_t scratch_size = ProjectScratch(plan, args), count = ProjectGradients(args);
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    float* gradient = gradients.Of(slot, count);
    float* grad_bias = gradient + args.in * args.out;
    float* grad_norm = grad_bias + args.out;
    if (block.first) Clear(grad_bias, args.out + NormGradient(args.norm, args.out));
    const size_t at = block.begin * args.out, floats = block.rows * args.out;
    const float* grad_sum = grad_y + at;
    float* room = arena.Take<float>(plan.block * args.out);
    if (args.norm) {
      float* to = grad_x != nullptr ? grad_x + at : room;
      NormBackward(block.rows, args.out, args.norm, args.sum + at, grad_sum, to, grad_norm);
      grad_sum = to;
    } else if (grad_x != nullptr) {
      Copy(grad_sum, floats, grad_x + at);
    }
    AddColumns(block.rows, args.out, grad_sum, grad_bias);
    const Rows<T> read = ReadApart<T>(arena, block.rows, args.in, args.a + block.begin * args.in);
    const Rows<T> grad_read = ReadApart<T>(arena, block.rows, args.out, grad_sum);
    ProductGradWeight(block.rows, args.in, args.out, grad_read, read, gradient, !block.first);
    ProductGradX(block.rows, args.in, args.out, grad_read, args.weight,
                 grad_a + block.begin * args.in);
  });
  SumSlots(plan, count, gradients, parallel_for);
}

template <typename T>
size_t FeedForwardScratch(const RowsPlan& plan, const FeedForwardArgs<T>& args) {
  const size_t narrow = plan.block * args.dim;
  const size_t wide = plan.block * StrideOf<T>(args.hidden_dim);
  return 2 * FloatsOf<float>(narrow) + FloatsOf<float>(plan.block * StrideOf<T>(args.dim)) +
         2 * FloatsOf<T>(wide) + FloatsOf<float>(wide) + 2 * ReadFloats<T>(plan.block, args.dim);
}

template <typename T>
void FeedForwardForward(const RowsPlan& plan, const FeedForwardArgs<T>& args, float* y,
                        float* scratch, ParallelFor parallel_for) {
  const size_t scratch_size = FeedForwardScratch(plan, args);
  const size_t dim = args.dim, wide = args.hidden_dim;
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    const size_t at = block.begin * dim, floats = block.rows * dim;
    const Rows<T> read = args.norm_before
                             ? ReadNormed<T>(arena, block.rows, dim, args.norm_before, args.x + at)
                             : Read<T>(arena, block.rows, dim, args.x + at);
    T* active = arena.Take<T>(plan.block * wide);
    T* hidden = args.hidden != nullptr ? args.hidden + block.begin * wide : active;
    Product(block.rows, dim, wide, read, args.weight1, args.bias1, hidden);
    Activate(args.activation, block.rows * wide, hidden, active);
    float* sum = args.norm_after ? args.sum + at : y + at;
    Copy(args.x + at, floats, sum);
    Product<T>(block.rows, wide, dim, {active, wide}, args.weight2, args.bias2, sum,
               /*accumulate=*/true);
    if (args.norm_after) Norm(block.rows, dim, args.norm_after, sum, y + at, dim);
  });
}

template <typename T>
size_t FeedForwardGradients(const FeedForwardArgs<T>& args) {
  return ProductGradient(args.dim, args.hidden_dim) + ProductGradient(args.hidden_dim, args.dim) +
         NormGradient(args.norm_before, args.dim) + NormGradient(args.norm_after, args.dim);
}

template <typename T>
void FeedForwardBackward(const RowsPlan& plan, const FeedForwardArgs<T>& args, const float* grad_y,
                         float* grad_x, const SlotGradients& gradients, float* scratch,
                         ParallelFor parallel_for) {
  const size_t scratch_size = FeedForwardScratch(plan, args), count = FeedForwardGradients(args);
  const size_t dim = args.dim, wide = args.hidden_dim, stride = StrideOf<T>(wide);
  ForBlocks(plan, parallel_for, [&](size_t slot, Block block) {
    Arena arena(scratch + slot * scratch_size);
    float* grad_weight1 = gradients.Of(slot, count);
    float* grad_bias1 = grad_weight1 + dim * wide;
    float* grad_weight2 = grad_bias1 + wide;
    float* grad_bias2 = grad_weight2 + dim * wide;
    float* grad_before = grad_bias2 + dim;
    float* grad_after = grad_before + NormGradient(args.norm_before, dim);
    if (block.first) {
      Clear(grad_bias1, wide);
      Clear(grad_bias2, static_cast<size_t>(grad_weight1 + count - grad_bias2));
    }
    const size_t at = block.begin * dim, floats = block.rows * dim;

    // Backward through n2. The gradient of the sum is also the gradient of the residual x.
    const float* grad_sum = grad_y + at;
    float* room = arena.Take<float>(plan.block * dim);
    if (args.norm_after) {
      NormBackward(block.rows, dim, args.norm_after, args.sum + at, grad_sum, room, grad_after);
      grad_sum = room;
    }
    AddColumns(block.rows, dim, grad_sum, grad_bias2);

    // Backward through the second product and the activation.
    const Rows<T> grad_read = ReadApart<T>(arena, block.rows, dim, grad_sum);
    T* active = arena.Take<T>(plan.block * stride);
    float* grad_active = arena.Take<float>(plan.block * stride);
    T* grad_hidden = sizeof(T) == sizeof(float) ? reinterpret_cast<T*>(grad_active)
                                                : arena.Take<T>(plan.block * stride);
    ProductGradX(block.rows, wide, dim, grad_read, args.weight2, grad_active,
                 /*accumulate=*/false, stride);
    ActivateBackward(args.activation, block.rows, wide,
                     ActivationBackwardArgs<T>{.x = args.hidden + block.begin * wide,
                                               .grad_out = grad_active,
                                               .out = active,
                                               .grad = grad_hidden,
                                               .column_sums = grad_bias1,
                                               .stride = stride});
    ProductGradWeight<T>(block.rows, wide, dim, grad_read, {active, stride}, grad_weight2,
                         !block.first);

    // Backward through the first product and n1.
    const float* x = args.x + at;
    const Rows<T> read = args.norm_before
                             ? ReadNormed<T>(arena, block.rows, dim, args.norm_before, x)
                             : ReadApart<T>(arena, block.rows, dim, x);
    const Rows<T> grad_up = {grad_hidden, stride};
    ProductGradWeight(block.rows, dim, wide, grad_up, read, grad_weight1, !block.first);
    if (args.norm_before) {
      float* grad_u = arena.Take<float>(plan.block * dim);
      ProductGradX(block.rows, dim, wide, grad_up, args.weight1, grad_u);
      NormBackward(block.rows, dim, args.norm_before, x, grad_u, grad_x + at, grad_before);
      Add(floats, grad_sum, grad_x + at);
    } else {
      Copy(grad_sum, floats, grad_x + at);
      ProductGradX(block.rows, dim, wide, grad_up, args.weight1, grad_x + at,
                   /*accumulate=*/true);
    }
  });
  SumSlots(plan, count, gradients, parallel_for);
}

#define LINNET_LAYER_ROWS(T)                                                                      \
  template size_t LinearsScratch<T>(const RowsPlan&, const LinearsArgs<T>&);                      \
  template void LinearsForward<T>(const RowsPlan&, const LinearsArgs<T>&, float* const*, float*,  \
                                  ParallelFor);                                                   \
  template size_t LinearsGradients<T>(const LinearsArgs<T>&);                                     \
  template void LinearsBackward<T>(const RowsPlan&, const LinearsArgs<T>&, const float* const*,   \
                                   float*, const SlotGradients&, float*, ParallelFor);            \
  template size_t ProjectScratch<T>(const RowsPlan&, const ProjectArgs<T>&);                      \
  template void ProjectForward<T>(const RowsPlan&, const ProjectArgs<T>&, float*, float*,         \
                                  ParallelFor);                                                   \
  template size_t ProjectGradients<T>(const ProjectArgs<T>&);                                     \
  template void ProjectBackward<T>(const RowsPlan&, const ProjectArgs<T>&, const float*, float*,  \
                                   float*, const SlotGradients&, float*, ParallelFor);            \
  template size_t FeedForwardScratch<T>(const RowsPlan&, const FeedForwardArgs<T>&);              \
  template void FeedForwardForward<T>(const RowsPlan&, const FeedForwardArgs<T>&, float*, float*, \
                                      ParallelFor);                                               \
  template size_t FeedForwardGradients<T>(const FeedForwardArgs<T>&);                             \
  template void FeedForwardBackward<T>(const RowsPlan&, const FeedForwardArgs<T>&, const float*,  \
                                       float*, const SlotGradients&, float*, ParallelFor)
LINNET_LAYER_ROWS(float);
LINNET_LAYER_ROWS(BFloat16);
#undef LINNET_LAYER_ROWS

}  // namespace linnet::kernels
