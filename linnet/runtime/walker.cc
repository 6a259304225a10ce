#include "linnet/runtime/walker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "linnet/base/parallel.h"
#include "linnet/base/units.h"
#include "linnet/engine.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/depthwise.h"
#include "linnet/kernels/gates.h"
#include "linnet/kernels/linear.h"
#include "linnet/runtime/embedder.h"

namespace linnet {
namespace {

using kernels::LinearMode;

// Up to this many rows, each member of a team normalizes all of them, which saves one barrier.
constexpr size_t kRedundantRows = 4;

// Runs one stack over the rows of a block.
class Walker {
 public:
  Walker(const Model::Packed& model, const PackedStack& stack, const Block& block,
         const Workspace& work, const Team& team)
      : model_(model),
        stack_(stack),
        block_(block),
        work_(work),
        team_(team),
        rows_(block.rows()),
        own_(work.Own(team, rows_)) {}

  // The rows that this member embeds and normalizes.
  const Share& own() const { return own_; }

  // Runs the layers over the embeddings in work.x. Input() is then the output. If the block needs
  // none, that may lack the final norm.
  void Run() {
    const std::vector<PackedPart>& parts = stack_.parts;
    if (first()) Normalize(work_.x, nullptr, 1, parts[0].norm);
    NarrowInputOf(parts[0]);
    if (work_.shared_x) team_.Barrier();
    float* states = block_.states;
    for (size_t i = 0; i < parts.size(); ++i) {
      const PackedPart& part = parts[i];
      float* state = part.state != SIZE_MAX ? states : nullptr;
      Contribute(part, i, state);
      if (state != nullptr) states += model_.layout->parts[part.state].Floats(block_.capacity);
      const bool last = i + 1 == parts.size();
      AddAndNormalize(part, i, state,
                      !first() ? part.norm
                      : last   ? stack_.final_norm
                               : parts[i + 1].norm,
                      last ? nullptr : &parts[i + 1]);
    }
    // In norm_first stacks the norm after the last part already was the final norm.
    if (!first() && stack_.final_norm.weight != nullptr &&
        (block_.outputs || encodes() || model_.spec.patches())) {
      Normalize(work_.x, nullptr, 1, stack_.final_norm);
      if (work_.shared_x) team_.Barrier();
    }
  }

  // The parts' input.
  float* Input() const { return first() ? work_.normed : work_.x; }

  // Passes the encoder's rows to the cross attention of the decoder's layers.
  void Remember() {
    NarrowInput(nullptr);
    float* state = block_.states;
    for (const PackedPart& part : model_.stack.parts) {
      if (part.state == SIZE_MAX) continue;
      if (part.kind == PartKind::kCross) {
        for (const PackedGroup& group : part.groups) {
          FromInput(0, rows_, group.memory_width, group.memory, work_.wide, group.memory_width);
          part.mixer->Remember(Call(group, group.memory_width, state));
        }
      }
      state += model_.layout->parts[part.state].Floats(block_.capacity);
    }
  }

 private:
  size_t d() const { return model_.d_model; }
  bool first() const { return model_.spec.stack.norm_first; }  // parts begin with their norm
  bool encodes() const { return &stack_ == &model_.encoder; }

  // Rounds this member's rows of the layers' input for products with narrow matrices.
  void NarrowInput(const float* factor) {
    if (!model_.narrow()) return;
    kernels::NarrowActivations(own_.count(), d(), Input() + own_.begin * d(), d(), factor,
                               kernels::RowsFrom(work_.narrow, own_.begin, d()));
  }
  // The same for the input of `part`, unless it is a convolution, which reads floats.
  void NarrowInputOf(const PackedPart& part) {
    if (part.kind != PartKind::kConvolution) NarrowInput(part.factor);
  }

