// Mixers as the walker (walker.h) runs them (private to linnet/runtime): one object per layer. The
// walker splits a mixer's heads into groups, multiplies the layer's input by each group's
// projections, calls Run() on the result, and applies the output projection to Run()'s output.
//
//   std::unique_ptr<RuntimeMixer> mixer = MakeRuntimeMixer({.spec = spec, .causal = true, ...});
//   for (const Projection& p : mixer->projections()) ...     // the columns of `in` for each head
//   mixer->Run({.block = block, .heads = {0, 4}, .in = in, .out = out, .state = state, ...});
//
// A new kind is a file mixer_NAME.cc with a class and `RuntimeMixerRow RuntimeName()`, a line in
// model/mixers/list.h, and plain loops in MixerRef (model_ref.h), against which the conformance
// test compares it. Code outside the library registers one with AddRuntimeMixer().
#ifndef LINNET_RUNTIME_MIXER_H_
#define LINNET_RUNTIME_MIXER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/strided.h"
#include "linnet/model/mixer.h"
#include "linnet/model/precision.h"

namespace linnet {

// Parts of scratch memory and of states begin at multiples of this many floats.
inline constexpr size_t kAlign = kCacheLine / sizeof(float);

// A block is the next `length` positions of each of `sequences` sequences; with `offsets`, the next
// offsets[i + 1] - offsets[i] positions of sequence i. Each position is a row; rows are in order of
// sequence, then position. Mixers without recurrent state read blocks of one whole sequence. The
// place of a sequence is its index in the State, whose batch may contain more sequences than the
// block; an array "by place" has one element for each sequence of the State.
struct Block {
  size_t sequences, length;
  const size_t* offsets = nullptr;       // [sequences + 1], in rows of the input; or null
  size_t first = 0;                      // without `chosen`: sequence i has the place first + i
  const size_t* chosen = nullptr;        // [sequences]: the place of each sequence; or null
  const size_t* positions;               // by place: position at the start of the call
  const size_t* patch_counts = nullptr;  // with patches, by place: their number before it
  size_t ahead = 0;                      // positions that earlier blocks of this call have read
  const int32_t* tokens = nullptr;  // [sequences, length], sequences input_stride positions apart
  const float* frames = nullptr;    // instead of tokens: spec.speech()->Inputs() floats a position
  size_t input_stride = 0;
  bool step = false;        // the call reads one position of each sequence
  bool by_steps = false;    // mixers read the positions one by one, each as a step
  float* states = nullptr;  // StateData::data; null: no state is kept
  size_t state_stride = 0;
  size_t capacity = 0;                     // capacity of the states' caches, in positions
  const uint8_t* waiting = nullptr;        // StateData::waiting
  const int32_t* recent = nullptr;         // StateData::recent
  size_t recent_stride = 0;                // tokens of `recent` per sequence
  const size_t* memory_lengths = nullptr;  // by place: length of the cross-attention memory
  // Sequence i's outputs go to outputs + i * sequence_output_stride: the outputs of all positions
  // or, with only_last, of the last position. Null: no outputs.
  float* outputs = nullptr;
  size_t sequence_output_stride = 0;
  bool only_last = false;

  // The first row of a sequence of the block.
  size_t Row(size_t sequence) const {
    return offsets ? offsets[sequence] - offsets[0] : sequence * length;
  }
  // The number of rows of a sequence of the block.
  size_t Length(size_t sequence) const {
    return offsets ? offsets[sequence + 1] - offsets[sequence] : length;
  }
  // Index of a sequence's first position in the input.
  size_t Input(size_t sequence) const { return offsets ? Row(sequence) : sequence * input_stride; }
  size_t rows() const { return Row(sequences); }
  // The place of a sequence of the block.
  size_t Place(size_t sequence) const { return chosen ? chosen[sequence] : first + sequence; }
  size_t Position(size_t sequence) const { return positions[Place(sequence)]; }
  // Arrays by place are passed to a kernel from this place on. With `chosen`, the kernel indexes
  // them by place; without, by sequence of the block.
  size_t FirstPlace() const { return chosen ? 0 : first; }
};

// The arguments of one call of a mixer, which computes a group of heads over the rows of a block.
struct MixerCall {
  const Block& block;
  kernels::HeadRange heads;
  // [rows, in_width]: the projections' columns. For each of inputs() in order: first the columns of
  // each of `heads` in turn, then the columns that all heads share (RuntimeMixer::Place()).
  const float* in;
  size_t in_width;
  float* out;  // [rows, heads, M]
  // This mixer's state, for all heads, of the sequence at place 0; StateOf() returns the state of
  // any sequence of the block. Null: no state is kept, and each sequence is whole and starts from
  // zeros.
  float* state;
  float* scratch;  // ScratchFloats()
  // [rows]. Not null if all heads of the mixer are normalized together but `heads` are only some of
  // them. Run() then writes the sum of squares of each row of `out` here, and leaves the division
  // by the root mean square of all heads to the walker.
  float* squares = nullptr;

