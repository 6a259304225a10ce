// Reads sequences through a model's layers (private to linnet/runtime): cuts what a call reads into
// blocks and divides them among threads. Arguments are not checked, and the state must have room
// for the new positions (StateData::Reserve()).
//
//   SequenceReader reader(model, /*threads=*/2);
//   reader.Read({.state = state, .batch = 4, .input = {.tokens = tokens}, .length = 100,
//                .outputs = outputs});
#ifndef LINNET_RUNTIME_READER_H_
#define LINNET_RUNTIME_READER_H_

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/base/hidden.h"
#include "linnet/base/thread_pool.h"
#include "linnet/runtime/crowd.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/state_data.h"
#include "linnet/runtime/walker.h"

namespace linnet {

// How mixers read positions of a sequence. kPieces: with kernels for several positions. kSteps: one
// by one, as Engine::Step() does.
enum class Reading { kPieces, kSteps };

// The tokens or frames of one sequence after another.
struct ReaderInput {
  const int32_t* tokens = nullptr;
  const float* frames = nullptr;
  size_t width = 1;  // floats of `frames` per position

  ReaderInput From(size_t position) const {
    return {tokens ? tokens + position : nullptr, frames ? frames + position * width : nullptr,
            width};
  }
};

// Sequences of a state, each of which reads its next positions.
struct ReaderCall {
  StateData& state;
  const size_t* chosen = nullptr;  // [batch], their indices in the state; null: 0 .. batch - 1
  size_t batch = 1;
  ReaderInput input;         // [batch, length]
  size_t length = 1;         // positions to read
  std::span<float> outputs;  // [batch, length, model.outputs], [batch, model.outputs] or empty
  Reading reading = Reading::kPieces;

  size_t Place(size_t i) const { return chosen ? chosen[i] : i; }
  // The call for sequence i alone, whose Place(i) is *place, without its first `begin` positions.
  ReaderCall Of(const size_t* place, size_t i, size_t begin, std::span<float> own) const {
    return {state, place, 1, input.From(i * length + begin), length - begin, own, reading};
  }
};

// A sequence that is read from its first position to its last, without a state.
struct WholeSequence {
  ReaderInput input;
  size_t length;
  float* outputs;
  bool only_last;  // `outputs` has room for those of the last position only
};

class LINNET_HIDDEN SequenceReader {
 public:
  SequenceReader(const Model::Packed& model, int threads);
  ThreadPool& pool() { return pool_; }

  // Continues from the state, with the decoder or, in a model without an encoder, with the model's
  // only stack. The model must have steps.
  void Read(const ReaderCall& call);
  // As Read() for sequences of different lengths, none longer than a block: sequence i reads the
  // tokens [offsets[i], offsets[i + 1]). `outputs` has those of the last positions, or is empty.
  // Only for models without an encoder.
  void ReadUnequal(StateData& state, std::span<const size_t> sequences,
                   std::span<const size_t> offsets, std::span<const int32_t> tokens,
                   std::span<float> outputs);
  // Runs the encoder over the tokens before the separator of the state's sequence `place`.
  void Encode(StateData& state, size_t place);
  // One sequence per block. A block is run by one thread or, if there are few sequences, by all
  // threads together.
  void ReadWhole(std::span<const WholeSequence> sequences);

 private:
  // The threads of a call. If `alone`, each runs its own sequences through all layers without
  // barriers. Otherwise all threads run all sequences together, splitting each layer.
  struct Division {
    size_t threads;
    bool alone;
    Crowd* crowd = nullptr;  // not null if the rows are so few that one thread may be faster
    size_t rows = 1;         // of the call; a crowd compares times per row
  };
  // The blocks of a call: positions of the first block and of the others, and sequences per block.
  struct Blocks {
    size_t first = 0, length = 0, most = 0;
  };
  struct Member {
    AlignedBuffer<float> buffer;
    Workspace work{};
  };

  Division Divide(size_t batch, size_t length);
  // Cuts a call into blocks of nearly equal length. If there are several, they end at multiples of
  // Engine::kCutPositions. most = 0: these differ between the sequences.
  Blocks Cut(const ReaderCall& call) const;
  // Calls walk(0), .., walk(threads - 1), each on a thread of its own. If the division has a Crowd,
  // records the call's duration there, for Divide() to choose between one thread and all threads.
  void RunOn(const Division& division, FunctionRef<void(int)> walk);
  void ReadApart(const ReaderCall& call);
  // Provides working memory for blocks of up to `size`. Allocates only if the memory must grow.
  void Prepare(const BlockSize& size, bool alone);
  // Each sequence's position as the layers count it: in a decoder, from the separator on. With a
  // decoder, also fills memory_lengths_.
  const size_t* Positions(StateData& state);
  // With patches, the number of patches before each sequence's position; else null.
  const size_t* PatchCounts(const StateData& state);
  // Updates a sequence's position, its number of waiting keys and its recent tokens after a call.
  void Passed(StateData& state, size_t place, const ReaderInput& input, size_t length,
              Reading reading) const;

  const Model::Packed& model_;
  ThreadPool pool_;
  std::vector<Crowd> crowds_;  // for few rows: by their number
  // For more rows, up to kBlockRows: by the logarithm of their number.
  std::array<Crowd, std::bit_width(kBlockRows)> prefixes_;
  AlignedBuffer<float> shared_;
  std::vector<Member> members_;  // a thread each
  BlockSize prepared_;           // the block size that the memory has room for
  bool prepared_alone_ = false;
  std::vector<size_t> positions_, memory_lengths_, zeros_;  // per sequence, for encoder-decoders
  std::vector<size_t> patch_counts_;                        // per sequence: PatchCounts()
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_READER_H_
