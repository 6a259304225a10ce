#include "linnet/runtime/block_runner.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/lsh_attention.h"
#include "linnet/kernels/softmax_attention.h"

namespace linnet {
namespace {

using kernels::Linear;
using kernels::LinearMode;

// A team normalises up to this many rows redundantly, each member for itself, instead of waiting
// for one another once more.
constexpr size_t kRedundantRows = 4;

kernels::LshAttentionShape LshShape(const Model::Packed& model, size_t length, size_t heads) {
  return {1, length, heads, model.dim, model.value_dim, model.lsh_rounds};
}

class BlockRunner {
 public:
  BlockRunner(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team)
      : model_(model), block_(block), work_(work), team_(team), rows_(block.rows()) {
    // The rows that this member embeds and normalises.
    begin_ = work.shared_x ? team.Begin(rows_) : 0;
    end_ = work.shared_x ? team.End(rows_) : rows_;
  }

  void Run() {
    Embed();
    if (model_.spec.norm_first) {
      Normalise(work_.x, nullptr, 1, model_.layers[0].norm1);
      NarrowInput(nullptr);
      if (work_.shared_x) team_.Barrier();
    }
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      const PackedLayer& layer = model_.layers[l];
      ForGroups(layer.attention, [&](size_t g) { Attention(layer.attention[g], g, l); });
      const bool first = model_.spec.norm_first, last = l + 1 == model_.layers.size();
      AddAndNormalise(work_.sums[0], layer.attention.size(), first ? layer.norm2 : layer.norm1,
                      layer.feed_forward_factor);
      ForGroups(layer.feed_forward, [&](size_t g) { FeedForward(layer.feed_forward[g], g); });
      AddAndNormalise(work_.sums[1], layer.feed_forward.size(),
                      !first ? layer.norm2
                      : last ? model_.final_norm
                             : model_.layers[l + 1].norm1,
                      nullptr);
    }
    if (block_.outputs != nullptr) Predict();
    // The next block's Embed() writes where others may still be reading.
    if (work_.shared_x) team_.Barrier();
  }

 private:
  size_t d() const { return model_.d_model; }

  // The row of above_embedding for the symbol that follows position t of the block.
  size_t Above(size_t sequence, size_t t) const {
    const size_t row_bytes = static_cast<size_t>(model_.spec.RowBytes());
    const size_t next = block_.Position(sequence) + block_.ahead + t + 1;
    if (next < row_bytes) return static_cast<size_t>(model_.spec.vocabulary);
    const size_t at = next - row_bytes, reach = row_bytes - 1;
    if (at < block_.Position(sequence)) {
      return static_cast<size_t>(block_.recent[block_.Place(sequence) * reach + at % reach]);
    }
    return static_cast<size_t>((block_.Tokens(sequence) + t)[-ptrdiff_t(reach)]);
  }

  // x = [value_embedding[token] (+ above_embedding[byte above the next]), pe[position]], or their sum
  void Embed() {
    const size_t ve = model_.value_embedding, pe = static_cast<size_t>(model_.spec.PositionDims());
    size_t sequence = block_.offsets ? 0 : begin_ / block_.length;
    for (size_t r = begin_; r < end_; ++r) {
      while (r >= block_.Row(sequence + 1)) ++sequence;
      const size_t t = r - block_.Row(sequence);
      const auto token = static_cast<size_t>(block_.Tokens(sequence)[t]);
      float* x = work_.x + r * d();
      std::memcpy(x, model_.values.data() + token * ve, ve * sizeof(float));
      if (model_.spec.pixel_above) {
        const float* above = model_.above.data() + Above(sequence, t) * ve;
        for (size_t i = 0; i < ve; ++i) x[i] += above[i];
      }
      if (pe == 0) continue;
      const float* position =
          model_.positions.data() + (block_.Position(sequence) + block_.ahead + t) * pe;
      if (ve == d()) {
        for (size_t i = 0; i < pe; ++i) x[i] += position[i];
      } else {
        std::memcpy(x + ve, position, pe * sizeof(float));
      }
    }
    if (!model_.spec.norm_first) NarrowInput(nullptr);
    if (work_.shared_x) team_.Barrier();
  }

