// The whole network of a ModelSpec with encoder_decoder(), over text: the first line is read in
// both directions, and a decoder that attends to it writes the second one.
//
//   EncoderDecoder model(spec);
//   torch::Tensor out = model->forward(first, lengths, second);   // [N, S], [N], [N, L] -> [N, L, classes]
//
// spec.stack.layers() layers each: an encoder with CrossMixer() of each layer's mixer, and a decoder
// whose layers look at themselves causally, then at the encoder's outputs (nn/decoder.h). Both share
// the embedding and the positions, which begin at 0 in either line.
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

  // int64 first [N, S], of which lengths[n] (int64 [N]) count, and second [N, L]: the symbols before those
  // that are to be predicted -> the head's outputs [N, L, classes].
  torch::Tensor forward(const torch::Tensor& first, const torch::Tensor& lengths,
                        const torch::Tensor& second);
  // The same of some positions alone: int64 rows [R], n L + t each -> [R, classes].
  torch::Tensor At(const torch::Tensor& first, const torch::Tensor& lengths,
                   const torch::Tensor& second, const torch::Tensor& rows);

 private:
  torch::Tensor Embed(const torch::Tensor& tokens);
  torch::Tensor Hidden(const torch::Tensor& first, const torch::Tensor& lengths,
                       const torch::Tensor& second);
  torch::Tensor Predict(const torch::Tensor& x);

  torch::nn::Embedding value_embedding_ = nullptr;  // null where it is tied
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
