// What sequences leave behind, and all that continuing them needs: a value of a size that is known
// before the first symbol.
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/runtime/model.h"

namespace linnet {

// Bytes of everything that the past of one sequence of such a model is kept in: known before the
// model is loaded. Of causal-linear models it is the same at any length; softmax ones keep room for
// the keys and values of all spec.max_length positions.
size_t StateBytes(const ModelSpec& spec, Precision precision);

// The memory of `batch` sequences, each with a place of its own. Copies are made by name; a moved-from
// State is empty. It belongs to one model, in one precision, and others refuse it. What a sequence gets does not depend on what else is in its state.
class State {
 public:
  State() = default;
  State(State&& other) noexcept { *this = std::move(other); }
  State& operator=(State&& other) noexcept {
    model_ = std::exchange(other.model_, 0);
    per_sequence_ = std::exchange(other.per_sequence_, 0);
    cleared_ = std::exchange(other.cleared_, 0);
    reach_ = std::exchange(other.reach_, 0);
    positions_ = std::exchange(other.positions_, {});
    waiting_ = std::exchange(other.waiting_, {});
    data_ = std::move(other.data_);
    recent_ = std::exchange(other.recent_, {});
    return *this;
  }

  size_t batch() const { return positions_.size(); }
  // Symbols that a sequence has read. Throws InputError where there is no such sequence.
  size_t position(size_t sequence = 0) const;
  // StateBytes() for each sequence.
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

  uint64_t model_ = 0;             // its fingerprint
  size_t per_sequence_ = 0;        // floats
  size_t cleared_ = 0;             // of them that must be 0 before the first symbol
  size_t reach_ = 0;               // of the model
  std::vector<size_t> positions_;  // [batch]
  std::vector<uint8_t> waiting_;   // [batch]: keys that kernels/linear_step.h has not folded yet
  AlignedBuffer<float> data_;      // [batch] of what StateLayout says
  std::vector<int32_t> recent_;    // [batch, reach]: the symbol of position p at p mod reach
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_H_
