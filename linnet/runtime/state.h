// Recurrent state of sequences: everything needed to continue them. It is a value whose size is
// known before the first token (caches of softmax attention grow beyond the training length).
//
//   State state = engine.NewState(/*batch=*/1);
//   engine.Prefix(state, prompt, prompt.size(), {});
//   state.Save("prompt.state", engine.model());           // later, in another process:
//   State again = State::Load("prompt.state", engine.model());
//   State eight = again.Fork(8);                            // eight continuations of one prefix
//   State two = eight.Select(std::vector<size_t>{5, 2});    // keep two of them
//   two.Append(engine.NewState(1));                         // and add a new sequence
#ifndef LINNET_RUNTIME_STATE_H_
#define LINNET_RUNTIME_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/io/safetensors.h"
#include "linnet/runtime/model.h"

namespace linnet {

struct StateLayout;

// Bytes of one sequence's new state, known before the model is loaded. Causal-linear models: the
// same at any length. Softmax models: room for the keys and values of max_length positions, which
// grows on demand. Models without recurrent state: room for as many tokens.
size_t StateBytes(const ModelSpec& spec, Precision precision);

// The kind of state that a model keeps of a sequence.
enum class StateKind : uint8_t {
  kNone,      // reads whole sequences only: not causal, or frames without recurrent state
  kConstant,  // constant size at any length
  kCache,     // keys and values of every position
  kTokens,    // all tokens, which are read again at each step
};
StateKind StateKindOf(const ModelSpec& spec);
StateKind StateKindOf(const Model& model);

// State of `batch` independent sequences. Copied explicitly only (Clone() and so on); a moved-from
// State is empty. Belongs to one model in one precision; other models refuse it. Results for a
// sequence do not depend on the other sequences of its state.
class State {
 public:
  State() = default;
  State(State&& other) noexcept { *this = std::move(other); }
  State& operator=(State&& other) noexcept {
    model_ = std::exchange(other.model_, 0);
    layout_ = std::exchange(other.layout_, {});
    capacity_ = std::exchange(other.capacity_, 0);
    positions_ = std::exchange(other.positions_, {});
    waiting_ = std::exchange(other.waiting_, {});
    data_ = std::move(other.data_);
    recent_ = std::exchange(other.recent_, {});
    return *this;
  }

  size_t batch() const { return positions_.size(); }
  // Tokens that a sequence has read. Throws InputError if there is no such sequence.
  size_t position(size_t sequence = 0) const;
  // StateBytes() for each sequence, plus the growth of caches.
  size_t bytes() const;

  State Clone() const;
  void Reset();                 // all sequences, to before the first token
  void Reset(size_t sequence);  // one of them

  // Each sequence `copies` times, side by side: 0 0 0 1 1 1 ... Throws InputError if `copies` is 0
  // or the result exceeds this machine's memory.
  State Fork(size_t copies) const;
  // These sequences in this order, with repetition allowed. Throws InputError if one does not
  // exist.
  State Select(std::span<const size_t> sequences) const;
  // Appends the sequences of `other`. Throws InputError unless it belongs to the same model.
  void Append(const State& other);

  // Replaces a sequence by the only one of `other`. Throws InputError unless `other` has one
  // sequence and belongs to the same model.
  void Assign(size_t sequence, const State& other);

  // Save writes a safetensors file that names the model (atomically); Load reads one. A loaded
  // state continues bit for bit like the saved one. (For softmax models the file includes unused
  // cache rows, which may hold keys and values from before a Reset().) Load throws InputError if
  // the file is not a state, is damaged, or belongs to another model or to another precision of
  // this one.
  void Save(const std::string& path, const Model& model) const;
  static State Load(const std::string& path, const Model& model);
  // The bytes of such a file, and a state from them; `label` names the bytes in errors.
  std::vector<std::byte> ToBytes(const Model& model) const;
  static State FromBytes(std::span<const std::byte> bytes, const std::string& label,
                         const Model& model);

 private:
  friend class CudaEngine;
  friend class Engine;
  friend class Scheduler;
  State(const Model& model, size_t batch);
  void CheckFits(const Model& model) const;
  // Calls write(writer) with a writer of this state's file.
  void Export(const Model& model, FunctionRef<void(const SafetensorsWriter&)> write) const;
  static State Import(const SafetensorsFile& file, const Model& model);
  size_t per_sequence() const;  // floats of data_
  size_t tokens() const;        // of recent_, per sequence
  void LoadSequence(const std::string& path, const Model& model, size_t sequence, int64_t position,
                    uint8_t waiting);
  // Grows caches to at least this many positions.
  void Reserve(size_t positions);
  // Copies sequence `from` of `other`, whose capacity must not be larger, to index `to`.
  void Copy(const State& other, size_t from, size_t to);
  // Encoder-decoders keep the encoder's tokens in recent_: their number (-1 before the separator),
  // then the tokens.
  int32_t& source_length(size_t sequence) { return recent_[sequence * tokens()]; }
  int32_t* source(size_t sequence) { return recent_.data() + sequence * tokens() + 1; }

  uint64_t model_ = 0;  // the model's fingerprint
  std::shared_ptr<const StateLayout> layout_;
  size_t capacity_ = 0;            // positions with room, if the layout grows
  std::vector<size_t> positions_;  // [batch]
  std::vector<uint8_t> waiting_;   // [batch]: number of keys not yet folded (kernels/linear_step.h)
  AlignedBuffer<float> data_;      // [batch, StateLayout::Floats(capacity_)]
  std::vector<int32_t> recent_;    // [batch, tokens()]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_H_
