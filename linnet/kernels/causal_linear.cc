#include "linnet/kernels/causal_linear.h"

#include <cassert>

#include "linnet/kernels/causal_linear_kept.h"
#include "linnet/kernels/deal_heads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/causal_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/causal_linear-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ForwardSumsF32);
HWY_EXPORT(ForwardSumsBf16);
HWY_EXPORT(ForwardF32);
HWY_EXPORT(ForwardBf16);
HWY_EXPORT(BackwardSumsF32);
HWY_EXPORT(BackwardSumsBf16);
HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardBf16);
HWY_EXPORT(ChainStates);

namespace {

constexpr size_t kMaxBlock = 32;  // kBlock of causal_linear-inl.h

// Number of floats of scratch for one head in the backward: a segment's rows of q, k, v and g, a
// block's rows of two gradients, three states, two vectors z, and a cache line for alignment. The
// forward needs less.
size_t SlotSize(const CausalLinearShape& shape) {
  const size_t dp = PadTo16(shape.dim), mp = PadTo16(shape.value_dim);
  return (2 * kKeptRows + kMaxBlock) * (dp + mp) + 3 * dp * mp + 2 * dp + 16;
}

// Like DealHeads(), but splits each sequence into parts. Computes the sums over each part, and
// turns them into the initial state of each part: the sums over all earlier parts or, in the
// backward, over all later parts. Then runs each part from its initial state. The states lie in the
// first slot's scratch.
void ForParts(const CausalLinearShape& shape, size_t parts, Scratch scratch,
              ParallelFor parallel_for, bool backwards, const float* s, const float* z,
              FunctionRef<void(float* slot, size_t n, size_t h, Part part, float* state)> sums,
              FunctionRef<void(float* slot, size_t n, size_t h, Part part)> body) {
  const size_t slot_size = CausalLinearScratch(shape), state_size = Kept::StateSize(shape);
  const size_t problems = shape.batch * shape.heads, tasks = problems * parts;
  float* const states = scratch.data + SlotSize(shape);
  const auto state = [&](size_t problem, size_t part) {
    return states + (problem * (parts + 1) + part) * state_size;
  };
  const auto deal = [&](FunctionRef<void(float* slot, size_t problem, size_t part)> task) {
    parallel_for(scratch.slots, [&](size_t begin, size_t end) {
      for (size_t slot = begin; slot < end; ++slot) {
        float* const own = scratch.data + slot * slot_size;
        const size_t last = tasks * (slot + 1) / scratch.slots;
        for (size_t t = tasks * slot / scratch.slots; t < last; ++t)
          task(own, t / parts, t % parts);
      }
    });
  };
  deal([&](float* slot, size_t problem, size_t part) {
    if (part == (backwards ? 0 : parts - 1)) return;  // no other part needs its sums
    sums(slot, problem / shape.heads, problem % shape.heads,
         Part(shape.length, part, parts, nullptr), state(problem, part));
  });
  for (size_t p = 0; p < problems; ++p) {
    HWY_DYNAMIC_DISPATCH(ChainStates)
    (shape, s ? s + p * shape.dim * shape.value_dim : nullptr, z ? z + p * shape.dim : nullptr,
     parts, backwards, state(p, 0));
  }
  deal([&](float* slot, size_t problem, size_t part) {
    body(slot, problem / shape.heads, problem % shape.heads,
         Part(shape.length, part, parts, state(problem, part)));
  });
}

template <class Args, class Sums, class Body>
void Deal(const CausalLinearShape& shape, const Args& args, Scratch scratch,
          ParallelFor parallel_for, bool backwards, const float* s, const float* z,
          const Sums& sums, const Body& body) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const size_t parts = Parts(shape, args.offsets != nullptr);
  if (parts > 1) {
    ForParts(shape, parts, scratch, parallel_for, backwards, s, z, sums, body);
  } else {
    DealHeads({shape.batch, shape.heads, args.offsets}, CausalLinearScratch(shape), scratch,
              parallel_for, [&](float* slot, size_t n, size_t h) {
                const size_t length =
                    args.offsets ? static_cast<size_t>(args.offsets[n + 1] - args.offsets[n])
                                 : shape.length;
                body(slot, n, h, Part(length, 0, 1, nullptr));
              });
  }
}

}  // namespace

size_t CausalLinearScratch(const CausalLinearShape& shape) {
  // Split sequences also need the states between parts. Packed sequences are never split.
  const size_t parts = Parts(shape, /*packed=*/false);
  if (parts == 1) return SlotSize(shape);
  return SlotSize(shape) + shape.batch * shape.heads * (parts + 1) * Kept::StateSize(shape);
}

size_t CausalLinearKept(const CausalLinearShape& shape, bool packed) {
  const Kept kept(shape, packed ? shape.length : shape.batch * shape.length, packed);
  return kept.states * kept.state_size + kept.rows;
}

void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgs& args, Scratch scratch,
                         ParallelFor parallel_for) {
  Deal(
      shape, args, scratch, parallel_for, /*backwards=*/false, args.s, args.z,
      [&](float* slot, size_t n, size_t h, Part part, float* state) {
        HWY_DYNAMIC_DISPATCH(ForwardSumsF32)(shape, options, args, slot, n, h, part, state);
      },
      [&](float* slot, size_t n, size_t h, Part part) {
        HWY_DYNAMIC_DISPATCH(ForwardF32)(shape, options, args, slot, n, h, part);
      });
}

void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgsBf16& args, Scratch scratch,
                         ParallelFor parallel_for) {
  Deal(
      shape, args, scratch, parallel_for, /*backwards=*/false, args.s, args.z,
      [&](float* slot, size_t n, size_t h, Part part, float* state) {
        HWY_DYNAMIC_DISPATCH(ForwardSumsBf16)(shape, options, args, slot, n, h, part, state);
      },
      [&](float* slot, size_t n, size_t h, Part part) {
        HWY_DYNAMIC_DISPATCH(ForwardBf16)(shape, options, args, slot, n, h, part);
      });
}

void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(args.kept != nullptr || shape.batch * shape.length * shape.heads == 0);
  Deal(
      shape, args, scratch, parallel_for, /*backwards=*/true, args.grad_s,
      options.normalize ? args.grad_z : nullptr,
      [&](float* slot, size_t n, size_t h, Part part, float* state) {
        HWY_DYNAMIC_DISPATCH(BackwardSumsF32)(shape, options, args, slot, n, h, part, state);
      },
      [&](float* slot, size_t n, size_t h, Part part) {
        HWY_DYNAMIC_DISPATCH(BackwardF32)(shape, options, args, slot, n, h, part);
      });
}

void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsBf16& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(args.kept != nullptr || shape.batch * shape.length * shape.heads == 0);
  Deal(
      shape, args, scratch, parallel_for, /*backwards=*/true, args.grad_s,
      options.normalize ? args.grad_z : nullptr,
      [&](float* slot, size_t n, size_t h, Part part, float* state) {
        HWY_DYNAMIC_DISPATCH(BackwardSumsBf16)(shape, options, args, slot, n, h, part, state);
      },
      [&](float* slot, size_t n, size_t h, Part part) {
        HWY_DYNAMIC_DISPATCH(BackwardBf16)(shape, options, args, slot, n, h, part);
      });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
