#include "linnet/runtime/embedder.h"

#include <algorithm>
#include <cstring>

#include "linnet/kernels/layer_norm.h"
#include "linnet/model/pixels.h"

namespace linnet {

using kernels::LinearMode;

Embedder::Embedder(const Model::Packed& model, const Block& block, const Workspace& work,
                   const Team& team, float* x)
    : model_(model),
      block_(block),
      work_(work),
      team_(team),
      x_(x),
      stem_(model, block, work.stem),
      own_(work.Own(team, block.rows())) {}

// The token one image row above the next one, which follows position t of the block. (With
// whole_pixels, the token above the last pixel of the first row is kBeginPixel, which is also
// NothingAbove().)
int32_t Embedder::Above(size_t sequence, size_t t) const {
  const size_t row = static_cast<size_t>(model_.spec.RowTokens());
  const size_t next = block_.Position(sequence) + block_.ahead + t + 1;
  if (next < row) return NothingAbove(model_.spec);
  const size_t at = next - row;
  if (at < block_.Position(sequence)) {
    return block_.recent[block_.Place(sequence) * block_.recent_stride + at % model_.layout->reach];
  }
  const int32_t* token = block_.tokens + block_.Input(sequence) + t;
  return token[1 - static_cast<ptrdiff_t>(row)];
}

void Embedder::Embed() {
  if (block_.frames != nullptr) {
    Project();
  } else {
    size_t sequence = block_.offsets ? 0 : own_.begin / block_.length;
    for (size_t r = own_.begin; r < own_.end; ++r) {
      while (r >= block_.Row(sequence + 1)) ++sequence;
      EmbedToken(sequence, r - block_.Row(sequence), x_ + r * width());
    }
  }
  if (stems()) AddStem();
  if (model_.embedding_norm.weight != nullptr) {
    float* rows = x_ + own_.begin * width();
    kernels::LayerNorm({own_.count(), width(), model_.spec.stack.norm_eps},
                       {.x = rows, .x_stride = width()}, model_.embedding_norm, rows, width());
  }
}

// x = x + the stem's output. A team divides the rows, or if they are few, the columns.
void Embedder::AddStem() {
  stem_.Features(own_.begin, own_.end);
  if (work_.shared_x || team_.size == 1) {
    if (work_.shared_x) team_.Barrier();
    return stem_.Output({.begin = own_.begin, .end = own_.end, .to = width()}, LinearMode::kAdd,
                        x_);
  }
  const size_t panels = (width() + kernels::kPanel - 1) / kernels::kPanel;
  const size_t from = team_.Begin(panels) * kernels::kPanel;
  const size_t to = std::min(width(), team_.End(panels) * kernels::kPanel);
  if (from < to) {
    stem_.Output({.begin = 0, .end = own_.end, .from = from, .to = to}, LinearMode::kOverwrite,
                 work_.stem.sum);
  }
  team_.Barrier();
  for (size_t i = 0; i < own_.end * width(); ++i) x_[i] += work_.stem.sum[i];
}

// x = [e, pe[position]] or e + pe[position], with e = value_embedding[token], plus
// above_embedding[the byte above the next byte] if the spec has pixel_above.
void Embedder::EmbedToken(size_t sequence, size_t t, float* x) const {
  std::fill_n(x, model_.value_embedding, 0.0f);
  AddEmbedding(model_.values, block_.tokens[block_.Input(sequence) + t], x);
  if (model_.spec.input.pixel_above) AddEmbedding(model_.above, Above(sequence, t), x);
  Place(block_.Position(sequence) + block_.ahead + t, x);
}

void Embedder::AddEmbedding(const AlignedBuffer<float>& table, int32_t token, float* x) const {
  const auto add = [&](size_t row) {
    const float* from = table.data() + row * model_.value_embedding;
    for (size_t i = 0; i < model_.value_embedding; ++i) x[i] += from[i];
  };
  if (!model_.spec.input.whole_pixels) return add(static_cast<size_t>(token));
  for (const size_t row : PixelRows(token)) add(row);
}

// Appends the position embedding to the value embedding, or adds it.
void Embedder::Place(size_t position, float* x) const {
  const size_t ve = model_.value_embedding, dims = model_.position_dims;
  if (dims == 0) return;
  const bool known = position < static_cast<size_t>(model_.spec.input.max_length);
  if (!known) PositionRow(model_.spec, static_cast<int64_t>(position), work_.wide);
  const float* row = known ? model_.positions.data() + position * dims : work_.wide;
  if (ve == width()) {
    for (size_t i = 0; i < dims; ++i) x[i] += row[i];
  } else {
    std::memcpy(x + ve, row, dims * sizeof(float));
  }
}

// x = [W frame + b, pe[position]]
void Embedder::Project() {
  const auto in = static_cast<size_t>(model_.spec.speech()->Inputs());
  for (size_t i = 0; i < block_.sequences; ++i) {
    const size_t row = block_.Row(i);
    const size_t begin = std::max(own_.begin, row), end = std::min(own_.end, block_.Row(i + 1));
    if (begin >= end) continue;
    Multiply(model_.predictor_precision(), end - begin, in, model_.value_embedding,
             block_.frames + (block_.Input(i) + begin - row) * in, in, model_.input_projection,
             LinearMode::kOverwrite, x_ + begin * width(), width(), work_.narrow_wide);
    for (size_t r = begin; r < end; ++r) {
      Place(block_.Position(i) + block_.ahead + r - row, x_ + r * width());
    }
  }
}

}  // namespace linnet
