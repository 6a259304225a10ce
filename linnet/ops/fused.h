// The fused forms: autograd functions over kernels/ (private to linnet/ops). The caller has checked
// the arguments and selected the fused form (plain.h).
#ifndef LINNET_OPS_FUSED_H_
#define LINNET_OPS_FUSED_H_

#include <torch/types.h>

#include <vector>

#include "linnet/ops/adam.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/head_norm.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/linear_attention.h"
#include "linnet/ops/lsh_attention.h"
#include "linnet/ops/masked_convolution.h"
#include "linnet/ops/scan.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::ops {

// Attributes of an operation of layer_rows.h besides its tensors.
struct RowsCall {
  Precision precision = Precision::kFp32;
  kernels::Activation activation = kernels::Activation::kRelu;
  bool norm_before = false, norm_after = false;
  bool with_gradient = false;  // whether autograd will need a backward
  double eps_before = 0, eps_after = 0;
};

// Whether this processor supports bf16 products.
bool FusedBf16();

// The passes of MuonUpdate() and Orthogonalize() (orthogonalize.h). Tensors are dense, or all
// are transposes of dense ones.
float FusedMuonAverage(const torch::Tensor& gradient, const torch::Tensor& average, double scale,
                       double momentum);
void FusedMuonStep(const torch::Tensor& parameter, const torch::Tensor& x, double decay,
                   double step);
torch::Tensor FusedNarrow(const torch::Tensor& x, double factor);
// c = a b or, if `accumulate`, c += a b, for bf16 matrices a and b and an fp32 matrix c, each dense
// or the transpose of a dense matrix.
void FusedBf16Product(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c,
                      bool accumulate);

// tensors: x, weight and bias of each product, then weight and bias of norm_before, if present.
std::vector<torch::Tensor> FusedLinears(const std::vector<torch::Tensor>& tensors,
                                        const RowsCall& call);
// tensors: a, weight, bias, residual, then weight and bias of norm_after, if present.
torch::Tensor FusedProject(const std::vector<torch::Tensor>& tensors, const RowsCall& call);
// tensors: x, weight1, bias1, weight2, bias2, then weight and bias of norm_before, if present, and
// of norm_after, if present.
torch::Tensor FusedFeedForward(const std::vector<torch::Tensor>& tensors, const RowsCall& call);

// q, k [N, L, H, D], v [N, L, H, M]. With `offsets` (packed sequences: int64 [N + 1], on the CPU),
// q, k [1, T, H, D] and v [1, T, H, M]. state: null if no state is carried.
torch::Tensor FusedCausalLinear(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const torch::Tensor& lengths,
                                const torch::Tensor& offsets,
                                const kernels::CausalLinearOptions& options,
                                CausalLinearState* state);

// See head_norm.h.
torch::Tensor FusedSiluL2Norm(const torch::Tensor& x, int64_t normed, int64_t width, double eps);
torch::Tensor FusedGatedRmsNorm(const torch::Tensor& x, const torch::Tensor& weight,
                                const torch::Tensor& gate, kernels::GateFunction function,
                                double eps);

// See polynomial.h.
torch::Tensor FusedPolynomial2(const torch::Tensor& x);

// See scan.h. state: null if no state is carried.
torch::Tensor FusedScan(const ScanInputs& in, const kernels::ScanOptions& options,
                        const torch::Tensor& lengths, torch::Tensor* state);
torch::Tensor FusedChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                               const torch::Tensor& lengths, torch::Tensor* state);

// q [N, L, H, D], k [N, S, G, D], v [N, S, G, M], G a divisor of H. options.hidden must be
// undefined; `scale` replaces options.scale.
torch::Tensor FusedSoftmaxAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, double scale,
                                    const SoftmaxAttentionOptions& options);

// q [N, L, H, D], k [N, S, H, D], v [N, S, H, M]; lengths undefined or dense.
torch::Tensor FusedLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                   const torch::Tensor& v, const torch::Tensor& lengths,
                                   const kernels::LinearAttentionOptions& options);

// q [N, L, H, D], v [N, L, H, M], planes [R, D, buckets / 2] for R rounds of hashing.
torch::Tensor FusedLshAttention(const torch::Tensor& q, const torch::Tensor& v,
                                const torch::Tensor& lengths, const torch::Tensor& planes,
                                const LshOptions& options);

// x [N, L, C], weight [width, C], bias [C]; lengths undefined or int64 [N].
torch::Tensor FusedDepthwise(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias, const torch::Tensor& lengths, bool causal);

// sums [L, N, 4 H]: the gates' preactivations without the recurrent term; w_hh [4 H, H], lengths
// int64 [N] on the CPU; `backward` as in lstm.h.
torch::Tensor FusedLstm(const torch::Tensor& sums, const torch::Tensor& w_hh,
                        const torch::Tensor& lengths, bool backward);

// 0 <= p < 1, fewer than 2^32 elements.
torch::Tensor FusedDropout(const torch::Tensor& x, double p);

// logits [R, C], int64 targets [R] in 0 .. C - 1.
torch::Tensor FusedCrossEntropy(const torch::Tensor& logits, const torch::Tensor& targets);

// See ctc.h; log_probs in fp32 on the CPU.
torch::Tensor FusedCtc(const torch::Tensor& log_probs, const torch::Tensor& targets,
                       const torch::Tensor& input_lengths, const torch::Tensor& target_lengths,
                       int64_t blank);

// See masked_convolution.h.
torch::Tensor FusedMaskedConvolution(const torch::Tensor& x, const torch::Tensor& weight,
                                     const torch::Tensor& bias,
                                     const MaskedConvolutionOptions& options);

// See mixture_of_logistics.h.
torch::Tensor FusedMixtureOfLogistics(const torch::Tensor& logits, const torch::Tensor& bytes);
torch::Tensor FusedPixelLogistics(const torch::Tensor& logits, const torch::Tensor& bytes);

// Whether the fused form (adam.h) takes a parameter and its gradient. The two functions below skip
// the parameters for which this is false.
bool FusedAdam(const torch::Tensor& parameter);
void FusedGradientNorms(const std::vector<torch::Tensor>& parameters, std::vector<double>& norms);
void FusedAdamUpdate(const std::vector<torch::Tensor>& parameters,
                     const std::vector<torch::Tensor>& first_moments,
                     const std::vector<torch::Tensor>& second_moments,
                     const std::vector<double>& gradient_scales, const kernels::AdamStep& step);

}  // namespace linnet::ops

#endif  // LINNET_OPS_FUSED_H_