  // This member's rows of what the layers read, for products with narrow matrices.
  void NarrowInput(const float* factor) {
    if (!model_.narrow()) return;
    kernels::NarrowActivations(end_ - begin_, d(), Input() + begin_ * d(), d(), factor,
                               kernels::RowsFrom(work_.narrow, begin_, d()));
  }

  // y = x W^T + b of all rows: of what the layers read,
  void FromInput(size_t out, PackedMatrix matrix, float* y, size_t y_stride) {
    if (model_.narrow()) {
      kernels::NarrowLinear(rows_, d(), out, work_.narrow, matrix, LinearMode::kOverwrite, y,
                            y_stride);
    } else {
      Linear(rows_, d(), out, Input(), d(), reinterpret_cast<const float*>(matrix),
             LinearMode::kOverwrite, y, y_stride);
    }
  }
  // and of other rows of floats.
  void From(Precision precision, size_t rows, size_t in, size_t out, const float* x,
            size_t x_stride, PackedMatrix matrix, LinearMode mode, float* y, size_t y_stride) {
    Multiply(precision, rows, in, out, x, x_stride, matrix, mode, y, y_stride, work_.narrow_wide);
  }

  template <class Body>
  void ForGroups(const std::vector<PackedGroup>& groups, Body body) {
    for (size_t g = team_.Begin(groups.size()); g < team_.End(groups.size()); ++g) body(g);
  }

  // Adds a group's share [rows, d_model] to the layer's result. Each share is complete before it is
  // added, in the groups' order, here or in AddAndNormalise().
  void Contribute(const PackedGroup& group, size_t g, size_t in, const float* from, float* sums) {
    const bool add = work_.group_stride == 0 && g > 0;
    From(model_.precision, rows_, in, d(), from, in, group.out,
         add ? LinearMode::kAdd : LinearMode::kOverwrite, sums + g * work_.group_stride, d());
  }

  void Attention(const PackedGroup& group, size_t g, size_t layer) {
    const size_t heads = group.end - group.begin, width = model_.QkvWidth(group);
    const size_t dim = model_.dim, value_dim = model_.value_dim, values = heads * value_dim;
    FromInput(width, group.in, work_.wide, width);
    const float* v = work_.wide + 2 * dim;
    const float* q = work_.wide;
    size_t qk_width = width, qk_head = model_.head_width;
    const size_t f = model_.features;
    if (model_.feature_map != nullptr) {
      qk_head = 2 * f, qk_width = heads * qk_head;
      const FeatureInput input{dim, model_.omega_columns, model_.layers[layer].omega};
      for (size_t i = 0; i < rows_ * heads; ++i) {
        const float* from = q + i / heads * width + i % heads * model_.head_width;
        float* to = work_.features + i * qk_head;
        model_.feature_map->single(input, from, /*query=*/true, to);
        model_.feature_map->single(input, from + dim, /*query=*/false, to + f);
      }
      q = work_.features;
    }
    const float* k = q + f;
    const auto strided = [](const float* from, size_t row, size_t wide, size_t head) {
      const auto stride = static_cast<ptrdiff_t>(wide);
      return kernels::Strided<const float>{from + row * wide, stride, stride,
                                           static_cast<ptrdiff_t>(head)};
    };
    // From the block's row on: as batch elements of one position, or as positions of one element.
    const auto rows = [&](size_t row) {
      return Rows{strided(q, row, qk_width, qk_head), strided(k, row, qk_width, qk_head),
                  strided(v, row, width, model_.head_width),
                  kernels::RowMajor(work_.heads + row * values, 1, heads, value_dim)};
    };
    if (model_.lsh_rounds > 0) {
      LshAttention(heads, rows);
    } else if (model_.layout.softmax) {
      SoftmaxAttention(group, layer, rows);
    } else {
      LinearAttention(group, layer, rows);
    }
    Contribute(group, g, values, work_.heads, work_.sums[0]);
  }

  // phi(q) and phi(k) (with elu: q and k), v, and where the heads' values go.
  struct Rows {
    kernels::Strided<const float> q, k, v;
    kernels::Strided<float> out;
  };

  // The block's states begin here, and its other arrays by sequence there.
  float* States(size_t layer) const {
    return block_.states + layer * model_.layout.layer_floats + FirstPlace() * block_.state_stride;
  }
  size_t FirstPlace() const { return block_.chosen ? 0 : block_.first; }

