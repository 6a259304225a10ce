// Embeds the tokens or frames of a block (private to linnet/runtime).
//
//   Embedder embedder(model, block, work, team, x);
//   embedder.Embed();      // this member's rows; then a barrier, if the members share x
//   embedder.Keep();       // once, by one member
#ifndef LINNET_RUNTIME_EMBEDDER_H_
#define LINNET_RUNTIME_EMBEDDER_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/stem.h"
#include "linnet/runtime/walker.h"

namespace linnet {

class Embedder {
 public:
  // x [rows, ModelSpec::EmbeddingWidth()]: the destination.
  Embedder(const Model::Packed& model, const Block& block, const Workspace& work, const Team& team,
           float* x);

  void Embed();
  // Stores what the embeddings of the next block need.
  void Keep() const {
    if (stems()) stem_.Keep();
  }

 private:
  size_t width() const { return model_.embedding_width; }
  bool stems() const { return !model_.stem.colors.empty(); }
  int32_t Above(size_t sequence, size_t t) const;
  void AddStem();
  void EmbedToken(size_t sequence, size_t t, float* x) const;
  void AddEmbedding(const AlignedBuffer<float>& table, int32_t token, float* x) const;
  void Place(size_t position, float* x) const;
  void Project();

  const Model::Packed& model_;
  const Block& block_;
  const Workspace& work_;
  const Team team_;  // a copy: callers may pass a temporary
  float* x_;
  const Stem stem_;
  const Share own_;  // the rows that this member embeds
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_EMBEDDER_H_
