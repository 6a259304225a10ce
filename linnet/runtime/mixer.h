// Mixers as the walker runs them (private to linnet/runtime): one object a layer, over rows whose
// projections have been made. The walker cuts a mixer's heads into groups, multiplies the layer's input
// with each group's projections, calls Run(), and multiplies what it gives with the projection back.
//
//   std::unique_ptr<RuntimeMixer> mixer = MakeRuntimeMixer({.spec = spec, .causal = true, ...});
//   for (const Projection& p : mixer->projections()) ...     // what a head's columns of `in` hold
//   mixer->Run({.block = block, .heads = {0, 4}, .in = in, .out = out, .state = state, ...});
//
// A new kind is a file mixer_NAME.cc with a class and `RuntimeMixerRow RuntimeName()`, its line in
// model/mixers/list.h, and its plain loops in MixerRef (model_ref.h), which the conformance test compares it
// with; from outside, AddRuntimeMixer().
#ifndef LINNET_RUNTIME_MIXER_H_
#define LINNET_RUNTIME_MIXER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/strided.h"
#include "linnet/model/mixer.h"
#include "linnet/model/precision.h"

namespace linnet {

// `length` consecutive positions of `sequences` sequences, each from where it is; or of each sequence as
// many as lie between its offset and the next. What is no RNN reads blocks of one whole sequence.
struct Block {
  size_t sequences, length;
  const size_t* offsets = nullptr;  // [sequences + 1], of rows of the input; or null
  size_t first = 0;                 // sequence of the state; or
  const size_t* chosen = nullptr;   // each of them, where some were chosen
  const size_t* positions;          // by place: where the call began
  size_t ahead = 0;                 // positions that the call has been through before this block
  const int32_t* tokens = nullptr;  // [sequences, length], rows input_stride apart; or
  const float* frames = nullptr;    // the same, of spec.speech()->Inputs() floats each
  size_t input_stride = 0;
  bool step = false;        // the call reads one position of each sequence
  float* states = nullptr;  // State::data_; null: nothing is kept
  size_t state_stride = 0;
  size_t capacity = 0;                     // positions that the states' caches have room for
  const uint8_t* waiting = nullptr;        // State::waiting_
  const int32_t* recent = nullptr;         // State::recent_
  size_t recent_stride = 0;                // tokens of it a sequence
  const size_t* memory_lengths = nullptr;  // by place: positions that cross attention remembers
  // Where each sequence's outputs go: of all positions, or of the last one only; null for none.
  float* outputs = nullptr;
  size_t sequence_output_stride = 0;
  bool only_last = false;

  // The row where a sequence begins, and how many are its own.
  size_t Row(size_t sequence) const {
    return offsets ? offsets[sequence] - offsets[0] : sequence * length;
  }
  size_t Length(size_t sequence) const {
    return offsets ? offsets[sequence + 1] - offsets[sequence] : length;
  }
  // Index of a sequence's first position in the input.
  size_t Input(size_t sequence) const { return offsets ? Row(sequence) : sequence * input_stride; }
  size_t rows() const { return Row(sequences); }
  // Where a sequence of the block is in the state.
  size_t Place(size_t sequence) const { return chosen ? chosen[sequence] : first + sequence; }
  size_t Position(size_t sequence) const { return positions[Place(sequence)]; }
  // Of arrays by place: what sequence 0 of the block, or where some are chosen of the state, has.
  size_t FirstPlace() const { return chosen ? 0 : first; }
};

// A group of heads over the rows of a block.
struct MixerCall {
  const Block& block;
  kernels::HeadRange heads;
  // [rows, in_width]: one head behind the other, of each the columns of projections(), in their order. `heads`
  // may be any range.
  const float* in;
  size_t in_width;
  float* out;      // [rows, heads, M]
  // Of all heads, of sequence 0 of the state (StateOf() finds the others). Null: nothing is kept, each sequence
  // of the block is whole, and begins from zeros.
  float* state;
  float* scratch;  // ScratchFloats()

