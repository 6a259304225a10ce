// How rows go through the layers (private to linnet/runtime): what threads share, what each needs for
// itself, and the walk of one block, alone or by a team with barriers.
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

namespace linnet {

// Rows (positions or sequences) that go through the layers together: enough to make matrix products
// of them, few enough that what lies between two products stays in a second-level cache. Whole sequences
// may be longer.
inline constexpr size_t kBlockRows = 192;

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
  float* sums[2];       // [groups or 1][rows, d_model]: results of even and of odd parts
  size_t group_stride;  // 0: the groups add up in one piece
  kernels::NarrowRows narrow;  // narrow models: [rows, d_model], what the layers read, shared as x
  float* wide;                 // [rows, widest]: between a group's products
  std::byte* narrow_wide;  // narrow models: [rows, widest or d_model], what the outer products read
  float* heads;            // [rows, values of a group of heads]
  float* mixer;            // RuntimeMixer::ScratchFloats()
  float* mixed;            // of convolutions: [rows, d_model] and [width + rows, d_model]
  float* lstm;             // of an LSTM
};

// The largest block that working memory is for.
struct BlockSize {
  size_t rows = 0;
  size_t keys = 0;  // positions that are looked at
  bool operator==(const BlockSize&) const = default;
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

// What a team of more than one shares, for blocks of up to that size.
void TakeShared(const Model::Packed& model, const BlockSize& size, Pieces& pieces, Workspace& work);
// What each member has for itself: in a team, its copy of x only for a few rows; alone, everything.
void TakeOwn(const Model::Packed& model, const BlockSize& size, bool alone, Pieces& pieces,
             Workspace& work);

// Embeds the block's input, walks all layers, and writes the head's outputs where the block says. Each
// member of a team calls it.
void RunBlock(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team);

// Reads a first part with the encoder, into what cross attention keeps of the block's one sequence. For a
// thread that is alone.
void RunEncoder(const Model::Packed& model, const Block& block, const Workspace& work);

// Layers of an LSTM over the frames of the block's one sequence (kernels/lstm_cell.h): writes the outputs.
// For a thread that is alone.
void RunLstm(const Model::Packed& model, const Block& block, const Workspace& work);
size_t LstmScratch(const Model::Packed& model, size_t rows);

}  // namespace linnet

#endif  // LINNET_RUNTIME_WALKER_H_
