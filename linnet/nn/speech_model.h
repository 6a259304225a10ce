// A speech model: maps frames to logits of the phones and of the CTC blank at each position. It is
// a transformer encoder or a bidirectional LSTM, with a linear head. nn/losses.h has the CTC loss.
//
//   SpeechModel model(spec);                                  // spec.ReadsFrames()
//   torch::Tensor logits = model->forward(frames, lengths);   // [N, L, Inputs] -> [N, L, classes]
#ifndef LINNET_NN_SPEECH_MODEL_H_
#define LINNET_NN_SPEECH_MODEL_H_

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

#include "linnet/nn/network.h"

namespace linnet::nn {

// The mean and standard deviation of each band over a corpus. Checkpoints store them for the
// runtime; SpeechModel's forward() takes normalized frames and does not read them.
class InputNormImpl : public torch::nn::Module {
 public:
  explicit InputNormImpl(int64_t bands);
  torch::Tensor mean, deviation;  // [bands], buffers
};
TORCH_MODULE(InputNorm);

class SpeechModelImpl : public Network {
 public:
  explicit SpeechModelImpl(const ModelSpec& spec, const TrainingOptions& options = {});

  // frames: stacked and normalized, [N, L, Inputs]; for a transformer, L <= max_length. lengths:
  // the utterances' numbers of positions, int64 [N] in 0 .. L. Returns logits [N, L, classes],
  // which are unspecified behind the end of an utterance.
  torch::Tensor forward(const torch::Tensor& frames, const torch::Tensor& lengths);

  InputNorm input_norm = nullptr;  // null if each utterance is normalized on its own

 private:
  // The head's input from the transformer, [N, L, d_model], or from the LSTM, [N, L, 2 d_model].
  torch::Tensor Encode(const torch::Tensor& frames, const torch::Tensor& lengths);
  torch::Tensor RunLstm(const torch::Tensor& frames, const torch::Tensor& lengths);

  torch::nn::LSTM lstm_ = nullptr;  // holds the weights only; ops/lstm.h computes
  torch::nn::Linear input_projection_ = nullptr;
  PositionalEmbedding pos_embedding_ = nullptr;
  TransformerEncoder transformer_ = nullptr;
  torch::nn::Linear predictor_;
  Dropout dropout_;
};
TORCH_MODULE(SpeechModel);

}  // namespace linnet::nn

#endif  // LINNET_NN_SPEECH_MODEL_H_
