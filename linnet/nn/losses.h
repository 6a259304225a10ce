// Training losses.
//
//   torch::Tensor nats = MixtureOfLogisticsNats(model->forward(inputs), targets);   // [N, L]
//   (nats.mean() / std::log(2.0)).backward();                                       // bits/dim
#ifndef LINNET_NN_LOSSES_H_
#define LINNET_NN_LOSSES_H_

#include <torch/types.h>

namespace linnet::nn {

// -log p(byte) in nats under a discretized mixture of K logistics (Salimans et al., 2017): logits
// [..., 3K] (mixture logits, means, log-scales clamped to at least -7), int64 bytes [...] -> [...].
// With x = byte/127.5 - 1 and F the logistic's cumulative distribution function, each component has
// probability F(x + 1/255) - F(x - 1/255); the bins of bytes 0 and 255 extend to infinity.
torch::Tensor MixtureOfLogisticsNats(const torch::Tensor& logits, const torch::Tensor& bytes);

// -log p(pixel) in nats: logits [..., 10K] as in kernels/pixel_logistics.h, int64 bytes [..., 3] ->
// [...].
torch::Tensor PixelLogisticsNats(const torch::Tensor& logits, const torch::Tensor& bytes);

// -log softmax(logits)[target] in nats: logits [R, C], int64 targets [R] -> [R].
torch::Tensor CrossEntropyNats(const torch::Tensor& logits, const torch::Tensor& targets);

// Mean cross entropy in nats over all positions, weighted by mask (0 leaves a position out): logits
// [N, L, classes], int64 targets [N, L], float mask [N, L] -> scalar.
torch::Tensor MaskedCrossEntropy(const torch::Tensor& logits, const torch::Tensor& targets,
                                 const torch::Tensor& mask);

// The CTC loss in nats, [N]. ops/ctc.h has the contract; tasks/speech/ctc.h defines which paths
// yield a sequence.
torch::Tensor CtcNats(const torch::Tensor& log_probs, const torch::Tensor& targets,
                      const torch::Tensor& input_lengths, const torch::Tensor& target_lengths,
                      int64_t blank = 0);

}  // namespace linnet::nn

#endif  // LINNET_NN_LOSSES_H_
