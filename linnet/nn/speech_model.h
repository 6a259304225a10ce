// From frames of sound to a distribution over phones at each position: an encoder with a head for CTC
// (nn/losses.h), or a bidirectional LSTM in the encoder's place.
//
//   SpeechModel model(spec);                                    // one that reads frames
//   torch::Tensor logits = model->forward(frames, lengths);     // [N, L, Inputs] -> [N, L, classes]
#ifndef LINNET_NN_SPEECH_MODEL_H_
#define LINNET_NN_SPEECH_MODEL_H_

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

#include "linnet/nn/network.h"

namespace linnet::nn {

// The mean and deviation of each band over a corpus: what a file has to tell the runtime. forward() takes
// frames that are normalised already.
class InputNormImpl : public torch::nn::Module {
 public:
  explicit InputNormImpl(int64_t bands);
  torch::Tensor mean, deviation;  // [bands], buffers
};
TORCH_MODULE(InputNorm);

class SpeechModelImpl : public Network {
 public:
  explicit SpeechModelImpl(const ModelSpec& spec, const TrainingOptions& options = {});

  // Stacked, normalised frames [N, L, Inputs], L <= max_length for a transformer, and how many positions
  // each utterance has, int64 [N] in 1 .. L -> logits [N, L, classes]; behind an utterance's end they mean
  // nothing.
  torch::Tensor forward(const torch::Tensor& frames, const torch::Tensor& lengths);

  InputNorm input_norm = nullptr;  // null where utterances are normalised by themselves

 private:
  torch::Tensor Encode(const torch::Tensor& frames, const torch::Tensor& lengths);
  torch::Tensor RunLstm(const torch::Tensor& frames, const torch::Tensor& lengths);

  torch::nn::LSTM lstm_ = nullptr;  // its weights; what runs is ops/lstm.h
  torch::nn::Linear input_projection_ = nullptr;
  PositionalEmbedding pos_embedding_ = nullptr;
  TransformerEncoder transformer_ = nullptr;
  torch::nn::Linear predictor_;
  Dropout dropout_;
};
TORCH_MODULE(SpeechModel);

}  // namespace linnet::nn

#endif  // LINNET_NN_SPEECH_MODEL_H_
