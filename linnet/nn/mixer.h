// Mixers as differentiable modules. One module computes self attention over a whole sequence, over
// one position or over a piece of several positions, and cross attention over an encoder's memory.
//
//   Mixer mixer = MakeMixer({.kind = "causal-linear", .heads = 8, .query_dim = 32});
//   torch::Tensor out = mixer->forward(q, k, v, Mask{.causal = true});
//
//   MixerState state;                                // empty: no positions yet
//   out_t = mixer->Step(q_t, k_t, v_t, state);       // adds one position to the state
//
//   MixerState memory;                               // cross attention
//   mixer->Remember(k, v, lengths, memory);
//   out_t = mixer->Recall(q_t, memory);
//
// To add a mixer: write mixer_NAME.cc, which defines `MixerKind NameMixerKind()`, and
// model/mixers/NAME.cc; add a line to model/mixers/list.h. From outside the library, one call
// suffices:
//
//   RegisterMixer({.name = "mine", .causal = true},
//                 [](const MixerSpec& spec) -> Mixer { return std::make_shared<Mine>(spec); });
#ifndef LINNET_NN_MIXER_H_
#define LINNET_NN_MIXER_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "linnet/model/mixer.h"
#include "linnet/nn/mask.h"

namespace linnet::nn {

// The state of a mixer's recurrent form. It is a value: positions added to a copy do not change the
// original, and vice versa.
struct MixerState {
  // Depends on the mixer: s [N, H, F, M] and z [N, H, F] for the linear kinds, keys and values
  // [N, H, capacity, D or M] for softmax attention, s [N, H, D, M] and the last inputs of the
  // convolutions [N, width - 1, channels] for gated recurrences.
  std::vector<torch::Tensor> tensors;
  int64_t length = 0;  // number of positions added
  // For mixers with a cache: the number of valid positions of each sequence, int64 [N]; undefined:
  // all positions are valid.
  torch::Tensor lengths;
  int64_t capacity = 0;  // for mixers with a cache: minimum number of positions to allocate
  // Used by the layer, not by its mixer. convolved [N, width - 1, d_model]: the last rows that the
  // layer's convolution has read. mixed_last [N, d_model]: the last row that the token shifts of
  // the mixer's projections have read. fed_last [N, d_model]: the last row that the token shift of
  // the feed-forward block has read.
  torch::Tensor convolved, mixed_last, fed_last;

  bool empty() const { return length == 0; }
};

class MixerImpl : public torch::nn::Module {
 public:
  // q [N, L, H, D], k [N, S, H, D], v [N, S, H, M] -> [N, L, H, M]. Throws InputError for shapes
  // and masks that the mixer does not support. Implementations call CheckAttention() (mask.h)
  // first, then DropPadding() on the inputs and DropQueries() on the result (see mixer_kernel.cc).
  // A mixer that is always causal accepts self attention only (S = L) and ignores Mask::causal.
  virtual torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const Mask& mask) = 0;

  // The general forms of forward(), Piece() and Step(), for mixers that may read more than queries,
  // keys and values. `in` holds one tensor for each entry of MixerProjections():
  // [N, L, H / readers, width], with the entry's readers and width, or [N, L, width] if all heads
  // share it. For MixStep(), the tensors have no axis L. The defaults call forward(), Piece() and
  // Step() with the first three inputs. A mixer that reads more overrides these forms, and its
  // forward(), Piece() and Step() throw InputError.
  virtual torch::Tensor Mix(const std::vector<torch::Tensor>& in, const Mask& mask);
  virtual torch::Tensor MixPiece(const std::vector<torch::Tensor>& in, MixerState& state);
  virtual torch::Tensor MixStep(const std::vector<torch::Tensor>& in, MixerState& state);

  // Whether forward accepts the keys and values of another sequence (cross attention).
  virtual bool cross() const { return true; }

  // Whether the mixer has a recurrent form. If not, the functions below throw InputError.
  virtual bool recurrent() const { return false; }

  // Adds keys and values to the state: k [N, S, H, D], v [N, S, H, M]. If `lengths` (int64 [N]) is
  // defined, only the first lengths[n] positions of sequence n count. A state is either filled by
  // Remember(), or advanced by steps and pieces, not both. Copies of a state share tensors, so
  // implementations must not overwrite data that a copy uses.
  virtual void Remember(const torch::Tensor& k, const torch::Tensor& v,
                        const torch::Tensor& lengths, MixerState& state);
  // Attention of one query per sequence over all positions in the state: q [N, H, D] -> [N, H, M].
  virtual torch::Tensor Recall(const torch::Tensor& q, const MixerState& state);

  // One position of causal self attention: q, k [N, H, D], v [N, H, M] -> [N, H, M]. The default
  // calls Remember(), then Recall().
  virtual torch::Tensor Step(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             MixerState& state);
  // The next L positions (a piece) of causal self attention, with the shapes of forward() and with
  // gradients through the state. The pieces of a sequence, in turn, give the same outputs as the
  // whole sequence. The default makes L steps.
  virtual torch::Tensor Piece(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, MixerState& state);
};
using Mixer = std::shared_ptr<MixerImpl>;

struct MixerSizes {
  int64_t heads = 1, query_dim = 1, value_dim = 1;  // H, D, M
};

struct MixerKind {
  std::string name;
  Mixer (*make)(const MixerSpec& spec);
};

// Makes the mixer of a spec. Throws InputError if its kind is unknown or Validate() refuses it.
Mixer MakeMixer(const MixerSpec& spec);
// The same with `sizes` in place of the spec's sizes.
Mixer MakeMixer(MixerSpec spec, const MixerSizes& sizes);

// Adds a kind that specs can name. Throws InputError if the name is taken.
void RegisterMixer(const MixerInfo& info, Mixer (*make)(const MixerSpec& spec));

// Checks the arguments of a recurrent form before its state changes. Throws InputError, naming the
// kind, on shapes, types or devices that do not fit. q and k [N, L, H, D], v [N, L, H, M];
// Remember() leaves q undefined, Recall() leaves k and v undefined. values: the tensor of the state
// whose shape is [N, H, any, M]; undefined if the state is empty. kind, query_dim and readers as in
// CheckAttention(), lengths as in Mask.
void CheckRecurrent(const char* kind, int64_t query_dim, const torch::Tensor& q,
                    const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& lengths,
                    const torch::Tensor& values, int64_t readers = 1);

}  // namespace linnet::nn

#endif  // LINNET_NN_MIXER_H_
