// The whole network of a ModelSpec: embedding, transformer, head. Predicts token t + 1 from tokens
// 0 .. t.
//
//   SequenceModel model(spec);
//   torch::Tensor out = model->forward(tokens);       // [N, L] -> [N, L, spec.OutputSize()]
//   SequenceState state;
//   torch::Tensor out_t = model->Step(tokens.select(1, t), t, state);
//   SaveModel("digits.safetensors", *model, training_json);
#ifndef LINNET_NN_SEQUENCE_MODEL_H_
#define LINNET_NN_SEQUENCE_MODEL_H_

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "linnet/nn/network.h"
#include "linnet/nn/patches.h"
#include "linnet/nn/stem.h"

namespace linnet::nn {

// The state of Step(), empty at the beginning. A copy is independent and continues the sequence on
// its own.
struct SequenceState {
  RecurrentState layers;
  // With pixel_above: the last tokens read, at most one image row, [N, <= RowTokens].
  torch::Tensor recent;
  StemState stem;
  PatchState patch;
};

// A piece of sequences whose other pieces are computed elsewhere.
struct SequencePiece {
  int64_t first = 0;  // its first position
  PieceExchange* exchange = nullptr;
};

// The tokens of pixels: int64 bytes [..., 3] -> [...].
torch::Tensor PixelTokens(const torch::Tensor& bytes);

class SequenceModelImpl : public Network {
 public:
  explicit SequenceModelImpl(const ModelSpec& spec, const TrainingOptions& options = {});

  // int64 tokens [N, L], L <= max_length -> the head's outputs [N, L, OutputSize].
  torch::Tensor forward(const torch::Tensor& tokens);
  // The head's outputs at selected positions only: int64 rows [R] -> [R, OutputSize]. Row n L + t
  // is position t of sequence n.
  torch::Tensor At(const torch::Tensor& tokens, const torch::Tensor& rows);
  // The same for the tokens of a piece. Throws InputError for models whose embeddings need tokens
  // of other pieces (pixel_above, a stem, patches) or with a layer without a recurrent form.
  torch::Tensor At(const torch::Tensor& tokens, const torch::Tensor& rows,
                   const SequencePiece& piece);
  // int64 tokens [N] at `position` -> [N, OutputSize]. Throws InputError if a layer has no
  // recurrent form.
  torch::Tensor Step(const torch::Tensor& tokens, int64_t position, SequenceState& state);

  // Probability of each value of token 0, which no position predicts: [vocabulary]; uniform until
  // set. Only of images that are read byte by byte.
  torch::Tensor first_value;

 private:
  // Embeddings of tokens of any shape. With pixel_above, adds the embeddings of `above`, which has
  // the same shape: for each token to predict, the token one image row higher.
  torch::Tensor Values(const torch::Tensor& tokens, const torch::Tensor& above);
  torch::Tensor Normed(const torch::Tensor& x);  // the embedding norm of x, if any
  // The head's input, [N, L, EmbeddingWidth()]. piece: null for whole sequences.
  torch::Tensor Hidden(const torch::Tensor& tokens, const SequencePiece* piece = nullptr);
  torch::Tensor Predict(const torch::Tensor& x);  // the head's outputs

  torch::nn::Embedding value_embedding_ = nullptr;  // null if the head's weights are the embedding
  torch::nn::Embedding above_embedding_ = nullptr;  // null without pixel_above
  PositionalEmbedding pos_embedding_ = nullptr;
  Stem stem_ = nullptr;            // null unless the spec has one
  Patches patches_ = nullptr;      // null unless the spec has them
  Norm embedding_norm_ = nullptr;  // null unless the spec has one
  Transformer transformer_;
  torch::nn::Linear predictor_;
  Dropout dropout_;
  ops::Precision head_precision_;
};
TORCH_MODULE(SequenceModel);

// Loads a checkpoint that SaveModel() wrote. Throws InputError if it holds another kind of network.
SequenceModel LoadModel(const std::string& path);

}  // namespace linnet::nn

#endif  // LINNET_NN_SEQUENCE_MODEL_H_
