// Sequence parallelism: several processes train on one sequence, each on a piece of its positions.
// Each layer begins a piece in the state in which the previous process has ended its piece, so the
// pieces compute what the whole sequence would. At one time, processes work on different layers.
//
//   StateRelay relay(processes, /*pieces=*/4);      // processes 0 .. 3 share a sequence
//   loss = ...                                      // with Piece(x, state, &relay) for the layers
//   relay.Tie(loss).backward();                     // gradients of states go the other way
//
// A state has a constant size, so the traffic does not grow with the length of the sequence.
#ifndef LINNET_TRAIN_STATE_RELAY_H_
#define LINNET_TRAIN_STATE_RELAY_H_

#include <torch/types.h>

#include <vector>

#include "linnet/nn/transformer.h"
#include "linnet/train/processes.h"

namespace linnet::train {

class StateRelay : public nn::PieceExchange {
 public:
  StateRelay(const Processes& processes, int pieces);

  // Receives the state of a layer from the process with the previous piece, and sends it to the one
  // with the next piece. The first piece begins in an empty state, and the last one's is dropped.
  void Before(size_t layer, nn::MixerState& state) override;
  void After(size_t layer, nn::MixerState& state) override;

  // Returns a tensor of the value of `loss`, whose backward() also passes on the gradients of the
  // states that have been sent since the last Tie(). All processes of a sequence must call
  // backward() on it, or none.
  torch::Tensor Tie(const torch::Tensor& loss);
  // Forgets these states, instead of Tie(), if there will be no backward().
  void Forget() { ties_.clear(); }

 private:
  friend class ReceiveFunction;
  friend class SendFunction;

  bool first() const { return processes_.rank() % pieces_ == 0; }
  bool last() const { return processes_.rank() % pieces_ == pieces_ - 1; }
  void Send(const std::vector<torch::Tensor>& tensors, int to) const;
  std::vector<torch::Tensor> Receive(const std::vector<std::vector<int64_t>>& sizes,
                                     int from) const;

  const Processes& processes_;
  const int pieces_;
  // An input of the operation that receives. Autograd computes gradients only of results whose
  // inputs need some.
  torch::Tensor anchor_;
  std::vector<torch::Tensor> ties_;  // zeros, whose gradients are those of the sent states
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_STATE_RELAY_H_
