// Mixers as differentiable modules. A mixer's module has all its forms: the whole sequence at once,
// one position at a time, a piece at a time; as self attention and over the memory of an encoder.
//
//   Mixer mixer = MakeMixer({.kind = "causal-linear", .heads = 8, .query_dim = 32});
//   torch::Tensor out = mixer->forward(q, k, v, Mask{.causal = true});
//
//   MixerState state;                                // empty: nothing seen yet
//   out_t = mixer->Step(q_t, k_t, v_t, state);       // state now holds one position more
//
//   MixerState memory;                               // cross attention
//   mixer->Remember(k, v, lengths, memory);
//   out_t = mixer->Recall(q_t, memory);
//
// A new mixer is a file mixer_NAME.cc that defines `MixerKind NameMixerKind()`, beside its row in model/mixers/
// and its line in model/mixers/list.h; from outside the library, one call:
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

// What a recurrent form remembers of a sequence: a value. A copy is a fork; neither sees what is
// added to the other.
struct MixerState {
  // The kind's own: s [N, H, F, M] and z [N, H, F] of the linear kinds, keys and values
  // [N, H, capacity, D or M] of softmax attention.
  std::vector<torch::Tensor> tensors;
  int64_t length = 0;  // positions remembered
  torch::Tensor
      lengths;  // of these, those that count: int64 [N]; undefined: all (softmax attention)
  int64_t capacity = 0;  // positions to make room for at the beginning, where room is needed
  // Of the layer around the mixer: the last rows that its convolution has read, [N, width - 1, d_model].
  torch::Tensor convolved;

  bool empty() const { return length == 0; }
};

class MixerImpl : public torch::nn::Module {
 public:
  // q [N, L, H, D], k [N, S, H, D], v [N, S, H, M] -> [N, L, H, M]. Throws InputError for shapes and
  // masks that the kind cannot honor: CheckAttention() (mask.h) first, then DropPadding() of k and v, and
  // DropQueries() of the result, as mixer_linear.cc has it. A kind that is always causal takes self attention
  // only (as many keys as queries), and is causal whatever the mask says.
  virtual torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const Mask& mask) = 0;

  // Whether forward takes keys that are other positions than the queries: a decoder's memory.
  virtual bool cross() const { return true; }

  // Whether the rest can be called; what is not overridden throws InputError.
  virtual bool recurrent() const { return false; }

  // Adds keys and values to the state: k [N, S, H, D], v [N, S, H, M]; of sequence n only the first
  // lengths[n], where `lengths` (int64 [N]) is defined. A state is either built so, once, or stepped. A
  // state's tensors are replaced, never written in place: forks share them.
  virtual void Remember(const torch::Tensor& k, const torch::Tensor& v,
                        const torch::Tensor& lengths, MixerState& state);
  // What a query makes of everything remembered: q [N, H, D] -> [N, H, M].
  virtual torch::Tensor Recall(const torch::Tensor& q, const MixerState& state);

  // One position of causal self attention: q, k [N, H, D], v [N, H, M] -> [N, H, M]. By default
  // Remember, then Recall.
  virtual torch::Tensor Step(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             MixerState& state);
  // The next L positions of causal self attention, shapes as in forward, with gradients through the
  // state: pieces of a sequence give what the whole gives. By default L steps.
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

// Throws InputError for an unknown kind and for parameters that Validate() refuses.
Mixer MakeMixer(const MixerSpec& spec);
// The same with these sizes in place of the spec's.
Mixer MakeMixer(MixerSpec spec, const MixerSizes& sizes);

// Adds a kind, for every builder and for model descriptions. Throws InputError where the name is
// taken.
void RegisterMixer(const MixerInfo& info, Mixer (*make)(const MixerSpec& spec));

// For kinds with a recurrent form: throws InputError, naming the kind, where what it was given does
// not fit, before anything of the state is changed. q and k [N, L, H, D], v [N, L, H, M]; q is
// undefined where keys are remembered, k and v where they are recalled. values: what the state keeps
// of values, [N, H, any, M]; undefined where nothing has been seen. The rest as in CheckAttention().
void CheckRecurrent(const char* kind, int64_t query_dim, const torch::Tensor& q,
                    const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& lengths,
                    const torch::Tensor& values);

}  // namespace linnet::nn

#endif  // LINNET_NN_MIXER_H_
