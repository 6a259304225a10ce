// Gated linear recurrences with a matrix state: retention, gated linear attention, Mamba-2's state
// space duality, delta rules, RWKV-7. One interface covers them all, with three choices: how the
// state decays, what a position writes, and how the state is read.
//
//   ScanShape shape{.batch = 2, .length = 783, .heads = 8, .dim = 32, .value_dim = 32};
//   ScanOptions options{.decay = ScanDecay::kHead, .write = ScanWrite::kDelta, .scale = 0.18f};
//   std::vector<float> scratch(ScanForwardScratch(shape, options) * slots);
//   ScanForward(shape, options,
//               {.in = {.q = RowMajor(q, shape.length, shape.heads, shape.dim), ...},
//                .out = RowMajor(out, shape.length, shape.heads, shape.value_dim)},
//               {scratch.data(), slots}, parallel_for);
//
// Per batch element and head, for t = 0 .. L-1, with the state S [D, M] (S_{-1} is given or 0):
//
//   P   = diag(e^g_t) S_{t-1}         the decayed state; g_t is 0, a scalar, or one per key channel
//   S_t = P + write_t
//   out_t = S_t^T (scale q_t)                                      [M]
//
//   write_t                                           `erase`     `write`
//   kAdd       k v^T                                  -           -
//   kDelta     k (beta (v - P^T k))^T                 beta [1]    -
//   kTwoSided  k (w * v - P^T (b * k))^T              b [D]       w [M]
//   kRwkv7     b (S_{t-1}^T a)^T + k v^T              a [D]       b [D]
//
// The last two columns name the factors that the inputs `erase` and `write` hold.
//
// With `normalize` (kAdd only), z_t = e^g_t * z_{t-1} + k_t and out_t = S_t^T (scale q_t) /
// (scale q_t . z_t + eps), or 0 if the denominator's magnitude is below FLT_MIN.
//
// g are natural logarithms of decay factors, <= 0. Any g from 0 to -infinity is allowed and loses
// no accuracy: exponentials are taken only of differences of logarithms, and nothing overflows.
// Tensors and states are fp32. For sums without decay over streams of unbounded length use
// linear_step.h, whose two-part sums stay accurate.
//
// `lengths` and `offsets` mean the same as in causal_linear.h: positions >= lengths[n] change
// nothing (no decay, no write), and their outputs read the last state; packed sequence n is rows
// offsets[n] .. offsets[n+1] - 1 of tensors [T, H, width]. Results do not depend, bit for bit, on
// the number of slots or threads, or on the other sequences of a batch, padded or packed. If a
// sequence is split over two calls, the second starting from the final state of the first, the
// results agree with one call over the whole sequence up to rounding.
//
// The double-precision reference is scan_ref.h.
#ifndef LINNET_KERNELS_SCAN_H_
#define LINNET_KERNELS_SCAN_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

enum class ScanDecay : uint8_t {
  kNone,
  kHead,  // one g per position and head; for a constant g, set the stride over positions to 0
  kKey,   // one g per position, head and key channel
};

enum class ScanWrite : uint8_t { kAdd, kDelta, kTwoSided, kRwkv7 };

struct ScanOptions {
  ScanDecay decay = ScanDecay::kNone;
  ScanWrite write = ScanWrite::kAdd;
  bool normalize = false;
  float scale = 1.0f;
  float eps = 1e-6f;
};

// Widths of `decay`, `erase` and `write` in a scan; 0: not used.
struct ScanWidths {
  size_t decay, erase, write;

  ScanWidths(const ScanOptions& options, size_t dim, size_t value_dim)
      : decay(options.decay == ScanDecay::kKey ? dim : options.decay == ScanDecay::kHead),
        erase(options.write == ScanWrite::kAdd     ? 0
              : options.write == ScanWrite::kDelta ? 1
                                                   : dim),
        write(options.write == ScanWrite::kTwoSided ? value_dim
              : options.write == ScanWrite::kRwkv7  ? dim
                                                    : 0) {}
};

struct ScanShape {
  size_t batch = 0, length = 0, heads = 0, dim = 0, value_dim = 0;  // N, L, H, D, M >= 1
  size_t group = 1;  // head h reads head h / group of q and k; all other tensors have H heads
};

// The inputs of a scan, or their gradients.
template <typename T>
struct ScanTensors {
  Strided<T> q, k;          // [N, L, H / group, D]; gradients [N, L, H, D]
  Strided<T> v;             // [N, L, H, M]
  Strided<T> decay;         // kHead: [N, L, H, 1]; kKey: [N, L, H, D]
  Strided<T> erase, write;  // [N, L, H, width]: see the table above
};

// Floats of scratch for each slot. Each slot processes a share of the batch x heads problems; a
// problem is one head of one sequence. For packed sequences, all shares have about the same number
// of tokens.
size_t ScanForwardScratch(const ScanShape& shape, const ScanOptions& options);
size_t ScanBackwardScratch(const ScanShape& shape, const ScanOptions& options);