  // y = x W^T + b for rows [begin, begin + rows) of the layers' input.
  void FromInput(size_t begin, size_t rows, size_t out, PackedMatrix matrix, float* y,
                 size_t y_stride) {
    if (model_.narrow()) {
      kernels::NarrowLinear(rows, d(), out, kernels::RowsFrom(work_.narrow, begin, d()), matrix,
                            LinearMode::kOverwrite, y, y_stride);
    } else {
      kernels::Linear(rows, d(), out, Input() + begin * d(), d(),
                      reinterpret_cast<const float*>(matrix), LinearMode::kOverwrite, y, y_stride);
    }
  }
  // y = x W^T + b for any rows x.
  void From(Precision precision, size_t rows, size_t in, size_t out, const float* x,
            size_t x_stride, PackedMatrix matrix, LinearMode mode, float* y, size_t y_stride) {
    Multiply(precision, rows, in, out, x, x_stride, matrix, mode, y, y_stride, work_.narrow_wide);
  }

  // Computes this member's groups of a part. Each group's contribution is complete before it is
  // added, in group order, here or in AddAndNormalize().
  void Contribute(const PackedPart& part, size_t index, float* state) {
    float* sums = work_.sums[index % 2];
    if (part.kind == PartKind::kConvolution) {
      if (team_.member == 0) Convolve(part, sums, state);
      return;
    }
    for (size_t g = team_.Begin(part.groups.size()); g < team_.End(part.groups.size()); ++g) {
      float* to = sums + g * work_.group_stride;
      const LinearMode mode =
          work_.group_stride == 0 && g > 0 ? LinearMode::kAdd : LinearMode::kOverwrite;
      if (part.kind == PartKind::kFeedForward) {
        FeedForward(part, part.groups[g], mode, to, state);
      } else {
        float* squares =
            part.one_norm ? work_.squares[index % 2] + g * work_.squares_stride : nullptr;
        Mix(part, part.groups[g], mode, to, squares, state);
      }
    }
  }

  // Computes a group's products for rows [begin, begin + rows) of the layers' input, side by side
  // in work_.wide. `state` holds the row before each sequence, for token shifts; null: zeros.
  void Products(const PackedPart& part, const PackedGroup& group, size_t begin, size_t rows,
                const float* state) {
    float* to = work_.wide;
    for (const PackedProduct& product : group.in) {
      if (product.shift == nullptr) {
        FromInput(begin, rows, product.width, product.matrix, to, group.in_width);
      } else {
        for (size_t at = 0; at < rows; at += kBlockRows) {
          const size_t count = std::min(kBlockRows, rows - at);
          Shift(product.shift, begin + at, count, state);
          Multiply(model_.precision, count, d(), product.width, work_.shifted, d(), product.matrix,
                   LinearMode::kOverwrite, to + at * group.in_width, group.in_width,
                   work_.narrow_wide, part.factor);
        }
      }
      to += product.width;
    }
  }

  // work_.shifted = x + (previous x - x) * shift
  void Shift(const float* shift, size_t begin, size_t rows, const float* state) {
    size_t sequence = block_.offsets ? 0 : begin / block_.length;
    float* to = work_.shifted;
    for (size_t r = begin; r < begin + rows; ++r, to += d()) {
      while (r >= block_.Row(sequence + 1)) ++sequence;
      const float *x = Input() + r * d(), *previous = x - d();
      if (r == block_.Row(sequence)) {
        previous = state ? state + block_.Place(sequence) * block_.state_stride : nullptr;
      }
      kernels::Interpolate(d(), x, previous, shift, to);
    }
  }

  // Keeps the last row of each sequence for the token shifts of the next block. One member stores
  // the row, before it overwrites its share of the rows.
  void KeepLast(float* state) {
    if (!work_.shared_x && team_.member > 0) return;
    for (size_t i = 0; i < block_.sequences; ++i) {
      const size_t last = block_.Row(i + 1) - 1;
      if (last < own_.begin || last >= own_.end) continue;
      std::memcpy(state + block_.Place(i) * block_.state_stride, Input() + last * d(),
                  d() * sizeof(float));
    }
  }

