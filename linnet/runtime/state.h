// What sequences leave behind, and all that continuing them needs: a value, of a size that is known
// before the first token (caches of softmax attention grow, where more is read than the model was trained
// on).
//
//   State state = engine.NewState(/*batch=*/1);
//   engine.Prefix(state, prompt, prompt.size(), {});
//   state.Save("prompt.state", engine.model());           // later, in another process:
//   State again = State::Load("prompt.state", engine.model());
//   State eight = again.Fork(8);                            // eight continuations of one past
//   State two = eight.Select(std::vector<size_t>{5, 2});    // of which two go on
//   two.Append(engine.NewState(1));                         // and another begins beside them
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
#include "linnet/runtime/model.h"

namespace linnet {

struct StateLayout;

// Bytes of everything that the past of one sequence of such a model is kept in: known before the
// model is loaded. Of causal-linear models it is the same at any length; softmax ones keep room for
// the keys and values of all positions of training, and more as it is needed; what is no RNN keeps the
// tokens.
size_t StateBytes(const ModelSpec& spec, Precision precision);

// What a model of that spec keeps of a sequence.
enum class StateKind : uint8_t {
  kNone,      // its layers see the future: it reads whole sequences only
  kConstant,  // of one size, however much has been read
  kCache,     // keys and values of every position
  kTokens,    // the tokens, which are read again at each step
};
StateKind StateKindOf(const ModelSpec& spec);
StateKind StateKindOf(const Model& model);

// The memory of `batch` sequences, each with a place of its own. Copies are made by name; a moved-from
// State is empty. It belongs to one model, in one precision, and others refuse it. What a sequence gets does not depend on what else is in its state.
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
  // Tokens that a sequence has read. Throws InputError where there is no such sequence.
  size_t position(size_t sequence = 0) const;
  // StateBytes() for each sequence, and what caches have grown by.
  size_t bytes() const;

  State Clone() const;
  void Reset();                 // all sequences back to before the first symbol
  void Reset(size_t sequence);  // one of them

  // Each sequence `copies` times, side by side: 0 0 0 1 1 1 ... Throws InputError for none, or for
  // more than this machine's memory holds.
  State Fork(size_t copies) const;
  // These sequences, in this order; one may be named again. Throws InputError for one that is not
  // there.
  State Select(std::span<const size_t> sequences) const;
  // Those of `other`, which was made for the same model, behind these. Throws InputError otherwise.
  void Append(const State& other);

  // Puts the one sequence of `other`, of the same model, in the place of one. Throws InputError
  // otherwise.
  void Assign(size_t sequence, const State& other);

  // Writes a safetensors file that names the model (replaced in one step), and reads one. A state
  // that has been saved goes on bit for bit as the one that stayed. (Of softmax models, what lies behind
  // the last position is not cleared by Reset(), and is written as it is.) Load throws InputError on a file
  // that is no state, one of another model, or of the same in another precision, and on one that is damaged.
  void Save(const std::string& path, const Model& model) const;
  static State Load(const std::string& path, const Model& model);

 private:
  friend class Engine;
  friend class Scheduler;
  State(const Model& model, size_t batch);
  void CheckFits(const Model& model) const;
  size_t per_sequence() const;  // floats of data_
  size_t tokens() const;        // of recent_, for a sequence
  void LoadSequence(const std::string& path, const Model& model, size_t sequence, int64_t position,
                    uint8_t waiting);
  // Makes room for so many positions.
  void Reserve(size_t positions);
  // Copies sequence `from` of `other`, whose capacity is no larger, to the place `to`.
  void Copy(const State& other, size_t from, size_t to);
  // Encoder-decoders keep the first part in recent_: its length, or -1 before the separator, and its tokens.
  int32_t& source_length(size_t sequence) { return recent_[sequence * tokens()]; }
  int32_t* source(size_t sequence) { return recent_.data() + sequence * tokens() + 1; }

  uint64_t model_ = 0;  // its fingerprint
  std::shared_ptr<const StateLayout> layout_;
  size_t capacity_ = 0;            // positions that there is room for, where the layout grows
  std::vector<size_t> positions_;  // [batch]
  std::vector<uint8_t> waiting_;   // [batch]: keys that kernels/linear_step.h has not folded yet
  AlignedBuffer<float> data_;      // [batch] of what StateLayout says
  std::vector<int32_t> recent_;    // [batch, tokens()]
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_H_