  template <class RowsFrom>
  void LinearAttention(const PackedGroup& group, size_t layer, const RowsFrom& rows) {
    const kernels::LinearStepShape& shape = model_.layout.linear;
    const kernels::HeadRange heads{group.begin, group.end};
    const size_t count = group.end - group.begin;
    float* hot = States(layer);
    float* cold = hot + shape.HotFloats();
    const auto step = [&](size_t row, size_t batch, float* hot, float* cold, const uint8_t* recent,
                          const size_t* sequences) {
      const Rows at = rows(row);
      kernels::LinearStep(shape, batch, model_.attention,
                          {.heads = heads,
                           .q = at.q,
                           .k = at.k,
                           .v = at.v,
                           .out = at.out,
                           .hot = hot,
                           .cold = cold,
                           .state_stride = static_cast<ptrdiff_t>(block_.state_stride),
                           .recent = recent,
                           .sequences = sequences,
                           .scratch = work_.attention,
                           .floor = model_.floor});
    };
    if (block_.step) {
      return step(0, block_.sequences, hot, cold, block_.waiting + FirstPlace(), block_.chosen);
    }
    float* s = work_.sums_of_state;
    float* z = s + count * shape.dim * shape.value_dim;
    for (size_t i = 0; i < block_.sequences; ++i) {
      const size_t at = (block_.chosen ? block_.chosen[i] : i) * block_.state_stride;
      const size_t row = block_.Row(i), length = block_.Length(i);
      if (block_.ahead == 0) {
        kernels::LinearFold(shape, heads, hot + at, cold + at, block_.waiting[block_.Place(i)]);
      }
      if (model_.floor > 0) {  // the chunked kernel knows no floor
        uint8_t recent = 0;
        for (size_t t = 0; t < length; ++t) {
          step(row + t, 1, hot + at, cold + at, &recent, nullptr);
          recent = shape.NextRecent(recent);
        }
        kernels::LinearFold(shape, heads, hot + at, cold + at, recent);
        continue;
      }
      const Rows of = rows(row);
      kernels::LinearSums(shape, heads, hot + at, cold + at, s, z);
      kernels::CausalLinearForward({1, length, count, shape.dim, shape.value_dim}, model_.attention,
                                   {.q = of.q, .k = of.k, .v = of.v, .out = of.out, .s = s, .z = z},
                                   {work_.attention, 1}, SerialFor);
      kernels::LinearExtend(shape, heads, model_.attention.feature_map, length, of.k, of.v,
                            hot + at, cold + at);
    }
  }

  template <class RowsFrom>
  void SoftmaxAttention(const PackedGroup& group, size_t layer, const RowsFrom& rows) {
    kernels::SoftmaxStepShape shape = model_.layout.cache;
    shape.heads = group.end - group.begin;
    float* cache = States(layer) + group.begin * shape.HeadFloats();
    if (block_.step) {
      const Rows at = rows(0);
      return kernels::SoftmaxStep(shape, block_.sequences, model_.softmax_scale,
                                  {.q = at.q,
                                   .k = at.k,
                                   .v = at.v,
                                   .out = at.out,
                                   .cache = cache,
                                   .cache_stride = static_cast<ptrdiff_t>(block_.state_stride),
                                   .positions = block_.positions + FirstPlace(),
                                   .sequences = block_.chosen,
                                   .scratch = work_.attention});
    }
    for (size_t i = 0; i < block_.sequences; ++i) {
      float* keys = cache + (block_.chosen ? block_.chosen[i] : i) * block_.state_stride;
      float* values = keys + shape.capacity * shape.dim;
      const size_t before = block_.Position(i) + block_.ahead, length = block_.Length(i);
      const Rows at = rows(block_.Row(i));
      for (size_t h = 0; h < shape.heads; ++h) {
        for (size_t t = 0; t < length; ++t) {
          const size_t to = before + t;
          std::memcpy(keys + h * shape.HeadFloats() + to * shape.dim, at.k.At(0, t, h),
                      shape.dim * sizeof(float));
          std::memcpy(values + h * shape.HeadFloats() + to * shape.value_dim, at.v.At(0, t, h),
                      shape.value_dim * sizeof(float));
        }
      }
      const auto cached = [&](const float* from, size_t dim) {
        return kernels::Strided<const float>{from, 0, static_cast<ptrdiff_t>(dim),
                                             static_cast<ptrdiff_t>(shape.HeadFloats())};
      };
      kernels::SoftmaxAttentionForward(
          {1, length, before + length, shape.heads, shape.dim, shape.value_dim},
          {.scale = model_.softmax_scale, .causal = true, .offset = before},
          {.q = at.q,
           .k = cached(keys, shape.dim),
           .v = cached(values, shape.value_dim),
           .out = at.out},
          {work_.attention, 1}, SerialFor);
    }
  }