// Number of floats that the forward keeps for the backward: the state of each head at every 256th
// position, and with `normalize` a denominator for each position and head. `packed` means packed
// sequences: shape.length is then T, and the number is enough for any offsets.
size_t ScanKept(const ScanShape& shape, const ScanOptions& options, bool packed = false);

struct ScanForwardArgs {
  ScanTensors<const float> in;
  Strided<float> out;                // [N, L, H, M]
  const int64_t* lengths = nullptr;  // optional, [N]
  const int64_t* offsets = nullptr;  // optional, [N + 1]
  float* kept = nullptr;             // optional: ScanKept() floats, written for the backward
  // Optional, dense: s [N, H, D, M] and, if `normalize`, z [N, H, D] hold the state before the
  // first position and receive the state after the last one.
  float* s = nullptr;
  float* z = nullptr;
};

void ScanForward(const ScanShape& shape, const ScanOptions& options, const ScanForwardArgs& args,
                 Scratch scratch, ParallelFor parallel_for);

struct ScanBackwardArgs {
  ScanTensors<const float> in;       // the forward's inputs
  Strided<const float> out;          // the forward's; read only if normalize
  Strided<const float> grad_out;     // [N, L, H, M]
  const float* kept = nullptr;       // the forward's
  const int64_t* lengths = nullptr;  // the forward's
  const int64_t* offsets = nullptr;  // the forward's
  // Written, except gradients whose `data` is null and gradients of inputs that the options do not
  // use. The gradients of q and k are per head, not summed over a group.
  ScanTensors<float> grad;
  // Optional, dense, [N, H, D, M] and (normalize) [N, H, D]: gradient of the forward's final state;
  // null means zero.
  const float* grad_s = nullptr;
  const float* grad_z = nullptr;
  // Optional, of the same shapes, written: gradient of the forward's initial state.
  float* grad_s0 = nullptr;
  float* grad_z0 = nullptr;
};

// Gradients of sum(out * grad_out) + sum(s * grad_s) + sum(z * grad_z), where s and z are the final
// state. States between the kept ones are recomputed. The gradient of a decay is a sum whose terms
// may cancel: its error is relative to the magnitude of q * grad_q and k * grad_k at nearby
// positions.
void ScanBackward(const ScanShape& shape, const ScanOptions& options, const ScanBackwardArgs& args,
                  Scratch scratch, ParallelFor parallel_for);

struct ScanStepArgs {
  ScanTensors<const float> in;  // the `time` strides are not read
  Strided<float> out;           // must not alias the inputs
  // The state of sequence 0, dense [H, D, M] and (normalize) [H, D], updated in place. s and z of
  // sequence n begin n * s_stride and n * z_stride floats later.
  float* s = nullptr;
  float* z = nullptr;
  ptrdiff_t s_stride = 0, z_stride = 0;
  // Optional, [N]: row n of the inputs and of `out` steps state sequences[n]. Null: state n.
  const size_t* sequences = nullptr;
  float* scratch = nullptr;  // ScanStepScratch() floats
};

// Floats of ScanStepArgs::scratch.
size_t ScanStepScratch(const ScanShape& shape);
// Steps `shape.batch` sequences by one position, in the recurrent form; shape.length is not read.
// To step only some of the heads, reduce shape.heads and offset the pointers.
void ScanStep(const ScanShape& shape, const ScanOptions& options, const ScanStepArgs& args);

// The elementwise scan of HGRN, with a state of one number for each channel:
//
//   h_t = e^g_t h_{t-1} + x_t,  out_t = h_t
struct ChannelScanShape {
  size_t batch = 0, length = 0, channels = 0;  // N, L, C
};

struct ChannelScanArgs {
  Strided<const float> x, g;  // [N, L, C]; the `head` strides are not read
  Strided<float> out;         // [N, L, C]
  // As in ScanForwardArgs. Outputs at positions >= lengths[n] repeat the last state.
  const int64_t* lengths = nullptr;
  const int64_t* offsets = nullptr;
  float* h = nullptr;  // optional, [N, C]: the initial state, replaced by the final state
};
void ChannelScanForward(const ChannelScanShape& shape, const ChannelScanArgs& args,
                        ParallelFor parallel_for);

struct ChannelScanBackwardArgs {
  Strided<const float> g, out, grad_out;
  const int64_t* lengths = nullptr;
  const int64_t* offsets = nullptr;
  const float* h0 = nullptr;      // [N, C]: the forward's initial state; null: zero
  const float* grad_h = nullptr;  // [N, C]: gradient of the final state; null: zero
  Strided<float> grad_x, grad_g;  // written
  float* grad_h0 = nullptr;       // optional, written
};
void ChannelScanBackward(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                         ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SCAN_H_