  // Stores the columns that a group's heads pass to later layers. Copies the columns that an
  // earlier layer passes to this one into the group's input.
  void Carry(const PackedPart& part, const PackedGroup& group) {
    const std::vector<Projection>& projections = part.mixer->projections();
    const size_t heads = group.end - group.begin;
    for (size_t i = 0; i < projections.size(); ++i) {
      const Projection& p = projections[i];
      if (!p.carries && !p.carried) continue;
      const RuntimeMixer::Columns columns = part.mixer->Place(i, heads);
      for (size_t r = 0; r < rows_; ++r) {
        for (size_t h = 0; h < heads; ++h) {
          float* own = work_.wide + r * group.in_width + columns.at + h * columns.stride;
          float* carried = work_.carried + r * model_.carried + (group.begin + h) * p.width;
          if (p.carries) std::copy_n(own, p.width, carried);
          if (p.carried) std::copy_n(carried, p.width, own);
        }
      }
    }
  }

  MixerCall Call(const PackedGroup& group, size_t in_width, float* state) const {
    return {.block = block_,
            .heads = {group.begin, group.end},
            .in = work_.wide,
            .in_width = in_width,
            .out = work_.heads,
            .state = state,
            .scratch = work_.mixer};
  }

  void Mix(const PackedPart& part, const PackedGroup& group, LinearMode mode, float* sums,
           float* squares, float* state) {
    Products(part, group, 0, rows_, state);
    if (model_.carried > 0) Carry(part, group);
    MixerCall call = Call(group, group.in_width, state ? state + part.shift_floats : nullptr);
    call.squares = squares;
    if (state == nullptr || block_.step) {
      Mix(part, call);
    } else {
      MixInPieces(part, call);
    }
    const size_t values = (group.end - group.begin) * part.values;
    From(model_.precision, rows_, values, d(), work_.heads, values, group.out, mode, sums, d());
  }

  static void Mix(const PackedPart& part, const MixerCall& call) {
    if (part.kind == PartKind::kCross) {
      part.mixer->Recall(call);
    } else {
      part.mixer->Run(call);
    }
  }

  // Calls the mixer for one piece of a sequence at a time. A piece is a position, if the block
  // reads by steps, or else ends at the next multiple of Engine::kCutPositions.
  void MixInPieces(const PackedPart& part, const MixerCall& call) const {
    for (size_t i = 0; i < block_.sequences; ++i) {
      const size_t place = block_.Place(i), length = block_.Length(i);
      // Encoder-decoders count positions from the separator, but may be cut where tokens are.
      const size_t before = block_.Position(i) + block_.ahead +
                            (block_.memory_lengths != nullptr ? block_.memory_lengths[place] : 0);
      for (size_t t = 0, count = 0; t < length; t += count) {
        count = block_.by_steps ? 1
                                : std::min(length - t, Engine::kCutPositions -
                                                           (before + t) % Engine::kCutPositions);
        MixPiece(part, call, i, t, count);
      }
    }
  }

  // Calls the mixer for positions [t, t + count) of a sequence of the block.
  void MixPiece(const PackedPart& part, const MixerCall& call, size_t sequence, size_t t,
                size_t count) const {
    const size_t place = block_.Place(sequence), row = block_.Row(sequence) + t;
    const size_t ahead = block_.ahead + t;
    size_t position = block_.positions[place];
    uint8_t waiting = block_.waiting[place];
    if (block_.by_steps) {  // the piece is the only one of its call, as in Engine::Step()
      position += ahead;
      waiting = static_cast<uint8_t>((waiting + ahead) % model_.layout->fold_keys);
    }
    const Block piece{.sequences = 1,
                      .length = count,
                      .positions = &position,
                      .ahead = block_.by_steps ? 0 : ahead,
                      .step = block_.by_steps,
                      .state_stride = block_.state_stride,
                      .capacity = block_.capacity,
                      .waiting = &waiting,
                      .memory_lengths = block_.memory_lengths != nullptr
                                            ? block_.memory_lengths + place
                                            : nullptr};
    Mix(part, {.block = piece,
               .heads = call.heads,
               .in = call.in + row * call.in_width,
               .in_width = call.in_width,
               .out = call.out + row * call.count() * part.values,
               .state = call.state + place * block_.state_stride,
               .scratch = call.scratch,
               .squares = call.squares != nullptr ? call.squares + row : nullptr});
  }

