#include "linnet/runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/softmax_attention.h"
#include "linnet/runtime/crowd.h"
#include "linnet/runtime/packed_model.h"

namespace linnet {
namespace {

using kernels::Linear;
using kernels::LinearMode;

// Rows (positions or sequences) that go through the layers together: enough to make matrix products
// of them, few enough that what lies between two products stays in a second-level cache.
constexpr size_t kBlockRows = 192;
// A thread with at least this many sequences of its own to step does better alone than in a team
// that shares the weights and waits at barriers.
constexpr size_t kAloneRows = 8;
// A team normalises up to this many rows redundantly, each member for itself, instead of waiting
// for one another once more.
constexpr size_t kRedundantRows = 4;

// `length` consecutive positions of `sequences` sequences, each from where it is; or of each sequence as
// many as lie between its offset and the next.
struct Block {
  size_t sequences, length;
  const size_t* offsets = nullptr;  // [sequences + 1], of rows of `tokens`; or null
  size_t first;                     // sequence of the state; or
  const size_t* chosen;             // each of them, where some were chosen
  const size_t* positions;          // State::positions_: where the call began
  size_t ahead;                     // positions that the call has been through before this block
  const int32_t* tokens;            // [sequences, length], rows token_stride apart
  size_t token_stride;
  bool step;      // the call reads one symbol of each sequence
  float* states;  // State::data_
  size_t state_stride;
  const uint8_t* waiting;  // State::waiting_
  const int32_t* recent;   // State::recent_
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
};

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
    if (model_.layout.softmax) {
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

// What a team of more than one shares, for blocks of up to `rows` rows.
void TakeShared(const Model::Packed& model, size_t rows, Pieces& pieces, Workspace& work) {
  const PackedLayer& layer = model.layers[0];
  work.group_stride = RoundUp(rows * model.d_model, kCacheLine / sizeof(float));
  TakeX(model, rows, pieces, work);
  work.sums[0] = pieces.Take(layer.attention.size() * work.group_stride);
  work.sums[1] = pieces.Take(layer.feed_forward.size() * work.group_stride);
}

size_t AttentionScratch(const Model::Packed& model, size_t rows) {
  const size_t heads = model.most_heads;
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

// What each member has for itself: in a team, its copy of x only for a few rows; alone, everything.
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
  if (!model.layout.softmax) {
    work.sums_of_state = pieces.Take(heads * model.features * (model.value_dim + 1));
  }
  work.shared_x = !alone && rows > kRedundantRows;
  if (!work.shared_x) TakeX(model, rows, pieces, work);
  if (alone) {
    work.group_stride = 0;
    work.sums[0] = work.sums[1] = pieces.Take(rows * model.d_model);
  }
}

// Lays the pieces out in `buffer`, which grows where it must.
template <class Take>
void Allocate(AlignedBuffer<float>& buffer, Take take) {
  Pieces measure;
  take(measure);
  if (buffer.size() < measure.used()) buffer = AlignedBuffer<float>(measure.used());
  Pieces pieces(buffer.data());
  take(pieces);
}

}  // namespace

struct Engine::Scratch {
  Crowd crowd;
  struct Member {
    AlignedBuffer<float> buffer;
    Workspace work{};
  };
  AlignedBuffer<float> shared;
  std::vector<Member> members;
  std::vector<uint8_t> named;   // by sequence, while a call looks for one that is named twice
  std::vector<size_t> offsets;  // of a call's pieces in its tokens

  // Working memory for blocks of up to `rows` rows; allocates only when it was never that large.
  void Prepare(const Model::Packed& model, size_t rows, bool alone) {
    Workspace common{};
    if (!alone) {
      Allocate(shared, [&](Pieces& p) { TakeShared(model, rows, p, common); });
    }
    for (Member& member : members) {
      if (!alone) {  // the next step may be for one thread
        Workspace unused{};
        Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model, rows, true, p, unused); });
      }
      member.work = common;
      Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model, rows, alone, p, member.work); });
    }
  }
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)), pool_(options.threads), scratch_(std::make_unique<Scratch>()) {
  if (model_->spec().task == "speech") {
    throw InputError(model_->path(), ": a model of the task 'speech' reads frames of sound, not ",
                     "symbols; run it with linnet transcribe (from C++: SpeechEncoder)");
  }
  scratch_->members.resize(static_cast<size_t>(pool_.size()));
}

Engine::~Engine() = default;

size_t Engine::output_size() const { return model_->packed().outputs; }

State Engine::NewState(size_t batch) const {
  if (batch == 0) throw InputError("a state needs at least one sequence");
  const double bytes = static_cast<double>(batch) *
                       static_cast<double>(StateBytes(model_->spec(), model_->precision()) + 8);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes > memory) {
    throw InputError(model_->path(), ": cannot make a state of ", batch, " sequences: it takes ",
                     FormatBytes(bytes), " and this machine has ", FormatBytes(memory),
                     "; choose another batch");
  }
  return State(*model_, batch);
}

