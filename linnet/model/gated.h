// Gated recurrences (retention, gated linear attention, delta rules) as plain data. A GatedForm
// says how a kind of mixer computes the inputs of the scan (kernels/scan.h) from its projections,
// and its result from the scan's output. nn/mixer_gated.cc and runtime/mixer_gated.cc compute any
// form.
//
//   GatedForm form = FindMixer("gla").gated(spec);
//   GatedProjections(spec, form)      // q_proj, k_proj, v_proj, gk_proj.0, g_proj
//
// For a position t with input x, and head h, with K = query_dim and V = value_dim:
//
//   q, k, v   projections of x; with a convolution, silu(causal depthwise convolution) of them;
//             with a delta rule, q is divided by sqrt(|q|^2 + 1e-6), k by sqrt(|k|^2 + 1e-6);
//             with `rotary`, channels i and i + K/2 of q and k are rotated by the angle
//             t 10000^(-2i/K)
//   out       the output of the scan with scale K^-1/2, the form's GatedDecay and its GatedWrite
//   result    out / sqrt(mean(out^2) + eps) * norm, times silu(g) or sigmoid(g)
//
// Groups of `readers` consecutive heads share projections: q and k or, with `shared_values`, k, v
// and the decays per key channel.
//
// With `householders` = n, a position has n keys, n values and n strengths (GatedWrite::kDelta),
// and the state takes n delta steps: it decays before the first and is read after the last.
//
// With `timed` (Mamba-2), a position has the time step d = softplus(a_proj x + dt_bias). The
// logarithm of the decay is -exp(A_log) d, the scan's scale is 1, and the scan's value is d v
// instead of v. out is the scan's output + D v. The result is y / sqrt(mean(y^2) + eps) * norm with
// y = out silu(g), where the mean is over the channels of all heads that read the same keys.
//
// A form with the decay kChannel (HGRN) has no queries and keys. The state of a head is V numbers
// s, which decay by factors r:
//
//   s_t = r s_{t-1} + silu(i) (1 - r)
//   r   = b + (1 - b) sigmoid(f),  b = sigmoid(lower_bound)
//
// where i and f are i_proj x and f_proj x or, with a convolution, their causal depthwise
// convolutions. Without `bounded`, b = 0. The result is s / sqrt(mean(s^2) + eps) * norm times
// silu(g_proj x), where the mean is over the channels of all heads.
//
// Structure and tensor names are those of flash-linear-attention, except that Mamba-2's in_proj and
// conv1d are several tensors here.
#ifndef LINNET_MODEL_GATED_H_
#define LINNET_MODEL_GATED_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "linnet/model/tensor_info.h"
#include "linnet/spec.h"

namespace linnet {

// The natural logarithm of the decay, <= 0.
enum class GatedDecay : uint8_t {
  kNone,
  kConstant,  // log(1 - 2^(-5 - h)) with h the head's index
  kHead,      // -exp(A_log) softplus(a_proj x + dt_bias), a scalar
  // The next two have one decay per key channel, from low-rank projections. `floor` is
  // MixerSpec::decay_floor; 0: no floor.
  kKey,      // max(logsigmoid(gk_proj x) / 16, floor)
  kKeyRate,  // -exp(A_log) softplus(f_proj x + dt_bias); if there is a floor:
             // floor sigmoid(exp(A_log) (f_proj x + dt_bias))
  kChannel,  // one decay per channel of a state of V numbers, see above
};

// The scan's write (kernels/scan.h). spec.negative_eigenvalues doubles sigmoid(b_proj x), to at
// most 2.
enum class GatedWrite : uint8_t {
  kAdd,
  kDelta,     // the strength sigmoid(b_proj x), a scalar
  kTwoSided,  // sigmoid(b_proj x) per key channel, sigmoid(w_proj x) per value channel
};

enum class OutputGate : uint8_t {
  kNone,
  kSilu,     // g = g_proj x
  kSigmoid,  // g from a low-rank g_proj
};

struct GatedForm {
  GatedDecay decay = GatedDecay::kNone;
  GatedWrite write = GatedWrite::kAdd;
  OutputGate gate = OutputGate::kNone;
  int convolution = 0;  // width in positions; 0: none
  bool rotary = false;
  const char* norm = "o_norm";  // name of the norm's tensor, without ".weight"
  int readers = 1;              // number of consecutive heads that share keys
  bool shared_values = false;   // they share values and decays per key channel too, but not queries
  int householders = 1;         // delta steps per position
  bool timed = false;           // Mamba-2's time step, see above
  bool bounded = false;         // HGRN's lower bound, see above

  int query_readers() const { return shared_values ? 1 : readers; }
  int value_readers() const { return shared_values ? readers : 1; }
  bool by_channel() const { return decay == GatedDecay::kChannel; }
  // The number of consecutive heads whose outputs are normalized together, in a layer of `heads`
  // heads.
  int norm_heads(int heads) const { return by_channel() ? heads : timed ? readers : 1; }
  bool delta() const { return write != GatedWrite::kAdd; }
  float scale(int query_dim) const {
    return timed ? 1 : 1 / std::sqrt(static_cast<float>(query_dim));
  }
};

// Epsilon of the normalization of q and k, added to |q|^2 and |k|^2.
inline constexpr float kGatedNormEps = 1e-6f;
inline constexpr float kLowRankDecayDivisor = 16;  // of GatedDecay::kKey

// The input projections, all without biases. The first three are queries, keys and values
// (kChannel: i, f and the gate).
std::vector<ProjectionInfo> GatedProjections(const MixerSpec& spec, const GatedForm& form);
// The mixer's other tensors. A low-rank projection's second factor is name.1.weight [out, rank].
std::vector<TensorInfo> GatedTensors(const MixerSpec& spec, const GatedForm& form);

// The number of consecutive heads that share one head of keys (MixerSpec::key_heads).
int KeyReaders(const MixerSpec& spec);

// The logarithm of a head's decay in GatedDecay::kConstant.
double RetentionDecay(int head);
// The rotation angle of channel i per position, in radians.
double RotaryFrequency(int i, int query_dim, double base = 10000);

}  // namespace linnet

#endif  // LINNET_MODEL_GATED_H_
