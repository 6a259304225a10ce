#include "linnet/runtime/patches.h"

#include <algorithm>

#include "linnet/kernels/activation.h"
#include "linnet/kernels/depthwise.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/model/patches.h"

namespace linnet {

using kernels::LinearMode;

size_t PatchNarrowBytes(const Model::Packed& model) {
  if (!model.spec.patches() || !model.narrow()) return 0;
  const PackedPatch& patch = model.patch;
  const auto type = Model::Packed::NarrowTypeOf(model.precision);
  return std::max(
      kernels::NarrowRowsSize(type, kPatchRows, std::max(patch.floats(), model.d_model)),
      kernels::NarrowRowsSize(type, kTokenRows, std::max(patch.width, patch.d_ff)));
}

Patches::Patches(const Model::Packed& model, const Block& block, const PatchWork& work)
    : model_(model), patch_(model.patch), block_(block), work_(work) {
  if (block.states != nullptr && patch_.state != SIZE_MAX) {
    states_ = block.states + model.layout->Begin(patch_.state, block.capacity);
  }
  const PatchCount& counts = model.layout->patches;
  size_t sequences = 0, rows = 0, length = 0;
  bool equal = true;
  for (size_t i = 0; i < block.sequences; ++i) {
    const size_t position = block.Position(i) + block.ahead;
    const size_t count = counts.Before(position + block.Length(i)) - counts.Before(position);
    if (count == 0) continue;
    equal = equal && (sequences == 0 || count == length);
    length = count;
    work.sequences[sequences] = i;
    work.places[sequences] = block.Place(i);
    work.offsets[sequences++] = rows;
    rows += count;
  }
  work.offsets[sequences] = rows;
  layers_ = block;
  layers_.sequences = sequences;
  layers_.length = length;
  layers_.offsets = equal ? nullptr : work.offsets;
  layers_.chosen = work.places;
  layers_.positions = block.patch_counts;
  // Sequences that are read in several blocks agree in their positions mod P.
  const size_t start = block.Position(0);
  layers_.ahead = counts.Before(start + block.ahead) - counts.Before(start);
  layers_.by_steps = !block.step;
  layers_.outputs = nullptr;
}

size_t Patches::First(size_t sequence) const {
  return block_.Position(sequence) + block_.ahead +
         static_cast<size_t>(FirstPredicted(model_.spec));
}

float* Patches::State(size_t sequence) const {
  return states_ + block_.Place(sequence) * block_.state_stride;
}

float* Patches::Kept(size_t sequence, size_t n) const {
  return State(sequence) + (n + patch_.tokens - 1) % patch_.tokens * patch_.width;
}

// A row of layers(): the patch of the tokens n .. n + P - 1.
struct Patches::Patch {
  size_t row, sequence;  // `sequence` of the block
  size_t n;
  bool last;  // the sequence's last one in the block
};

template <class Body>
void Patches::ForPatches(size_t begin, size_t end, Body body) const {
  Patch patches[kPatchRows];
  size_t count = 0, i = 0;
  for (size_t r = begin; r < end; ++r) {
    while (r >= work_.offsets[i + 1]) ++i;
    const size_t sequence = work_.sequences[i], tokens = patch_.tokens;
    const size_t first = (First(sequence) + tokens - 1) / tokens;  // the sequence's first patch
    patches[count++] = {.row = r,
                        .sequence = sequence,
                        .n = (first + r - work_.offsets[i]) * tokens,
                        .last = r + 1 == work_.offsets[i + 1]};
    if (count == kPatchRows || r + 1 == end) {
      body(patches, count);
      count = 0;
    }
  }
}

// Calls body(row, sequence, n) for rows [begin, end) of the block.
template <class Body>
void Patches::ForTokens(size_t begin, size_t end, Body body) const {
  size_t sequence = block_.offsets ? 0 : begin / block_.length;
  for (size_t r = begin; r < end; ++r) {
    while (r >= block_.Row(sequence + 1)) ++sequence;
    body(r, sequence, First(sequence) + r - block_.Row(sequence));
  }
}

void Patches::Recall(size_t begin, size_t end) const {
  const size_t width = patch_.width, tokens = patch_.tokens;
  std::copy(work_.u + begin * width, work_.u + end * width, work_.z + begin * width);
  if (states_ == nullptr && patch_.convolution == 0) return;
  ForTokens(begin, end, [&](size_t row, size_t sequence, size_t n) {
    float* to = work_.z + row * width;
    if (patch_.convolution > 0) Convolve(row, sequence, n, to);
    const size_t next = (First(sequence) + tokens - 1) / tokens * tokens;  // begins a patch
    if (states_ == nullptr || n >= next) return;
    const float* from = State(sequence) + patch_.floats() + n % tokens * width;
    for (size_t i = 0; i < width; ++i) to[i] += from[i];
  });
}

void Patches::Convolve(size_t row, size_t sequence, size_t n, float* z) const {
  const size_t width = patch_.width, taps = patch_.convolution;
  for (size_t i = 0; i < width; ++i) z[i] += patch_.convolution_bias[i];
  const auto add = [&](size_t tap, size_t count, const float* from) {
    kernels::DepthwiseRow({.width = count,
                           .channels = width,
                           .x = from,
                           .x_stride = width,
                           .weight = patch_.convolution_weight + tap * width,
                           .weight_stride = width,
                           .start = z,
                           .out = z});
  };
  // The taps read the embeddings of `older` tokens before the block's first one, whose numbers
  // begin at m - P, and then those of rows of the block.
  const size_t first = First(sequence), given = std::min(taps, n - first + 1), older = taps - given;
  if (states_ != nullptr) {
    for (size_t tap = 0; tap < older;) {
      const size_t m = n + patch_.tokens + 1 - taps + tap;
      const size_t place = (m + patch_.tokens - 1) % patch_.tokens;
      const size_t count = std::min(older - tap, patch_.tokens - place);  // up to the ring's end
      add(tap, count, Kept(sequence, m));
      tap += count;
    }
  }
  add(older, given, work_.u + (row + 1 - given) * width);
}

void Patches::Join(size_t begin, size_t end, float* x) const {
  const size_t width = patch_.width, tokens = patch_.tokens, all = patch_.floats();
  ForPatches(begin, end, [&](const Patch* patches, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const Patch& patch = patches[i];
      const size_t first = First(patch.sequence);
      float* to = work_.joined + i * all;
      for (size_t j = 0; j < tokens; ++j, to += width) {
        const size_t m = patch.n + j + 1;  // the token's number + P, since that may be negative
        if (m >= first + tokens) {
          const size_t row = block_.Row(patch.sequence) + m - tokens - first;
          std::copy_n(work_.u + row * width, width, to);
        } else if (states_ != nullptr) {
          std::copy_n(Kept(patch.sequence, m), width, to);
        } else {
          std::fill_n(to, width, 0.0f);
        }
      }
    }
    Multiply(model_.precision, count, all, model_.d_model, work_.joined, all, patch_.in,
             LinearMode::kOverwrite, x + patches[0].row * model_.d_model, model_.d_model,
             work_.narrow);
  });
}