void Engine::Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  Read(state, nullptr, state.batch(), tokens, 1, outputs);
}

void Engine::Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
                  std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  Read(state, sequences.data(), sequences.size(), tokens, 1, outputs);
}

void Engine::Prefix(State& state, std::span<const int32_t> tokens, size_t length,
                    std::span<float> outputs) {
  Read(state, nullptr, state.batch(), tokens, length, outputs);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const int32_t> tokens, size_t length, std::span<float> outputs) {
  Read(state, sequences.data(), sequences.size(), tokens, length, outputs);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const size_t> lengths, std::span<const int32_t> tokens,
                    std::span<float> outputs) {
  const Model::Packed& model = model_->packed();
  const size_t batch = sequences.size(), width = model.outputs;
  state.CheckFits(*model_);
  std::vector<size_t>& offsets = scratch_->offsets;
  offsets.assign(1, 0);
  for (const size_t length : lengths) offsets.push_back(offsets.back() + length);
  if (batch == 0 || lengths.size() != batch || offsets.back() != tokens.size()) {
    throw InputError(batch, " sequences cannot read ", tokens.size(), " symbols as ",
                     lengths.size(), " pieces of ", offsets.back(), " in all");
  }
  if (!outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats; got ", outputs.size());
  }
  const size_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (size_t i = 0; i < batch; ++i) {
    CheckPlaces(state, &sequences[i], 1, lengths[i]);
    if (lengths[i] == 0) throw InputError("a sequence is to read no symbol");
  }
  CheckPlaces(state, sequences.data(), batch, 0);
  CheckTokens(tokens);
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t shortest = *std::min_element(lengths.begin(), lengths.end());
  if (shortest == longest) return Read(state, sequences.data(), batch, tokens, longest, outputs);
  // Steps are another kernel, what is longer than a block goes through in pieces, and few sequences are
  // read faster by all threads together.
  if (shortest == 1 || longest > kBlockRows || batch < threads) {
    for (size_t i = 0; i < batch; ++i) {
      Read(state, &sequences[i], 1, tokens.subspan(offsets[i], lengths[i]), lengths[i],
           outputs.empty() ? outputs : outputs.subspan(i * width, width));
    }
    return;
  }
  scratch_->Prepare(model, std::min(kBlockRows, tokens.size()), /*alone=*/true);
  const auto walk = [&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    // A sequence is whose share of the rows its first row lies in.
    const auto share = [&](size_t thread) {
      const size_t row = (tokens.size() * thread + threads - 1) / threads;
      const auto from = std::lower_bound(offsets.begin(), offsets.end() - 1, row);
      return static_cast<size_t>(from - offsets.begin());
    };
    for (size_t first = share(w), end = share(w + 1), last = first; first < end; first = last) {
      while (last < end && offsets[last + 1] - offsets[first] <= kBlockRows) ++last;
      const Block block{.sequences = last - first,
                        .length = 0,
                        .offsets = offsets.data() + first,
                        .first = 0,
                        .chosen = sequences.data() + first,
                        .positions = state.positions_.data(),
                        .ahead = 0,
                        .tokens = tokens.data() + offsets[first],
                        .token_stride = 0,
                        .step = false,
                        .states = state.data_.data(),
                        .state_stride = state.per_sequence_,
                        .waiting = state.waiting_.data(),
                        .recent = state.recent_.data(),
                        .outputs = outputs.empty() ? nullptr : outputs.data() + first * width,
                        .sequence_output_stride = width,
                        .only_last = true};
      BlockRunner(model, block, scratch_->members[w].work, Team{}).Run();
    }
  };
  pool_.Run(walk);
  for (size_t i = 0; i < batch; ++i) {
    Passed(state, sequences[i], tokens.subspan(offsets[i], lengths[i]));
  }
}

void Engine::CheckTokens(std::span<const int32_t> tokens) const {
  const ModelSpec& spec = model_->spec();
  for (const int32_t token : tokens) {
    if (token < 0 || token >= spec.vocabulary) {
      throw InputError(model_->path(), ": symbol ", token, " is outside its vocabulary 0 .. ",
                       spec.vocabulary - 1);
    }
  }
}