  template <class RowsFrom>
  void LshAttention(size_t heads, const RowsFrom& rows) {
    for (size_t i = 0; i < block_.sequences; ++i) {
      const Rows at = rows(block_.Row(i));
      kernels::LshAttentionForward(LshShape(model_, block_.Length(i), heads), model_.lsh,
                                   {.q = at.q,
                                    .v = at.v,
                                    .out = at.out,
                                    .planes = model_.planes.data(),
                                    .places = work_.lsh_places,
                                    .sums = work_.lsh_sums},
                                   {work_.attention, 1}, SerialFor);
    }
  }

  void FeedForward(const PackedGroup& group, size_t g) {
    const size_t width = group.end - group.begin;
    FromInput(width, group.in, work_.wide, width);
    kernels::Activate(model_.activation, rows_ * width, work_.wide);
    Contribute(group, g, width, work_.wide, work_.sums[1]);
  }

  // What attention and feed-forward read.
  const float* Input() const { return model_.spec.norm_first ? work_.normed : work_.x; }

  // x = LN(x + sum of the groups' shares); in norm_first layers x takes the sum, and LN of it is
  // the next input.
  void AddAndNormalise(const float* sums, size_t groups,
                       const kernels::LayerNormParameters& parameters, const float* factor) {
    team_.Barrier();
    Normalise(sums, work_.x, work_.group_stride == 0 ? 1 : groups, parameters);
    NarrowInput(factor);
    if (work_.shared_x) team_.Barrier();
  }

  // This member's rows of `from`, plus those of `residual` where there is one.
  void Normalise(const float* from, float* residual, size_t parts,
                 const kernels::LayerNormParameters& parameters) {
    const size_t at = begin_ * d();
    const bool first = model_.spec.norm_first;
    kernels::LayerNormInput input{.x = from + at,
                                  .x_stride = d(),
                                  .parts = parts,
                                  .part_stride = work_.group_stride,
                                  .residual_stride = d()};
    if (residual != nullptr) {
      input.residual = residual + at;
      if (first) input.sum = residual + at;
    }
    kernels::LayerNorm({end_ - begin_, d(), model_.spec.norm_eps}, input, parameters,
                       (first ? work_.normed : work_.x) + at, d());
  }

  // The head's outputs; each member takes a range of them.
  void Predict() {
    // In norm_first layers the last norm was the final one.
    if (!model_.spec.norm_first && model_.final_norm.weight != nullptr) {
      Normalise(work_.x, nullptr, 1, model_.final_norm);
      if (work_.shared_x) team_.Barrier();
    }
    const float* x = Input();
    if (block_.offsets != nullptr) GatherLast();
    const size_t panels = (model_.outputs + kernels::kPanel - 1) / kernels::kPanel;
    const size_t from = team_.Begin(panels) * kernels::kPanel;
    const size_t to = std::min(model_.outputs, team_.End(panels) * kernels::kPanel);
    if (from >= to) return;
    const Precision precision = model_.predictor_precision();
    const PackedMatrix matrix = model_.predictor + Model::Packed::MatrixBytes(precision, d(), from);
    if (block_.only_last || block_.length == 1) {
      const size_t apart =
          block_.offsets ? 1 : block_.length;  // rows from one last position to the next
      return From(precision, block_.sequences, d(), to - from, x + (apart - 1) * d(), apart * d(),
                  matrix, LinearMode::kOverwrite, block_.outputs + from,
                  block_.sequence_output_stride);
    }
    for (size_t i = 0; i < block_.sequences; ++i) {
      From(precision, block_.length, d(), to - from, x + i * block_.length * d(), d(), matrix,
           LinearMode::kOverwrite, block_.outputs + i * block_.sequence_output_stride + from,
           model_.outputs);
    }
  }