  size_t count() const { return heads.end - heads.begin; }
  float* StateOf(size_t sequence) const {
    return state + block.Place(sequence) * block.state_stride;
  }
};

// A projection: `width` columns in MixerCall::in for each head. They are computed by the rows
// ProjectionInfo::RowOf() of the tensor `tensor`.weight (and .bias, if the file has one); if
// `shared`, rows [0, width) compute columns for all heads. Other fields are as in ProjectionInfo.
struct Projection {
  std::string tensor;
  size_t width;
  bool shared = false;
  size_t readers = 1;
  size_t blocks = 1;
  bool carries = false, carried = false;
};

// Projections with the same input: the layer's input, the layer's input with a token shift, or, if
// `carried`, columns of an earlier layer.
struct MixerInput {
  std::string shift;  // the token shift's tensor; "": none
  bool carried = false;
  std::vector<size_t> projections;  // indices in RuntimeMixer::projections()
};

// Size of a mixer's state for one sequence, in floats.
struct MixerStateSize {
  size_t fixed = 0;  // the part that does not grow: initially zeros; a multiple of 16
  // A cache: per head, keys [capacity, dim] and values [capacity, value_dim].
  size_t heads = 0, dim = 0, value_dim = 0;

  size_t Floats(size_t capacity) const { return fixed + heads * (dim + value_dim) * capacity; }
};

class RuntimeMixer {
 public:
  // together: number of consecutive heads of the spec that form one head of this object. Such a
  // head has the queries and outputs of all of them, and the keys and values that they share.
  explicit RuntimeMixer(const MixerSpec& spec, int together = 1);
  virtual ~RuntimeMixer() = default;

  size_t heads() const { return heads_; }
  size_t value_dim() const { return value_dim_; }

  // MixerProjections() of the spec. In cross attention, projections(false) returns the projection
  // of queries, for the attending rows, and projections(true) the projections of keys and values,
  // for the memory's rows.
  const std::vector<Projection>& projections() const { return projections_; }
  std::vector<Projection> projections(bool memory) const;
  const std::vector<MixerInput>& inputs() const { return inputs_; }
  // The columns of a projection in a MixerCall::in for `heads` heads. The first column of head h
  // has the index at + h * stride; if all heads share the columns, stride is 0.
  struct Columns {
    size_t at, stride;
  };
  Columns Place(size_t projection, size_t heads) const;
  // The tensor of the output projection.
  const std::string& out_projection() const { return out_projection_; }

  virtual MixerStateSize state_size() const { return {}; }
  // Whether the state keeps recent keys outside its sums and "folds" them, that is, adds them to
  // the sums, RecentKeys() at a time (kernels/linear_step.h). Linear kinds only.
  virtual bool folds() const { return false; }
  // The number of consecutive heads whose outputs are normalized together. MixerCall::heads is a
  // range of whole such sets, or any range if all heads are one set.
  virtual size_t norm_heads() const { return 1; }
  float norm_eps() const { return norm_eps_; }
  // For checks of a loaded state: calls body(first, count, narrow) for each part of a state, with
  // the index of the part's first float and the number of its floats. narrow: each float holds two
  // bfloat16 numbers.
  virtual void ForParts(size_t capacity, FunctionRef<void(size_t, size_t, bool)> body) const;

  // Floats of working memory for blocks of up to `rows` rows, groups of up to `heads` heads, and up
  // to `keys` attended positions.
  virtual size_t ScratchFloats(size_t rows, size_t heads, size_t keys) const = 0;

  // Self attention over the block's rows, continuing from the state if there is one.
  virtual void Run(const MixerCall& call) const = 0;

  // Cross attention. Remember() stores a memory's rows in the state of the block's one sequence,
  // which must be all zeros; Recall() attends from the block's rows to that memory.
  virtual void Remember(const MixerCall& call) const;
  virtual void Recall(const MixerCall& call) const;

 protected:
  // The rows of the array `from`, beginning with row `row`. Rows are `width` floats apart, and the
  // heads within a row `head` floats apart. A kernel may take the rows as batch elements of one
  // position or as positions of one batch element.
  static kernels::Strided<const float> Rows(const float* from, size_t row, size_t width,
                                            size_t head) {
    const auto stride = static_cast<ptrdiff_t>(width);
    return {from + row * width, stride, stride, static_cast<ptrdiff_t>(head)};
  }
  kernels::Strided<float> Out(const MixerCall& call, size_t row) const {
    return kernels::RowMajor(call.out + row * call.count() * value_dim_, 1, call.count(),
                             value_dim_);
  }
  // Number of columns of one head's q, k and v.
  size_t HeadWidth() const { return 2 * dim_ + value_dim_; }

  const size_t heads_, dim_, value_dim_;

 private:
  std::vector<Projection> projections_;
  std::vector<MixerInput> inputs_;
  const std::string out_projection_;
  const float norm_eps_;  // MixerSpec::output_norm_eps
};

// Parameters of a mixer's construction.
struct MixerMake {
  const MixerSpec& spec;
  bool causal = true;  // attends to no later position; keeps a state if the kind has one
  bool cross = false;  // cross attention: attends to a memory, the encoder's output
  size_t memory = 0;   // maximum length of that memory
  Precision precision = Precision::kF32;
  // Returns a tensor of the mixer by the end of its name ("inner_attention.feature_map.omega").
  FunctionRef<std::span<const float>(const std::string&)> tensor;
};

struct RuntimeMixerRow {
  std::string name;  // as in model/mixer.h
  // Throws InputError if the spec cannot run.
  std::unique_ptr<RuntimeMixer> (*make)(const MixerMake& make);
};

// Throws InputError for an unknown kind.
std::unique_ptr<RuntimeMixer> MakeRuntimeMixer(const MixerMake& make);
// Throws InputError if the name is taken.
void AddRuntimeMixer(const RuntimeMixerRow& row);

}  // namespace linnet

#endif  // LINNET_RUNTIME_MIXER_H_
