// The launches of causal_linear.h (private to kernels/cuda), on any Machine that runs tile programs
// (tile.h): causal_linear.cu has one for a stream, the tests have one for the CPU. A Machine has
// these members:
//
//   Copy(to, from, bytes), Zero(to, bytes)
//   Run<Sizes>(blocks, args)               launches CausalProductTile
//   RunDelta(blocks, threads, args, to)    launches DeltaTile
#ifndef LINNET_KERNELS_CUDA_CAUSAL_LINEAR_PLAN_H_
#define LINNET_KERNELS_CUDA_CAUSAL_LINEAR_PLAN_H_

#include <algorithm>
#include <array>

#include "linnet/kernels/cuda/causal_linear.h"
#include "linnet/kernels/cuda/causal_product_tile.h"

namespace linnet::kernels::cuda {

// The width that the tile programs are compiled for: the least of 16, 32, 64 and 128 that is at
// least D and M.
inline int ProductWidth(const CausalLinearShape& shape) {
  const size_t most = std::max(shape.dim, shape.value_dim);
  return most <= 16 ? 16 : most <= 32 ? 32 : most <= 64 ? 64 : 128;
}

// Calls body with the width as a template argument: body.template operator()<32>().
template <class Body>
void WithProductWidth(int width, Body body) {
  switch (width) {
    case 16:
      return body.template operator()<16>();
    case 32:
      return body.template operator()<32>();
    case 64:
      return body.template operator()<64>();
    default:
      return body.template operator()<128>();
  }
}

// Number of floats that hold the sums of one segment of every sequence and head, in one product.
template <int kWidth, int kSplit, Product kProduct>
size_t SegmentFloats(const CausalLinearShape& shape) {
  using Sizes = ProductSizes<kWidth, kSplit, kProduct>;
  return shape.batch * shape.heads * Sizes::kSlices * Sizes::kSumFloats;
}

// Layout of the scratch memory: the offset of each part and the total size, in floats.
struct CausalLinearScratchParts {
  size_t state = 0;    // copies of the initial state: s, then z
  size_t control = 0;  // counters and flags of blocks, zeroed for each product
  size_t sums = 0;     // sums of segments
  size_t delta = 0;    // the number d of each row (causal_product_tile.h)
  size_t floats = 0;   // total size
};

inline size_t RoundUpFloats(size_t n) { return (n + 31) / 32 * 32; }

// Number of 32-bit words of `started` and `written` (CausalProductArgs), enough for eight slices.
inline size_t ControlWords(const CausalLinearPlan& plan) {
  constexpr size_t kMostSlices = 8;
  if (plan.segments <= 1) return 0;
  return 1 + plan.shape.batch * plan.shape.heads * kMostSlices * plan.segments;
}

// Number of floats of `inverse` and of `delta` (CausalProductArgs). Both are indexed by
// FirstRowOf() + position.
inline size_t ProductRows(const CausalLinearShape& shape, bool packed) {
  const size_t rows = (shape.length + 3) / 4 * 4;
  return packed ? shape.heads * (rows + 4 * shape.batch) : shape.batch * shape.heads * rows;
}

inline CausalLinearScratchParts ScratchPartsOf(const CausalLinearPlan& plan) {
  CausalLinearScratchParts parts;
  const CausalLinearShape& shape = plan.shape;
  size_t most = 0;
  WithProductWidth(ProductWidth(shape), [&]<int kWidth>() {
    const auto add = [&]<Product kProduct>() {
      most = std::max({most, SegmentFloats<kWidth, 1, kProduct>(shape),
                       SegmentFloats<kWidth, 2, kProduct>(shape)});
    };
    add.template operator()<Product::kForward>();
    add.template operator()<Product::kGradQ>();
    add.template operator()<Product::kGradK>();
    add.template operator()<Product::kGradV>();
  });
  parts.control = RoundUpFloats(shape.batch * shape.heads * shape.dim * (shape.value_dim + 1));
  parts.sums = parts.control + RoundUpFloats(ControlWords(plan));
  parts.delta = parts.sums + (plan.segments > 1 ? plan.segments * RoundUpFloats(most) : 0);
  parts.floats = parts.delta + RoundUpFloats(ProductRows(shape, plan.packed));
  return parts;
}

// The tile programs' arguments, from the plan and the arguments of the forward or the backward.
template <typename T>
CausalProductArgs<T> ProductArgs(const CausalLinearPlan& plan) {
  CausalProductArgs<T> to;
  to.batch = static_cast<unsigned>(plan.shape.batch);
  to.heads = static_cast<unsigned>(plan.shape.heads);
  to.length = static_cast<unsigned>(plan.shape.length);
  to.dim = static_cast<unsigned>(plan.shape.dim);
  to.value_dim = static_cast<unsigned>(plan.shape.value_dim);
  to.elu = plan.options.feature_map == FeatureMap::kElu;
  to.normalize = plan.options.normalize;
  to.eps = plan.options.eps;
  to.segments = plan.segments;
  to.segment_length = plan.segment_length;
  return to;
}
template <typename T>
CausalProductArgs<T> ProductArgs(const CausalLinearPlan& plan,
                                 const CausalLinearForwardArgsOf<T>& from) {
  CausalProductArgs<T> to = ProductArgs<T>(plan);
  to.lengths = from.lengths, to.offsets = from.offsets;
  to.q = from.q, to.k = from.k, to.v = from.v, to.out = from.out;
  to.inverse = from.kept;
  to.s = to.final_s = from.s, to.z = to.final_z = from.z;
  return to;
}
template <typename T>
CausalProductArgs<T> ProductArgs(const CausalLinearPlan& plan,
                                 const CausalLinearBackwardArgsOf<T>& from) {
  CausalProductArgs<T> to = ProductArgs<T>(plan);
  to.lengths = from.lengths, to.offsets = from.offsets;
  to.q = from.q, to.k = from.k, to.v = from.v, to.grad_out = from.grad_out;
  // The delta program only reads `out`.
  to.out = {const_cast<T*>(from.out.data), from.out.batch, from.out.time, from.out.head};
  to.grad_q = from.grad_q, to.grad_k = from.grad_k, to.grad_v = from.grad_v;
  to.inverse = const_cast<float*>(from.kept);  // the gradients' programs only read it
  to.s = from.s, to.z = from.z, to.grad_s = from.grad_s, to.grad_z = from.grad_z;
  to.grad_s0 = from.grad_s0, to.grad_z0 = from.grad_z0;
  return to;
}

// Launches one of the four products.
template <int kWidth, Product kProduct, class Machine, typename T>
void RunProduct(Machine& machine, const CausalLinearPlan& plan, CausalProductArgs<T> args,
                float* scratch) {
  using Sizes = ProductSizes<kWidth, sizeof(T) / 2, kProduct>;
  if (plan.segments > 1) {
    const CausalLinearScratchParts parts = ScratchPartsOf(plan);
    args.segment_sums = scratch + parts.sums;
    args.started = reinterpret_cast<unsigned*>(scratch + parts.control);
    args.written = args.started + 1;
    machine.Zero(args.started, ControlWords(plan) * sizeof(unsigned));
  }
  machine.template Run<Sizes>(BlocksOf<Sizes>(args), args);
}

template <class Machine, typename T>
void RunForward(Machine& machine, const CausalLinearPlan& plan,
                const CausalLinearForwardArgsOf<T>& args, float* scratch) {
  CausalProductArgs<T> product = ProductArgs(plan, args);
  // args.s and args.z hold the initial and then the final state. Some blocks may read the initial
  // state after others have written the final one, so all blocks read a copy of the initial state.
  const size_t z_floats = plan.shape.batch * plan.shape.heads * plan.shape.dim;
  const size_t s_floats = z_floats * plan.shape.value_dim;
  float* state = scratch + ScratchPartsOf(plan).state;
  if (args.s != nullptr) {
    machine.Copy(state, args.s, s_floats * sizeof(float));
    product.s = state;
  }
  if (args.z != nullptr) {
    machine.Copy(state + s_floats, args.z, z_floats * sizeof(float));
    product.z = state + s_floats;
  }
  WithProductWidth(ProductWidth(plan.shape), [&]<int kWidth>() {
    RunProduct<kWidth, Product::kForward>(machine, plan, product, scratch);
  });
}

template <class Machine, typename T>
void RunBackward(Machine& machine, const CausalLinearPlan& plan,
                 const CausalLinearBackwardArgsOf<T>& args, float* scratch) {
  CausalProductArgs<T> product = ProductArgs(plan, args);
  if (plan.options.normalize) {
    float* delta = scratch + ScratchPartsOf(plan).delta;
    constexpr unsigned kThreads = 256, kRows = kThreads / 4;
    machine.RunDelta({static_cast<unsigned>(plan.shape.batch * plan.shape.heads),
                      static_cast<unsigned>((plan.shape.length + kRows - 1) / kRows), 1},
                     kThreads, product, delta);
    product.delta = delta;
  }
  WithProductWidth(ProductWidth(plan.shape), [&]<int kWidth>() {
    RunProduct<kWidth, Product::kGradQ>(machine, plan, product, scratch);
    RunProduct<kWidth, Product::kGradK>(machine, plan, product, scratch);
    RunProduct<kWidth, Product::kGradV>(machine, plan, product, scratch);
  });
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CAUSAL_LINEAR_PLAN_H_