  size_t count() const { return heads.end - heads.begin; }
  float* StateOf(size_t sequence) const {
    return state + block.Place(sequence) * block.state_stride;
  }
};

// Columns that a head has in MixerCall::in: rows [h width, (h + 1) width) of tensor + ".weight" of the
// mixer, and of its bias where the file has one.
struct Projection {
  std::string tensor;
  size_t width;
};

// Floats that a mixer keeps of a sequence.
struct MixerStateSize {
  size_t fixed = 0;  // zeros before the first position; a multiple of 16
  // A cache: of each head keys [capacity, dim] and values [capacity, value_dim].
  size_t heads = 0, dim = 0, value_dim = 0;

  size_t Floats(size_t capacity) const { return fixed + heads * (dim + value_dim) * capacity; }
};

class RuntimeMixer {
 public:
  explicit RuntimeMixer(const MixerSpec& spec)
      : heads_(static_cast<size_t>(spec.heads)),
        dim_(static_cast<size_t>(spec.query_dim)),
        value_dim_(static_cast<size_t>(spec.value_dim)) {}
  virtual ~RuntimeMixer() = default;

  size_t heads() const { return heads_; }
  size_t value_dim() const { return value_dim_; }

  // Of queries, keys and values; in cross attention, of the rows that look (`memory` false) and of the
  // rows that are looked at.
  virtual std::vector<Projection> projections() const;
  virtual std::vector<Projection> projections(bool memory) const;

  virtual MixerStateSize state_size() const { return {}; }
  // Of the linear kinds: keeps keys beside its sums until RecentKeys() of them are folded together
  // (kernels/linear_step.h).
  virtual bool folds() const { return false; }
  // Calls body(first float, floats, whether they are pairs of bfloat16) for each part of a state, so that
  // a loaded one can be checked.
  virtual void ForParts(size_t capacity, FunctionRef<void(size_t, size_t, bool)> body) const;

  // Working memory for blocks of up to `rows` rows and groups of up to `heads` heads, where up to `keys`
  // positions are looked at.
  virtual size_t ScratchFloats(size_t rows, size_t heads, size_t keys) const = 0;

  // Self attention of the block's rows, from the state on where there is one.
  virtual void Run(const MixerCall& call) const = 0;

  // Cross attention: takes a memory's rows into the state of the block's one sequence, which is all zeros;
  // and what rows make of what has been remembered.
  virtual void Remember(const MixerCall& call) const;
  virtual void Recall(const MixerCall& call) const;

 protected:
  // Columns from `column` on of the rows from `row` on: as batch elements of one position, or as positions
  // of one element.
  static kernels::Strided<const float> Rows(const float* from, size_t row, size_t width,
                                            size_t head) {
    const auto stride = static_cast<ptrdiff_t>(width);
    return {from + row * width, stride, stride, static_cast<ptrdiff_t>(head)};
  }
  kernels::Strided<float> Out(const MixerCall& call, size_t row) const {
    return kernels::RowMajor(call.out + row * call.count() * value_dim_, 1, call.count(),
                             value_dim_);
  }
  // Columns of q, k and v of a head, side by side.
  size_t HeadWidth() const { return 2 * dim_ + value_dim_; }

  const size_t heads_, dim_, value_dim_;
};

// What a mixer is made of.
struct MixerMake {
  const MixerSpec& spec;
  bool causal = true;  // sees no future; with a state
  bool cross = false;  // looks at a memory
  size_t memory = 0;   // of at most so many positions
  Precision precision = Precision::kF32;
  // A tensor of the mixer by the end of its name ("inner_attention.feature_map.omega").
  FunctionRef<std::span<const float>(const std::string&)> tensor;
};

struct RuntimeMixerRow {
  std::string name;  // in model/mixer.h
  // Throws InputError where the spec is one that cannot run, saying what can.
  std::unique_ptr<RuntimeMixer> (*make)(const MixerMake& make);
};

// Throws InputError for a kind that is not there.
std::unique_ptr<RuntimeMixer> MakeRuntimeMixer(const MixerMake& make);
// Throws InputError where the name is taken.
void AddRuntimeMixer(const RuntimeMixerRow& row);

}  // namespace linnet

#endif  // LINNET_RUNTIME_MIXER_H_
