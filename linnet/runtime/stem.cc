#include "linnet/runtime/stem.h"

#include <algorithm>
#include <utility>

#include "linnet/kernels/activation.h"
#include "linnet/model/stem.h"

namespace linnet {
namespace {

using kernels::LinearMode;

// Number of bytes whose features are in the state.
size_t Kept(const Model::Packed& model) {
  return static_cast<size_t>(StemFeatures(model.spec).Reach());
}

}  // namespace

size_t StemInFloats(const PackedStem& stem) {
  if (stem.colors.empty()) return 0;
  return kStemRows * std::max(stem.colors.back().bytes, stem.window);
}

size_t StemOutFloats(const Model::Packed& model) {
  if (model.stem.colors.empty()) return 0;
  return kStemRows * std::max(model.stem.channels, model.embedding_width);
}

size_t StemNarrowBytes(const Model::Packed& model) {
  if (model.stem.colors.empty() || !model.narrow()) return 0;
  return kernels::NarrowRowsSize(Model::Packed::NarrowTypeOf(model.precision), kStemRows,
                                 model.stem.window);
}

Stem::Stem(const Model::Packed& model, const Block& block, const StemWork& work)
    : model_(model),
      block_(block),
      work_(work),
      first_(model.stem.colors.empty() ? 0 : static_cast<size_t>(StemFirst(model.spec))) {
  if (block.states != nullptr && model.stem.state != SIZE_MAX) {
    states_ = block.states + model.layout->Begin(model.stem.state, block.capacity);
  }
}

// A row of the block: position t of one of its sequences. The row predicts byte `next`.
struct Stem::Row {
  size_t row, sequence, t, next;
};

template <class Body>
void Stem::ForRows(size_t begin, size_t end, Body body) const {
  size_t sequence = block_.offsets ? 0 : begin / block_.length;
  for (size_t r = begin; r < end; ++r) {
    while (r >= block_.Row(sequence + 1)) ++sequence;
    const size_t t = r - block_.Row(sequence);
    body(Row{r, sequence, t, Next(sequence, t)});
  }
}

// Calls body(k, rows, count) with up to kStemRows rows that predict color k.
template <class Body>
void Stem::ForColors(size_t begin, size_t end, Body body) const {
  const size_t colors = model_.stem.colors.size();
  for (size_t k = 0; k < colors; ++k) {
    Row rows[kStemRows];
    size_t count = 0;
    ForRows(begin, end, [&](const Row& row) {
      if (row.next % colors != k) return;
      rows[count++] = row;
      if (count == kStemRows) body(k, rows, std::exchange(count, 0));
    });
    if (count > 0) body(k, rows, count);
  }
}

// Byte `index` of the row's sequence. The byte must be one that is read at or before the row.
int32_t Stem::Byte(const Row& row, size_t index) const {
  const size_t position = index + first_;
  if (position < block_.Position(row.sequence)) {
    const size_t reach = model_.layout->reach;
    return block_.recent[block_.Place(row.sequence) * block_.recent_stride + position % reach];
  }
  const int32_t* last = block_.tokens + block_.Input(row.sequence) + row.t;
  return last[static_cast<ptrdiff_t>(index) - static_cast<ptrdiff_t>(row.next) + 1];
}

// The features h[index] of StemSpec, index <= row.next. Null for an h[0] that no position computes,
// which is zeros.
const float* Stem::FeaturesOf(const Row& row, size_t index) const {
  if (index == 0 && first_ == 0) return nullptr;
  const size_t first = Next(row.sequence, 0), channels = model_.stem.channels;
  if (index >= first) {
    return work_.features + (block_.Row(row.sequence) + index - first) * channels;
  }
  return State(row.sequence) + index % Kept(model_) * channels;
}

void Stem::GatherBytes(const Row& row, float* to) const {
  const bool pixels = model_.spec.input.whole_pixels;
  StemBytes(model_.spec).ForEach(static_cast<int64_t>(row.next), [&](int64_t at) {
    const int32_t token = at < 0 ? 0 : Byte(row, static_cast<size_t>(at));
    for (int shift = pixels ? 16 : 0; shift >= 0; shift -= 8) {
      *to++ = at < 0 ? 0.0f : StemInput(token >> shift & 255);
    }
  });
}

void Stem::GatherFeatures(const Row& row, float* to) const {
  const size_t channels = model_.stem.channels;
  StemFeatures(model_.spec).ForEach(static_cast<int64_t>(row.next), [&](int64_t byte) {
    const float* from = byte < 0 ? nullptr : FeaturesOf(row, static_cast<size_t>(byte));
    if (from == nullptr) {
      std::fill_n(to, channels, 0.0f);
    } else {
      std::copy_n(from, channels, to);
    }
    to += channels;
  });
}

void Stem::Features(size_t begin, size_t end) const {
  const size_t channels = model_.stem.channels;
  ForColors(begin, end, [&](size_t k, const Row* rows, size_t count) {
    const PackedStem::Color& color = model_.stem.colors[k];
    for (size_t i = 0; i < count; ++i) GatherBytes(rows[i], work_.in + i * color.bytes);
    Multiply(Precision::kF32, count, color.bytes, channels, work_.in, color.bytes, color.features,
             LinearMode::kOverwrite, work_.out, channels, nullptr);
    kernels::Activate(kernels::Activation::kGelu, count * channels, work_.out);
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(work_.out + i * channels, channels, work_.features + rows[i].row * channels);
    }
  });
}

void Stem::Output(const Part& part, LinearMode mode, float* y) const {
  const size_t d = model_.embedding_width, window = model_.stem.window,
               columns = part.to - part.from;
  const size_t skipped = Model::Packed::MatrixBytes(model_.precision, window, part.from);
  ForColors(part.begin, part.end, [&](size_t k, const Row* rows, size_t count) {
    for (size_t i = 0; i < count; ++i) GatherFeatures(rows[i], work_.in + i * window);
    Multiply(model_.precision, count, window, columns, work_.in, window,
             model_.stem.colors[k].output + skipped, LinearMode::kOverwrite, work_.out, columns,
             work_.narrow);
    for (size_t i = 0; i < count; ++i) {
      const float* from = work_.out + i * columns;
      float* to = y + rows[i].row * d + part.from;
      for (size_t j = 0; j < columns; ++j)
        to[j] = mode == LinearMode::kAdd ? to[j] + from[j] : from[j];
    }
  });
}

void Stem::Keep() const {
  if (states_ == nullptr) return;
  const size_t kept = Kept(model_), channels = model_.stem.channels;
  for (size_t i = 0; i < block_.sequences; ++i) {
    const size_t length = block_.Length(i);
    float* state = State(i);
    for (size_t t = length - std::min(length, kept); t < length; ++t) {
      std::copy_n(work_.features + (block_.Row(i) + t) * channels, channels,
                  state + Next(i, t) % kept * channels);
    }
  }
}

}  // namespace linnet