// Whether these sequences are there, each named once, with room for so many symbols more.
void Engine::CheckPlaces(const State& state, const size_t* chosen, size_t batch,
                         size_t length) const {
  const auto place = [&](size_t i) { return chosen ? chosen[i] : i; };
  size_t furthest = 0;
  std::vector<uint8_t>& named = scratch_->named;  // all zero between calls
  if (chosen) named.resize(std::max(named.size(), state.batch()));
  size_t twice = SIZE_MAX;
  for (size_t i = 0; i < batch; ++i) {
    if (place(i) >= state.batch()) break;  // position() will say so
    if (chosen && std::exchange(named[chosen[i]], 1) != 0) twice = chosen[i];
  }
  for (size_t i = 0; chosen && i < batch && chosen[i] < named.size(); ++i) named[chosen[i]] = 0;
  for (size_t i = 0; i < batch; ++i) furthest = std::max(furthest, state.position(place(i)));
  // That would be two threads on one sequence.
  if (twice != SIZE_MAX) throw InputError("sequence ", twice, " is chosen twice");
  const auto positions = static_cast<size_t>(model_->spec().max_length);
  if (furthest > positions || length > positions - furthest) {
    throw InputError(model_->path(), ": the model has ", positions, " positions; ", furthest,
                     " are read and ", length, " more do not fit");
  }
}

// What a sequence's state keeps beside its sums: where it is, and what later calls look back at.
void Engine::Passed(State& state, size_t place, std::span<const int32_t> tokens) const {
  const Model::Packed& model = model_->packed();
  const auto reach = static_cast<size_t>(model.spec.Reach());
  const size_t length = tokens.size();
  for (size_t t = length - std::min(length, reach); t < length; ++t) {
    state.recent_[place * reach + (state.positions_[place] + t) % reach] = tokens[t];
  }
  state.positions_[place] += length;
  uint8_t& waiting = state.waiting_[place];
  waiting =
      length == 1 && !model.layout.softmax ? model.layout.linear.NextRecent(waiting) : uint8_t{0};
}

void Engine::Read(State& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
                  size_t length, std::span<float> outputs) {
  const Model::Packed& model = model_->packed();
  const size_t width = model.outputs;
  state.CheckFits(*model_);
  const auto place = [&](size_t i) { return chosen ? chosen[i] : i; };
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError("a state of ", batch, " sequences cannot read ", tokens.size(), " symbols as ",
                     length, " each");
  }
  CheckPlaces(state, chosen, batch, length);
  const bool every = outputs.size() == batch * length * width;
  if (!every && !outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats, or that times ", length,
                     "; got ", outputs.size());
  }
  CheckTokens(tokens);

  // Many sequences: each thread walks its own through all layers and waits for nobody. Few: all
  // threads walk all of them together, and split the layers.
  size_t threads = static_cast<size_t>(pool_.size());
  const bool few = threads > 1 && length == 1 && batch < kAloneRows * threads;
  if (few && scratch_->crowd.Alone(batch)) threads = 1;
  const bool alone = threads == 1 || (length == 1 ? batch >= kAloneRows * threads
                                                  : batch >= 4 * threads || batch % threads == 0);
  const size_t chunks = (length + kBlockRows - 1) / kBlockRows;
  const size_t chunk = (length + chunks - 1) / chunks;      // nearly equal ones
  const size_t most = std::min(batch, kBlockRows / chunk);  // sequences to a block
  scratch_->Prepare(model, most * chunk, alone);
  const auto walk = [&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    const Team team = alone ? Team{} : Team{&pool_, w, threads};
    const size_t begin = alone ? batch * w / threads : 0;
    const size_t end = alone ? batch * (w + 1) / threads : batch;
    const size_t blocks = (end - begin + most - 1) / most;
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = begin + (end - begin) * b / blocks;
      const size_t last = begin + (end - begin) * (b + 1) / blocks;
      for (size_t t = 0; t < length; t += chunk) {
        Block block{.sequences = last - first,
                    .length = std::min(chunk, length - t),
                    .first = first,
                    .chosen = chosen ? chosen + first : nullptr,
                    .positions = state.positions_.data(),
                    .ahead = t,
                    .tokens = tokens.data() + first * length + t,
                    .token_stride = length,
                    .step = length == 1,
                    .states = state.data_.data(),
                    .state_stride = state.per_sequence_,
                    .waiting = state.waiting_.data(),
                    .recent = state.recent_.data()};
        if (every) {
          block.outputs = outputs.data() + (first * length + t) * width;
          block.sequence_output_stride = length * width;
        } else if (!outputs.empty() && t + block.length == length) {
          block.outputs = outputs.data() + first * width;
          block.sequence_output_stride = width;
          block.only_last = true;
        }
        BlockRunner(model, block, scratch_->members[w].work, team).Run();
      }
    }
  };
  const ThreadPool::Waits before = pool_.waits();
  const auto began = Crowd::Clock::now();
  if (threads == 1) {
    walk(0);
  } else {
    pool_.Run(walk);
  }
  if (few) {
    const std::chrono::duration<double> took = Crowd::Clock::now() - began;
    scratch_->crowd.Stepped(threads == 1, took.count(), before, pool_.waits());
  }
  for (size_t i = 0; i < batch; ++i) Passed(state, place(i), tokens.subspan(i * length, length));
}

}  // namespace linnet
