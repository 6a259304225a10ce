// How rows go through the layers (private to linnet/runtime): what threads share, what each needs for
// itself, and the walk of one block, alone or by a team with barriers.
//
//   AlignedBuffer<float> memory;
//   Workspace work{};
//   Allocate(memory, [&](Pieces& pieces) { TakeOwn(model, rows, /*alone=*/true, pieces, work); });
//   RunBlock(model, block, work, Team{});
#ifndef LINNET_RUNTIME_BLOCK_RUNNER_H_
#define LINNET_RUNTIME_BLOCK_RUNNER_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/base/thread_pool.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {

// `length` consecutive positions of `sequences` sequences, each from where it is; or of each sequence as
// many as lie between its offset and the next. The reformer's blocks are whole sequences, with no state.
struct Block {
  size_t sequences, length;
  const size_t* offsets = nullptr;  // [sequences + 1], of rows of `tokens`; or null
  size_t first = 0;                 // sequence of the state; or
  const size_t* chosen = nullptr;   // each of them, where some were chosen
  const size_t* positions;          // State::positions_: where the call began
  size_t ahead = 0;                 // positions that the call has been through before this block
  const int32_t* tokens;            // [sequences, length], rows token_stride apart
  size_t token_stride = 0;
  bool step = false;        // the call reads one symbol of each sequence
  float* states = nullptr;  // State::data_
  size_t state_stride = 0;
  const uint8_t* waiting = nullptr;  // State::waiting_
  const int32_t* recent = nullptr;   // State::recent_
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
  const int32_t* Tokens(size_t sequence) const {
    return tokens + (offsets ? Row(sequence) : sequence * token_stride);
  }
  size_t rows() const { return Row(sequences); }
  // Where a sequence of the block is in the state.
  size_t Place(size_t sequence) const { return chosen ? chosen[sequence] : first + sequence; }
  size_t Position(size_t sequence) const { return positions[Place(sequence)]; }
};

// The threads that walk a block together; alone, or all of the pool.
struct Team {
  ThreadPool* pool = nullptr;
  size_t member = 0, size = 1;

  void Barrier() const {
    if (size > 1) pool->Barrier();
  }
  size_t Begin(size_t count) const { return count * member / size; }
  size_t End(size_t count) const { return count * (member + 1) / size; }
};

// Working memory. Between two barriers a member writes only its own pieces.
struct Workspace {
  float* x;             // [rows, d_model], the layers' input: the member's own, or shared
  bool shared_x;        // then each member fills its share of the rows
  float* normed;        // [rows, d_model], the same for what norm_first layers read; else null
  float* sums[2];       // [groups or 1][rows, d_model]: attention's and feed-forward's results
  size_t group_stride;  // 0: the groups add up in one piece
  kernels::NarrowRows narrow;  // narrow models: [rows, d_model], what the layers read, shared as x
  float* wide;                 // [rows, widest]: between a group's products
  std::byte* narrow_wide;  // narrow models: [rows, widest or d_model], what the outer products read
  float* heads;            // [rows, values of a group of heads]
  float* features;         // [rows, heads of a group, 2 F]: phi of q and k, where not fused
  float* attention;        // for the attention kernels
  float* sums_of_state;    // [heads of a group, F M + F], for prefixes of linear attention
  int32_t* lsh_places;     // of the reformer: what its kernel writes beside its results
  float* lsh_sums;
};

// Hands out pieces of one allocation, each on cache lines of its own; without one it only counts.
class Pieces {
 public:
  explicit Pieces(float* base = nullptr) : base_(base) {}
  float* Take(size_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(floats, kCacheLine / sizeof(float));
    return piece;
  }
  size_t used() const { return used_; }

 private:
  float* base_;
  size_t used_ = 0;
};

// Lays the pieces out in `buffer`, which grows where it must.
template <class Take>
void Allocate(AlignedBuffer<float>& buffer, Take take) {
  Pieces measure;
  take(measure);
  if (buffer.size() < measure.used()) buffer = AlignedBuffer<float>(measure.used());
  Pieces pieces(buffer.data());
  take(pieces);
}

// What a team of more than one shares, for blocks of up to `rows` rows.
void TakeShared(const Model::Packed& model, size_t rows, Pieces& pieces, Workspace& work);
// What each member has for itself: in a team, its copy of x only for a few rows; alone, everything.
void TakeOwn(const Model::Packed& model, size_t rows, bool alone, Pieces& pieces, Workspace& work);

// Embeds the block's symbols, walks all layers, and writes the head's outputs where the block says. Each
// member of a team calls it.
void RunBlock(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team);

}  // namespace linnet

#endif  // LINNET_RUNTIME_BLOCK_RUNNER_H_
