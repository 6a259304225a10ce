// Runs rows (positions of sequences) through the layers (private to linnet/runtime): RunBlock()
// computes one block, on one thread or on a team of threads. Its working memory is partly shared by
// the team, partly each member's own.
//
//   AlignedBuffer<float> memory;
//   Workspace work{};
//   const BlockSize size{.rows = 192, .keys = 192};
//   Allocate(memory, [&](Pieces& pieces) { TakeOwn(model, size, /*alone=*/true, pieces, work); });
//   RunBlock(model, block, work, Team{});
#ifndef LINNET_RUNTIME_WALKER_H_
#define LINNET_RUNTIME_WALKER_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/base/thread_pool.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/patches.h"
#include "linnet/runtime/stem.h"

namespace linnet {

// Maximum number of rows that go through the layers together: enough for efficient matrix products,
// few enough that the intermediate results stay in the second-level cache. Exception: whole
// sequences may be longer.
inline constexpr size_t kBlockRows = 192;

// The threads that compute a block together: one, or the whole pool.
struct Team {
  ThreadPool* pool = nullptr;
  size_t member = 0, size = 1;

  void Barrier() const {
    if (size > 1) pool->Barrier();
  }
  // This member's share of `count` items is [Begin(count), End(count)).
  size_t Begin(size_t count) const { return count * member / size; }
  size_t End(size_t count) const { return count * (member + 1) / size; }
};

// The rows of a member.
struct Share {
  size_t begin, end;
  size_t count() const { return end - begin; }
};

// A member's working memory. Between two barriers, a member writes only its own share of the memory
// that the team shares.
struct Workspace {
  float* x;       // [rows, d_model], the layers' input: the member's own, or shared
  bool shared_x;  // x is shared; each member fills its share of the rows
  float* normed;  // norm_first: [rows, d_model], x normalized, shared like x; else null
  // Contributions of the groups, [groups or 1][rows, d_model]: one buffer for parts of even index
  // and one for the others, so that a member may start the next part while others read the sums.
  float* sums[2];
  size_t group_stride;  // floats between groups in `sums`; 0: the groups add up in one buffer
  // For parts with one_norm: MixerCall::squares of each group, in two buffers as in `sums`.
  float* squares[2];
  size_t squares_stride;       // floats between groups
  float* factors;              // [rows], by which the sum of a one_norm part's groups is multiplied
  kernels::NarrowRows narrow;  // narrow models: [rows, d_model], the layers' input, shared like x
  float* wide;                 // [rows, widest]: results of a group's first product
  std::byte* narrow_wide;  // narrow models: rounded input of all products that do not read `narrow`
  float* heads;            // [rows, columns], the mixer's outputs for a group of heads
  float* shifted;          // [at most kBlockRows rows, d_model], if the model has token shifts
  float* carried;          // [rows, columns that a layer's mixer passes to later ones]; shared
  float* mixer;            // RuntimeMixer::ScratchFloats()
  float* mixed;            // for convolutions: [rows, d_model], then two [width + rows, d_model]
  float* lstm;             // LstmScratch()
  StemWork stem;
  PatchWork patch;

  // The rows that a member embeds and normalizes.
  Share Own(const Team& team, size_t rows) const {
    return shared_x ? Share{team.Begin(rows), team.End(rows)} : Share{0, rows};
  }
};

// The largest block that the working memory holds.
struct BlockSize {
  size_t rows = 0;
  size_t keys = 0;  // attended positions
  bool operator==(const BlockSize&) const = default;
};

// Hands out pieces of one allocation, each on its own cache lines. With a null base it only counts.
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

// Calls take(pieces) twice: to measure, then to lay the pieces out in `buffer`, which grows if
// needed.
template <class Take>
void Allocate(AlignedBuffer<float>& buffer, Take take) {
  Pieces measure;
  take(measure);
  if (buffer.size() < measure.used()) buffer = AlignedBuffer<float>(measure.used());
  Pieces pieces(buffer.data());
  take(pieces);
}

// Takes the memory that a team of several members shares, for blocks of up to `size`.
void TakeShared(const Model::Packed& model, const BlockSize& size, Pieces& pieces, Workspace& work);
// Takes a member's own memory. It includes x and the sums if the member works alone; in a team it
// includes x only if there are few rows.
void TakeOwn(const Model::Packed& model, const BlockSize& size, bool alone, Pieces& pieces,
             Workspace& work);

// Embeds the block's input, runs all layers, and writes the head's outputs to block.outputs. Every
// member of the team must call it.
void RunBlock(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team);

// Reads the encoder's tokens into the cross-attention memory of the block's one sequence. Single
// thread only.
void RunEncoder(const Model::Packed& model, const Block& block, const Workspace& work);

// Runs the LSTM layers over the frames of the block's one sequence (kernels/lstm_cell.h) and writes
// the outputs. Single thread only.
void RunLstm(const Model::Packed& model, const Block& block, const Workspace& work);
size_t LstmScratch(const Model::Packed& model, size_t rows);

}  // namespace linnet

#endif  // LINNET_RUNTIME_WALKER_H_