  void FeedForward(const PackedPart& part, const PackedGroup& group, LinearMode mode, float* sums,
                   const float* state) {
    const size_t width = group.end - group.begin;
    for (size_t begin = 0; begin < rows_; begin += kBlockRows) {
      const size_t rows = std::min(kBlockRows, rows_ - begin);
      Products(part, group, begin, rows, state);
      if (model_.gated()) {
        kernels::GatedSilu(rows, width, work_.wide, work_.wide);
      } else if (model_.shifted()) {
        kernels::SquaredRelu(rows * width, work_.wide);
      } else {
        kernels::Activate(model_.activation, rows * width, work_.wide);
      }
      From(model_.precision, rows, width, d(), work_.wide, width, group.out, mode,
           sums + begin * d(), d());
    }
  }

  // Computes a convolution part's contribution. The state keeps the last width - 1 input rows, the
  // oldest first.
  void Convolve(const PackedPart& part, float* sums, float* state) {
    const auto width = static_cast<size_t>(model_.spec.stack.convolution);
    // `before`: earlier rows that an output reads. `behind`: rows from the state.
    const size_t before = stack_.causal ? width - 1 : width / 2, behind = state ? width - 1 : 0;
    float* mixed = work_.mixed;
    float* rows = mixed + rows_ * d();
    for (size_t i = 0; i < block_.sequences; ++i) {
      const size_t length = block_.Length(i);
      const float* read = Input() + block_.Row(i) * d();
      float* out = mixed;
      if (state != nullptr) {
        float* past = state + block_.Place(i) * block_.state_stride;
        std::memcpy(rows, past, behind * d() * sizeof(float));
        std::memcpy(rows + behind * d(), read, length * d() * sizeof(float));
        std::memcpy(past, rows + length * d(), behind * d() * sizeof(float));
        read = rows;
        out = rows + (behind + length) * d();
      }
      kernels::DepthwiseForward(
          {.batch = 1,
           .length = behind + length,
           .channels = d(),
           .width = width,
           .before = before,
           .first = behind},
          {.x = read, .weight = part.convolution_weight, .bias = part.convolution_bias, .out = out},
          SerialFor);
      kernels::Activate(model_.activation, length * d(), out + behind * d(),
                        sums + block_.Row(i) * d());
    }
  }

  // x = LN(y) with y = x + the sum of the groups' contributions. In norm_first layers x = y, and
  // LN(y) is the next part's input. state: the part's; null: none.
  void AddAndNormalize(const PackedPart& part, size_t index, float* state,
                       const kernels::LayerNormParameters& parameters, const PackedPart* next) {
    team_.Barrier();
    if (part.shift_floats > 0 && state != nullptr) KeepLast(state);
    if (part.one_norm) NormFactors(part, work_.squares[index % 2]);
    Normalize(work_.sums[index % 2], work_.x, work_.group_stride == 0 ? 1 : part.count(),
              parameters, part.one_norm ? work_.factors : nullptr);
    if (next != nullptr) NarrowInputOf(*next);
    if (work_.shared_x) team_.Barrier();
  }

  // 1 / sqrt(mean(y^2) + eps) of this member's rows, where y are the outputs of all heads.
  void NormFactors(const PackedPart& part, const float* squares) {
    const float width = static_cast<float>(part.mixer->heads() * part.values);
    for (size_t r = own_.begin; r < own_.end; ++r) {
      float sum = 0;
      for (size_t g = 0; g < part.groups.size(); ++g) sum += squares[g * work_.squares_stride + r];
      work_.factors[r] = 1 / std::sqrt(sum / width + part.mixer->norm_eps());
    }
  }