  // Puts each sequence's last row behind the one before it; for a thread that is alone.
  void GatherLast() {
    float* x = model_.spec.norm_first ? work_.normed : work_.x;
    for (size_t i = 0; i < block_.sequences; ++i) {
      std::memmove(x + i * d(), x + (block_.Row(i + 1) - 1) * d(), d() * sizeof(float));
    }
  }

  const Model::Packed& model_;
  const Block& block_;
  const Workspace& work_;
  const Team& team_;
  const size_t rows_;
  size_t begin_, end_;
};

std::byte* TakeBytes(size_t bytes, Pieces& pieces) {
  return reinterpret_cast<std::byte*>(pieces.Take((bytes + sizeof(float) - 1) / sizeof(float)));
}

void TakeX(const Model::Packed& model, size_t rows, Pieces& pieces, Workspace& work) {
  work.x = pieces.Take(rows * model.d_model);
  work.normed = model.spec.norm_first ? pieces.Take(rows * model.d_model) : nullptr;
  if (!model.narrow()) return;
  const kernels::NarrowType type = Model::Packed::NarrowTypeOf(model.precision);
  std::byte* memory = TakeBytes(kernels::NarrowRowsSize(type, rows, model.d_model), pieces);
  if (memory != nullptr) work.narrow = kernels::TakeNarrowRows(type, rows, model.d_model, memory);
}

size_t AttentionScratch(const Model::Packed& model, size_t rows) {
  const size_t heads = model.most_heads;
  if (model.lsh_rounds > 0) {
    return kernels::LshAttentionScratch(LshShape(model, rows, heads), model.lsh);
  }
  if (!model.layout.softmax) {
    return std::max(
        model.layout.linear.ScratchFloats(),
        kernels::CausalLinearScratch({1, rows, heads, model.features, model.value_dim}));
  }
  const kernels::SoftmaxStepShape& cache = model.layout.cache;
  return std::max(cache.ScratchFloats(),
                  kernels::SoftmaxAttentionScratch(
                      {1, rows, cache.capacity, heads, cache.dim, cache.value_dim}));
}

}  // namespace

void RunBlock(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team) {
  BlockRunner(model, block, work, team).Run();
}

void TakeShared(const Model::Packed& model, size_t rows, Pieces& pieces, Workspace& work) {
  const PackedLayer& layer = model.layers[0];
  work.group_stride = RoundUp(rows * model.d_model, kCacheLine / sizeof(float));
  TakeX(model, rows, pieces, work);
  work.sums[0] = pieces.Take(layer.attention.size() * work.group_stride);
  work.sums[1] = pieces.Take(layer.feed_forward.size() * work.group_stride);
}

void TakeOwn(const Model::Packed& model, size_t rows, bool alone, Pieces& pieces, Workspace& work) {
  const size_t heads = model.most_heads;
  work.wide = pieces.Take(rows * model.widest);
  if (model.narrow()) {
    // A predictor may be wider than the rest, and of another type.
    const size_t in = std::max(model.widest, model.d_model);
    const auto bytes = [&](kernels::NarrowType type) {
      return kernels::NarrowRowsSize(type, rows, in);
    };
    work.narrow_wide = TakeBytes(
        std::max(bytes(kernels::NarrowType::kBf16), bytes(kernels::NarrowType::kInt8)), pieces);
  }
  work.heads = pieces.Take(rows * heads * model.value_dim);
  work.features = model.feature_map ? pieces.Take(rows * heads * 2 * model.features) : nullptr;
  work.attention = pieces.Take(AttentionScratch(model, rows));
  if (model.lsh_rounds > 0) {
    const kernels::LshAttentionShape shape = LshShape(model, rows, heads);
    const size_t places = kernels::LshAttentionPlaces(shape) * sizeof(int32_t);
    work.lsh_places = reinterpret_cast<int32_t*>(TakeBytes(places, pieces));
    work.lsh_sums = pieces.Take(kernels::LshAttentionSums(shape));
  } else if (!model.layout.softmax) {
    work.sums_of_state = pieces.Take(heads * model.features * (model.value_dim + 1));
  }
  work.shared_x = !alone && rows > kRedundantRows;
  if (!work.shared_x) TakeX(model, rows, pieces, work);
  if (alone) {
    work.group_stride = 0;
    work.sums[0] = work.sums[1] = pieces.Take(rows * model.d_model);
  }
}

}  // namespace linnet
