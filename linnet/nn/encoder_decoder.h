// The whole network of a ModelSpec whose encoder_decoder() is true. It reads pairs of lines of
// text: a bidirectional encoder reads the first line, and a decoder that attends to the encoder's
// outputs predicts the second line.
//
//   EncoderDecoder model(spec);
//   // [N, S], [N], [N, L] -> [N, L, classes]
//   torch::Tensor out = model->forward(first, lengths, second);
//
// Encoder and decoder have spec.stack.layers() layers each. Encoder layers use the non-causal
// counterparts of the spec's mixers (CrossMixer() in model/mixer.h). Decoder layers have causal
// self attention, then attention over the encoder's outputs (nn/decoder.h). Encoder and decoder
// share the token embedding and the position embedding; positions begin at 0 in each line.
#ifndef LINNET_NN_ENCODER_DECODER_H_
#define LINNET_NN_ENCODER_DECODER_H_

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "linnet/nn/decoder.h"
#include "linnet/nn/network.h"

namespace linnet::nn {

class EncoderDecoderImpl : public Network {
 public:
  explicit EncoderDecoderImpl(const ModelSpec& spec, const TrainingOptions& options = {});

  // first: int64 [N, S]; only the first lengths[n] tokens of sequence n count. lengths: int64 [N].
  // second: int64 [N, L]; second[n, t] is the token before the one that position t predicts.
  // Returns the head's outputs [N, L, classes].
  torch::Tensor forward(const torch::Tensor& first, const torch::Tensor& lengths,
                        const torch::Tensor& second);
  // The head's outputs at selected positions only: int64 rows [R] -> [R, classes]. Row n L + t is
  // position t of sequence n.
  torch::Tensor At(const torch::Tensor& first, const torch::Tensor& lengths,
                   const torch::Tensor& second, const torch::Tensor& rows);

 private:
  // The input of the encoder or of the decoder: int64 tokens [N, L] -> [N, L, d_model].
  torch::Tensor Embed(const torch::Tensor& tokens);
  // The decoder's outputs, [N, L, d_model].
  torch::Tensor Hidden(const torch::Tensor& first, const torch::Tensor& lengths,
                       const torch::Tensor& second);
  torch::Tensor Predict(const torch::Tensor& x);  // the head: [..., d_model] -> [..., classes]

  torch::nn::Embedding value_embedding_ = nullptr;  // null if the head's weights are the embedding
  PositionalEmbedding pos_embedding_ = nullptr;
  Transformer encoder_;
  Decoder decoder_;
  torch::nn::Linear predictor_;
  Dropout dropout_;
  ops::Precision head_precision_;
};
TORCH_MODULE(EncoderDecoder);

}  // namespace linnet::nn

#endif  // LINNET_NN_ENCODER_DECODER_H_
