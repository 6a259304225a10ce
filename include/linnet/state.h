// Recurrent state of sequences: everything needed to continue them. Its size is known before the
// first token. Only two kinds grow, once a sequence is longer than the training length: caches of
// keys and values, and token lists (StateKind::kCache and kTokens).
//
//   State state = engine.NewState(/*batch=*/1);
//   engine.Prefix(state, prompt, prompt.size(), {});
//   state.Save("prompt.state", engine.model());           // later, in another process:
//   State again = State::Load("prompt.state", engine.model());
//   State eight = again.Fork(8);                            // eight continuations of one prefix
//   State two = eight.Select(std::vector<size_t>{5, 2});    // keep two of them
//   two.Append(engine.NewState(1));                         // and add a new sequence
#ifndef LINNET_STATE_H_
#define LINNET_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/export.h"
#include "linnet/model.h"

namespace linnet {

struct StateData;

// Bytes of the state of one sequence that has read nothing. StateKind::kConstant: the size at any
// length. kCache: room for the keys and values of max_length positions; it grows on demand.
// kTokens: room for max_length tokens; it grows on demand, too.
LINNET_API size_t StateBytes(const ModelSpec& spec, Precision precision);

// The kind of state that a model keeps for a sequence.
enum class StateKind : uint8_t {
  kNone,      // none: the model is not causal, or reads frames without a recurrent state
  kConstant,  // constant size at any length
  kCache,     // keys and values of every position
  kTokens,    // all tokens, which are read again at each step
};
LINNET_API StateKind StateKindOf(const ModelSpec& spec);
LINNET_API StateKind StateKindOf(const Model& model);

// State of `batch` independent sequences. It is copied only explicitly (Clone() and so on); a
// moved-from State is empty. It belongs to one model in one precision; other models refuse it.
// Results for a sequence do not depend on the other sequences of its state.
class LINNET_API State {
 public:
  State();
  State(State&& other) noexcept;
  State& operator=(State&& other) noexcept;
  ~State();

  size_t batch() const;
  // Tokens that a sequence has read. Throws InputError if there is no such sequence.
  size_t position(size_t sequence = 0) const;
  // StateBytes() for each sequence, plus the growth of caches and token lists.
  size_t bytes() const;

  State Clone() const;
  void Reset();                 // returns all sequences to position 0
  void Reset(size_t sequence);  // the same for one sequence

  // A state with `copies` copies of each sequence, side by side: 0 0 0 1 1 1 ... Throws InputError
  // if `copies` is 0 or the result exceeds this machine's memory.
  State Fork(size_t copies) const;
  // A state of these sequences in this order; repetition is allowed. Throws InputError if a
  // sequence does not exist.
  State Select(std::span<const size_t> sequences) const;
  // Appends the sequences of `other`. Throws InputError unless it belongs to the same model.
  void Append(const State& other);

  // Replaces a sequence by the only sequence of `other`. Throws InputError unless `other` has one
  // sequence and belongs to the same model.
  void Assign(size_t sequence, const State& other);

  // Save atomically writes a safetensors file that names the model; Load reads such a file. A
  // loaded state continues bit for bit like the saved one. (For softmax models the file includes
  // unused cache rows, which may hold keys and values from before a Reset().) Load throws
  // InputError if the file is not a state, is damaged, or belongs to another model or to this model
  // in another precision.
  void Save(const std::string& path, const Model& model) const;
  static State Load(const std::string& path, const Model& model);
  // ToBytes returns the bytes of such a file; FromBytes makes a state from them, and names them
  // `label` in errors.
  std::vector<std::byte> ToBytes(const Model& model) const;
  static State FromBytes(std::span<const std::byte> bytes, const std::string& label,
                         const Model& model);

 private:
  friend class CudaEngine;
  friend class Engine;
  friend class Scheduler;
  explicit State(StateData data);
  std::unique_ptr<StateData> data_;  // null: empty
};

}  // namespace linnet

#endif  // LINNET_STATE_H_