void Patches::Split(size_t begin, size_t end, const float* y, bool keep) const {
  const size_t width = patch_.width, all = patch_.floats();
  ForPatches(begin, end, [&](const Patch* patches, size_t count) {
    Multiply(model_.precision, count, model_.d_model, all, y + patches[0].row * model_.d_model,
             model_.d_model, patch_.out, LinearMode::kOverwrite, work_.joined, all, work_.narrow);
    for (size_t i = 0; i < count; ++i) {
      const Patch& patch = patches[i];
      const float* from = work_.joined + i * all;
      const size_t at = patch.n - First(patch.sequence);  // row in the sequence
      const size_t given = std::min(patch_.tokens, block_.Length(patch.sequence) - at);
      float* to = work_.z + (block_.Row(patch.sequence) + at) * width;
      for (size_t k = 0; k < given * width; ++k) to[k] += from[k];
      if (keep && patch.last && states_ != nullptr) {
        std::copy_n(from, all, State(patch.sequence) + all);
      }
    }
  });
}

void Patches::Keep(size_t begin, size_t end) const {
  if (states_ == nullptr) return;
  ForTokens(begin, end, [&](size_t row, size_t sequence, size_t n) {
    if (n + patch_.tokens < First(sequence) + block_.Length(sequence)) return;
    std::copy_n(work_.u + row * patch_.width, patch_.width, Kept(sequence, n));
  });
}

void Patches::Finish(size_t begin, size_t end) const {
  const size_t width = patch_.width, hidden = patch_.d_ff;
  for (size_t at = begin; at < end; at += kTokenRows) {
    const size_t rows = std::min(kTokenRows, end - at);
    const kernels::LayerNormShape shape{rows, width, model_.spec.stack.norm_eps};
    float* z = work_.z + at * width;
    kernels::LayerNorm(shape, {.x = z, .x_stride = width}, patch_.norm1, work_.token, width);
    Multiply(model_.precision, rows, width, hidden, work_.token, width, patch_.linear1,
             LinearMode::kOverwrite, work_.hidden, hidden, work_.narrow, patch_.factor);
    kernels::Activate(kernels::Activation::kGelu, rows * hidden, work_.hidden);
    Multiply(model_.precision, rows, hidden, width, work_.hidden, hidden, patch_.linear2,
             LinearMode::kOverwrite, work_.token, width, work_.narrow);
    kernels::LayerNorm(
        shape, {.x = work_.token, .x_stride = width, .residual = z, .residual_stride = width},
        patch_.norm2, z, width);
  }
}

}  // namespace linnet
