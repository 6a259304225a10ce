// Patches of images (PatchSpec) over the rows of a block (private to linnet/runtime): from the
// embeddings to the layers' inputs, and from the layers' outputs to the head's inputs.
//
//   Patches patches(model, block, work.patch);
//   patches.Recall(begin, end);                   // z of these rows of the block
//   patches.Join(from, to, x);                    // inputs of these rows of patches.layers()
//   ...                                           // the layers
//   patches.Split(from, to, y, /*keep=*/true);    // their outputs; then a barrier
//   patches.Keep(begin, end);
//   patches.Finish(begin, end);                   // z of these rows are the head's inputs
//
// A block's sequences may begin no patch, or many.
#ifndef LINNET_RUNTIME_PATCHES_H_
#define LINNET_RUNTIME_PATCHES_H_

#include <cstddef>

#include "linnet/runtime/packed_model.h"

namespace linnet {

// Working memory.
struct PatchWork {
  float *u, *z;   // [rows, width]: the embeddings and the head's inputs; shared like Workspace::x
  float* joined;  // [kPatchRows, tokens * width]
  float* hidden;  // [kTokenRows, d_ff]
  float* token;   // [kTokenRows, width]
  std::byte* narrow;  // rounded inputs of the products, in narrow models
  size_t* sequences;  // [rows]: of each sequence of layers(), its index in the block
  size_t* places;     // [rows]: its place
  size_t* offsets;    // [rows + 1]: the first row of each sequence of layers()
};

// Maximum numbers of patches and of tokens that are multiplied together.
inline constexpr size_t kPatchRows = 16, kTokenRows = 64;

// Bytes of PatchWork::narrow; 0 in f32.
size_t PatchNarrowBytes(const Model::Packed& model);

class Patches {
 public:
  Patches(const Model::Packed& model, const Block& block, const PatchWork& work);

  // The patches that begin in the block, as rows of the sequences that they belong to. Without
  // sequences if there are none. Mixers read patches one by one, so a state does not depend on how
  // tokens are cut into calls.
  const Block& layers() const { return layers_; }

  // z = u, plus the convolution, plus, for tokens of a patch that an earlier block began, the row
  // of B y + b. Needs all embeddings of the block.
  void Recall(size_t begin, size_t end) const;
  // x [rows of layers(), d_model]. Needs all embeddings of the block.
  void Join(size_t begin, size_t end, float* x) const;
  // Adds the rows of B y + b to z. `keep`: also stores the last ones of each sequence.
  void Split(size_t begin, size_t end, const float* y, bool keep) const;
  // Stores the embeddings that the next block may need. No other member may still call Join().
  void Keep(size_t begin, size_t end) const;
  // z = LN(z + W2 gelu(W1 LN(z) + b1) + b2)
  void Finish(size_t begin, size_t end) const;

 private:
  struct Patch;
  template <class Body>
  void ForPatches(size_t begin, size_t end, Body body) const;
  template <class Body>
  void ForTokens(size_t begin, size_t end, Body body) const;
  // Adds the convolution at token n, whose embedding is a row of the block, to z.
  void Convolve(size_t row, size_t sequence, size_t n, float* z) const;
  // The token of the image that the first row of a sequence of the block predicts.
  size_t First(size_t sequence) const;
  float* State(size_t sequence) const;
  // The state's embedding of token n.
  float* Kept(size_t sequence, size_t n) const;

  const Model::Packed& model_;
  const PackedPatch& patch_;
  const Block& block_;
  const PatchWork& work_;
  Block layers_{};
  float* states_ = nullptr;  // the state of patches of the sequence at place 0; null: none
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_PATCHES_H_
