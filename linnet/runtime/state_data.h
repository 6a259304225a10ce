// The contents of a State (private to linnet/runtime).
#ifndef LINNET_RUNTIME_STATE_DATA_H_
#define LINNET_RUNTIME_STATE_DATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/runtime/state_layout.h"
#include "linnet/state.h"

namespace linnet {

struct StateData {
  StateData() = default;
  StateData(const Model& model, size_t batch);
  // A state without sequences, for the model of `other`, with this capacity.
  static StateData Like(const StateData& other, size_t capacity);

  // The contents of a State; for null (an empty State), contents without sequences.
  static const StateData& Of(const std::unique_ptr<StateData>& data);

  size_t batch() const { return positions.size(); }
  // Throws InputError if there is no such sequence.
  void CheckSequence(size_t sequence) const;
  // Throws InputError unless the state belongs to this model.
  void CheckFits(const Model& model) const;

  // Floats of `data` per sequence, and tokens of `recent` per sequence.
  size_t per_sequence() const { return layout ? layout->Floats(capacity) : 0; }
  size_t tokens() const { return layout ? layout->Tokens(capacity) : 0; }

  // Adds `batch` sequences, all zeros. There must be none yet.
  void Resize(size_t batch);
  // Resets a sequence to before the first token.
  void Reset(size_t sequence);
  // Grows caches to at least this many positions.
  void Reserve(size_t positions);
  // Copies sequence `from` of `other`, whose position must not exceed this capacity, to index `to`.
  void Copy(const StateData& other, size_t from, size_t to);
  StateData Select(std::span<const size_t> sequences) const;

  // Validates a loaded sequence, whose floats and tokens are already in place, and sets its
  // position and its number of waiting keys (`keys`). `path` begins error messages.
  void LoadSequence(const std::string& path, const Model& of, size_t sequence, int64_t position,
                    uint8_t keys);

  // Encoder-decoders keep the encoder's tokens in `recent`: first their number, which is -1 until
  // the separator is read, then the tokens.
  int32_t& source_length(size_t sequence) { return recent[sequence * tokens()]; }
  int32_t source_length(size_t sequence) const { return recent[sequence * tokens()]; }
  int32_t* source(size_t sequence) { return recent.data() + sequence * tokens() + 1; }

  uint64_t model = 0;  // the model's fingerprint
  std::shared_ptr<const StateLayout> layout;
  size_t capacity = 0;            // number of positions that fit; 0 if the layout does not grow
  std::vector<size_t> positions;  // [batch]
  std::vector<uint8_t> waiting;   // [batch]: number of keys not yet folded (kernels/linear_step.h)
  AlignedBuffer<float> data;      // [batch, StateLayout::Floats(capacity)]
  std::vector<int32_t> recent;    // [batch, tokens()]
};

// For encoder-decoders: throws InputError unless the encoder has room for the first `read` tokens
// of a sequence and those of `tokens` before the separator.
void CheckSource(const Model& model, size_t read, std::span<const int32_t> tokens);

}  // namespace linnet

#endif  // LINNET_RUNTIME_STATE_DATA_H_