  // Normalizes this member's rows of factors * (sum of the matrices at `from`) + residual. There
  // are `parts` matrices, one for each group. Null factors are 1, a null residual is 0.
  void Normalize(const float* from, float* residual, size_t parts,
                 const kernels::LayerNormParameters& parameters, const float* factors = nullptr) {
    const size_t at = own_.begin * d();
    kernels::LayerNormInput input{.x = from + at,
                                  .x_stride = d(),
                                  .parts = parts,
                                  .part_stride = work_.group_stride,
                                  .factors = factors != nullptr ? factors + own_.begin : nullptr,
                                  .residual_stride = d()};
    if (residual != nullptr) {
      input.residual = residual + at;
      if (first()) input.sum = residual + at;
    }
    kernels::LayerNorm({own_.count(), d(), model_.spec.stack.norm_eps}, input, parameters,
                       (first() ? work_.normed : work_.x) + at, d());
  }

  const Model::Packed& model_;
  const PackedStack& stack_;
  const Block& block_;
  const Workspace& work_;
  const Team team_;  // a copy: callers may pass a temporary
  const size_t rows_;
  const Share own_;
};

// Writes the head's outputs for its inputs x [rows, embedding_width]; each member computes a range
// of them. May move rows of x.
void Predict(const Model::Packed& model, const Block& block, const Workspace& work,
             const Team& team, float* x) {
  const size_t width = model.embedding_width;
  for (size_t i = 0; block.offsets != nullptr && i < block.sequences; ++i) {  // on one thread only
    std::memmove(x + i * width, x + (block.Row(i + 1) - 1) * width, width * sizeof(float));
  }
  const size_t panels = (model.outputs + kernels::kPanel - 1) / kernels::kPanel;
  const size_t from = team.Begin(panels) * kernels::kPanel;
  const size_t to = std::min(model.outputs, team.End(panels) * kernels::kPanel);
  if (from >= to) return;
  const Precision precision = model.predictor_precision();
  const PackedMatrix matrix = model.predictor + Model::Packed::MatrixBytes(precision, width, from);
  const auto multiply = [&](size_t rows, const float* in, size_t stride, float* out,
                            size_t out_stride) {
    Multiply(precision, rows, width, to - from, in, stride, matrix, LinearMode::kOverwrite,
             out + from, out_stride, work.narrow_wide);
  };
  if (block.only_last || block.length == 1) {
    // rows between consecutive last positions
    const size_t apart = block.offsets != nullptr ? 1 : block.length;
    return multiply(block.sequences, x + (apart - 1) * width, apart * width, block.outputs,
                    block.sequence_output_stride);
  }
  for (size_t i = 0; i < block.sequences; ++i) {
    multiply(block.length, x + i * block.length * width, width,
             block.outputs + i * block.sequence_output_stride, model.outputs);
  }
}

// RunBlock() for models with patches: the layers see only the rows that begin a patch.
void RunPatches(const Model::Packed& model, const Block& block, const Workspace& work,
                const Team& team) {
  const auto wait = [&] {
    if (work.shared_x) team.Barrier();
  };
  const Patches patches(model, block, work.patch);
  const Share own = work.Own(team, block.rows());
  Embedder embedder(model, block, work, team, work.patch.u);
  embedder.Embed();
  if (model.patch.convolution > 0) wait();  // until Recall() can read the rows of other members
  patches.Recall(own.begin, own.end);
  wait();
  const bool keeps = work.shared_x || team.member == 0;
  if (team.member == 0) embedder.Keep();
  if (patches.layers().sequences > 0) {
    Walker walker(model, model.stack, patches.layers(), work, team);
    const Share own_patches = walker.own();
    patches.Join(own_patches.begin, own_patches.end, work.x);
    walker.Run();  // its barriers ensure that every member has finished with the old states
    patches.Split(own_patches.begin, own_patches.end, walker.Input(), keeps);
    wait();
  } else if (model.patch.convolution > 0 && !work.shared_x) {
    team.Barrier();  // Recall() has read embeddings in the state, which Keep() overwrites
  }
  if (keeps) patches.Keep(own.begin, own.end);
  if (block.outputs != nullptr) {
    patches.Finish(own.begin, own.end);
    wait();
    Predict(model, block, work, team, work.patch.z);
  }
  wait();  // so that the next block does not overwrite rows that others still read
}

std::byte* TakeBytes(size_t bytes, Pieces& pieces) {
  return reinterpret_cast<std::byte*>(pieces.Take((bytes + sizeof(float) - 1) / sizeof(float)));
}

void TakeX(const Model::Packed& model, size_t rows, Pieces& pieces, Workspace& work) {
  work.x = pieces.Take(rows * model.d_model);
  work.normed = model.spec.stack.norm_first ? pieces.Take(rows * model.d_model) : nullptr;
  work.stem.features = pieces.Take(rows * model.stem.channels);
  work.patch.u = pieces.Take(rows * model.patch.width);
  work.patch.z = pieces.Take(rows * model.patch.width);
  if (!model.narrow()) return;
  const kernels::NarrowType type = Model::Packed::NarrowTypeOf(model.precision);
  std::byte* memory = TakeBytes(kernels::NarrowRowsSize(type, rows, model.d_model), pieces);
  if (memory != nullptr) work.narrow = kernels::TakeNarrowRows(type, rows, model.d_model, memory);
}

size_t* TakeSizes(size_t count, Pieces& pieces) {
  return reinterpret_cast<size_t*>(TakeBytes(count * sizeof(size_t), pieces));
}

// A member's own memory for patches.
void TakePatch(const Model::Packed& model, size_t rows, Pieces& pieces, PatchWork& work) {
  work.joined = pieces.Take(kPatchRows * model.patch.floats());
  work.hidden = pieces.Take(kTokenRows * model.patch.d_ff);
  work.token = pieces.Take(kTokenRows * model.patch.width);
  work.narrow = TakeBytes(PatchNarrowBytes(model), pieces);
  work.sequences = TakeSizes(rows, pieces);
  work.places = TakeSizes(rows, pieces);
  work.offsets = TakeSizes(rows + 1, pieces);
}

// Working memory that suffices for every part.
struct Needs {
  size_t values = 0, scratch = 0;  // columns of Workspace::heads; floats of Workspace::mixer
  size_t squares = 0;              // groups of the largest part with one_norm

  Needs(const Model::Packed& model, const BlockSize& size) {
    for (const PackedStack* stack : {&model.stack, &model.encoder}) {
      for (const PackedPart& part : stack->parts) {
        if (!part.mixer) continue;
        size_t heads = 0;
        for (const PackedGroup& group : part.groups)
          heads = std::max(heads, group.end - group.begin);
        values = std::max(values, heads * part.values);
        scratch = std::max(scratch, part.mixer->ScratchFloats(size.rows, heads, size.keys));
        if (part.one_norm) squares = std::max(squares, part.count());
      }
    }
  }
};

void TakeSquares(const Needs& needs, size_t rows, Pieces& pieces, Workspace& work) {
  work.squares_stride = RoundUp(rows, kCacheLine / sizeof(float));
  for (float*& squares : work.squares) squares = pieces.Take(needs.squares * work.squares_stride);
}

}  // namespace

void RunBlock(const Model::Packed& model, const Block& block, const Workspace& work,
              const Team& team) {
  if (model.spec.patches()) return RunPatches(model, block, work, team);
  Embedder embedder(model, block, work, team, work.x);
  embedder.Embed();
  Walker walker(model, model.stack, block, work, team);
  walker.Run();
  // The parts' barriers ensure that every member has finished with the stem's old state.
  if (team.member == 0) embedder.Keep();
  if (block.outputs != nullptr) Predict(model, block, work, team, walker.Input());
  // Waits, so that the next block's Embed() does not overwrite rows that others still read.
  if (work.shared_x) team.Barrier();
}

void RunEncoder(const Model::Packed& model, const Block& block, const Workspace& work) {
  Embedder(model, block, work, Team{}, work.x).Embed();
  Walker walker(model, model.encoder, block, work, Team{});
  walker.Run();
  walker.Remember();
}

void TakeShared(const Model::Packed& model, const BlockSize& size, Pieces& pieces,
                Workspace& work) {
  work.group_stride = RoundUp(size.rows * model.d_model, kCacheLine / sizeof(float));
  TakeX(model, size.rows, pieces, work);
  size_t most[2] = {1, 1};
  for (size_t i = 0; i < model.stack.parts.size(); ++i) {
    most[i % 2] = std::max(most[i % 2], model.stack.parts[i].count());
  }
  work.sums[0] = pieces.Take(most[0] * work.group_stride);
  work.sums[1] = pieces.Take(most[1] * work.group_stride);
  work.carried = pieces.Take(size.rows * model.carried);
  const bool divides = !model.stem.colors.empty() && size.rows <= kRedundantRows;
  work.stem.sum = pieces.Take(divides ? size.rows * model.embedding_width : 0);
  TakeSquares(Needs(model, size), size.rows, pieces, work);
}

void TakeOwn(const Model::Packed& model, const BlockSize& size, bool alone, Pieces& pieces,
             Workspace& work) {
  const size_t rows = size.rows;
  const Needs needs(model, size);
  work.wide = pieces.Take(std::max(rows * model.widest, model.position_dims));
  if (model.narrow()) {
    // The predictor may have more inputs than the other matrices, and another type.
    size_t in =
        std::max({model.widest, needs.values, size_t{model.spec.lstm() ? 2u : 1u} * model.d_model,
                  model.embedding_width});
    if (model.spec.ReadsFrames()) {
      in = std::max(in, static_cast<size_t>(model.spec.speech()->Inputs()));
    }
    const auto bytes = [&](kernels::NarrowType type) {
      return kernels::NarrowRowsSize(type, rows, in);
    };
    work.narrow_wide = TakeBytes(
        std::max(bytes(kernels::NarrowType::kBf16), bytes(kernels::NarrowType::kInt8)), pieces);
  }
  work.heads = pieces.Take(rows * needs.values);
  work.mixer = pieces.Take(needs.scratch);
  work.shifted = pieces.Take(model.shifts ? std::min(rows, kBlockRows) * model.d_model : 0);
  work.factors = pieces.Take(needs.squares > 0 ? rows : 0);
  if (model.spec.stack.convolution > 0) {
    const size_t past = static_cast<size_t>(model.spec.stack.convolution);
    work.mixed = pieces.Take((3 * rows + 2 * past) * model.d_model);
  }
  if (model.spec.lstm()) work.lstm = pieces.Take(LstmScratch(model, rows));
  work.stem.in = pieces.Take(StemInFloats(model.stem));
  work.stem.out = pieces.Take(StemOutFloats(model));
  work.stem.narrow = TakeBytes(StemNarrowBytes(model), pieces);
  if (model.spec.patches()) TakePatch(model, rows, pieces, work.patch);
  work.shared_x = !alone && rows > kRedundantRows;
  if (!work.shared_x) TakeX(model, rows, pieces, work);
  if (alone) {
    work.group_stride = 0;
    work.sums[0] = work.sums[1] = pieces.Take(rows * model.d_model);
    work.carried = pieces.Take(rows * model.carried);
    TakeSquares(needs, rows, pieces, work);
  }
}

}  // namespace linnet
