#include "linnet/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "linnet/base/hidden.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/runtime/crowd.h"
#include "linnet/runtime/packed_model.h"
#include "linnet/runtime/state_data.h"
#include "linnet/runtime/walker.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

// With at least this many sequences per thread, threads step faster separately, each with its own
// sequences, than as a team that splits each layer and waits at barriers.
constexpr size_t kAloneRows = 8;

// How mixers read positions of a sequence. kPieces: with kernels for several positions. kSteps: one
// by one, as Engine::Step() does.
enum class Reading { kPieces, kSteps };

}  // namespace

class LINNET_HIDDEN Engine::Impl {
 public:
  Impl(std::shared_ptr<const Model> model, const EngineOptions& options);

  const Model& model() const { return *model_; }
  ThreadPool& pool() { return pool_; }
  size_t output_size() const { return model_->packed().outputs; }
  // The contents of a state. Throws InputError if it is not of this model.
  StateData& Of(State& state) const;

  // As in Engine.
  StateData NewState(size_t batch) const;
  void Read(StateData& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
            size_t length, std::span<float> outputs, Reading reading = Reading::kPieces);
  void Prefix(StateData& state, std::span<const size_t> sequences, std::span<const size_t> lengths,
              std::span<const int32_t> tokens, std::span<float> outputs);
  void Prefix(StateData& state, std::span<const float> frames, size_t length,
              std::span<float> outputs);
  void Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);
  void Whole(size_t batch, std::span<const float> frames, size_t length, std::span<float> outputs);

 private:
  // Tokens or frames passed to a call.
  struct Source {
    const int32_t* tokens = nullptr;
    const float* frames = nullptr;
    size_t width = 1;  // floats of `frames` per position
    Source From(size_t position) const {
      return {tokens ? tokens + position : nullptr, frames ? frames + position * width : nullptr,
              width};
    }
  };
  // A sequence to read from its first position, and the destination of its outputs.
  struct Sequence {
    Source source;
    size_t length;
    float* outputs;
    bool only_last;
  };

  // The threads of a call. If `alone`, each runs its own sequences through all layers without
  // barriers. Otherwise all threads run all sequences together, splitting each layer.
  struct Division {
    size_t threads;
    bool alone;
    Crowd* crowd = nullptr;  // not null if the rows are so few that one thread may be faster
    size_t rows = 1;         // of the call; a crowd compares times per row
  };

  struct Scratch {
    std::vector<Crowd> crowds;  // by the number of rows, below kAloneRows * threads
    // For more rows, up to kBlockRows: by the logarithm of their number.
    std::array<Crowd, std::bit_width(kBlockRows)> prefixes;
    struct Member {
      AlignedBuffer<float> buffer;
      Workspace work{};
    };
    AlignedBuffer<float> shared;
    std::vector<Member> members;
    BlockSize prepared;  // the block size that the memory has room for
    bool prepared_alone = false;
    std::vector<uint8_t> named;   // per sequence: 1 if it occurs in the arguments (CheckPlaces())
    std::vector<size_t> offsets;  // of each sequence's tokens in a call of Prefix()
    std::vector<size_t> positions, memory_lengths, zeros;  // per sequence, for encoder-decoders
    std::vector<size_t> patch_counts;                      // per sequence: PatchCounts()
    std::vector<Sequence> sequences;
    std::vector<float> outputs;

    // Provides working memory for blocks of up to `size`. Allocates only if the memory must grow.
    void Prepare(const Model::Packed& model, const BlockSize& size, bool alone) {
      if (size == prepared && alone == prepared_alone) return;
      prepared = size, prepared_alone = alone;
      Workspace common{};
      if (!alone) {
        Allocate(shared, [&](Pieces& p) { TakeShared(model, size, p, common); });
      }
      for (Member& member : members) {
        if (!alone) {
          // Room for members that work alone. A later step may need it, but must not allocate.
          Workspace unused{};
          Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model, size, true, p, unused); });
        }
        member.work = common;
        Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model, size, alone, p, member.work); });
      }
    }
  };

  // The blocks of a call: positions of the first block and of the others, and sequences per block.
  struct Blocks {
    size_t first = 0, length = 0, most = 0;
  };

  Division Divide(size_t batch, size_t length);
  // Cuts a call into blocks of nearly equal length. If there are several, they end at multiples of
  // kCutPositions. most = 0: these differ between the sequences.
  Blocks Cut(const StateData& state, const size_t* chosen, size_t batch, size_t length) const;
  // Calls walk(0), .., walk(threads - 1), each on a thread of its own. If the division has a Crowd,
  // records the call's duration there, for Divide() to choose between one thread and all threads.
  void RunOn(const Division& division, FunctionRef<void(int)> walk);
  void ReadRows(StateData& state, const size_t* chosen, size_t batch, Source source, size_t length,
                std::span<float> outputs, Reading reading);
  void ReadApart(StateData& state, const size_t* chosen, size_t batch, Source source, size_t length,
                 std::span<float> outputs, Reading reading);
  void ReadAgain(StateData& state, const size_t* chosen, size_t batch,
                 std::span<const int32_t> tokens, size_t length, std::span<float> outputs);
  void StepAgain(StateData& state, const size_t* chosen, size_t batch,
                 std::span<const int32_t> tokens, size_t length, std::span<float> outputs);
  void ReadPair(StateData& state, const size_t* chosen, size_t batch,
                std::span<const int32_t> tokens, size_t length, std::span<float> outputs,
                Reading reading);
  void ReadUnequal(StateData& state, std::span<const size_t> sequences,
                   std::span<const size_t> offsets, std::span<const int32_t> tokens,
                   std::span<float> outputs);
  // Here and below, `place` is the index of a sequence in the state.
  void Encode(StateData& state, size_t place);
  void ReadWhole(std::span<const Sequence> sequences);
  void CheckPlaces(const StateData& state, const size_t* chosen, size_t batch, size_t length);
  void CheckTokens(std::span<const int32_t> tokens) const;
  void CheckLength(size_t length) const;
  void CheckFirstPart(StateData& state, size_t place, std::span<const int32_t> tokens) const;
  size_t CheckFrames(size_t batch, std::span<const float> frames, size_t length,
                     std::span<const float> outputs) const;
  bool CheckOutputs(size_t batch, size_t length, std::span<const float> outputs) const;
  // Each sequence's position as the layers count it: in a decoder, from the separator on. With a
  // decoder, also fills scratch_.memory_lengths.
  const size_t* Positions(StateData& state);
  // With patches, the number of patches before each sequence's position; else null.
  const size_t* PatchCounts(const StateData& state);
  void Passed(StateData& state, size_t place, Source source, size_t length, Reading reading) const;

  std::shared_ptr<const Model> model_;
  ThreadPool pool_;
  Scratch scratch_;
};

Engine::Impl::Impl(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)), pool_(options.threads) {
  const auto threads = static_cast<size_t>(pool_.size());
  scratch_.members.resize(threads);
  scratch_.crowds.resize(kAloneRows * threads);
}

StateData& Engine::Impl::Of(State& state) const {
  StateData::Of(state.data_).CheckFits(*model_);
  return *state.data_;
}

StateData Engine::Impl::NewState(size_t batch) const {
  const Model::Packed& model = model_->packed();
  if (!model.spec.Causal()) {
    throw InputError(
        model_->path(), ": ", model.spec.lstm() ? "a bidirectional LSTM" : "",
        model.spec.lstm() ? "" : StrCat("attention '", model.spec.stack.mixer().kind, "'"),
        " is not causal, so it reads only whole sequences; to transcribe a stream, train a "
        "model with --attention causal-linear");
  }
  if (model.spec.ReadsFrames() && !model.steps()) {
    throw InputError(model_->path(), ": attention '", model.spec.stack.mixer().kind,
                     "' has no recurrent state, so it reads only whole utterances");
  }
  if (batch == 0) throw InputError("a state needs at least one sequence");
  const size_t capacity = model.layout->first_capacity;
  const double bytes =
      static_cast<double>(batch) *
      (static_cast<double>(model.layout->Floats(capacity) + model.layout->Tokens(capacity)) *
           sizeof(float) +
       8);
  const auto memory = static_cast<double>(MachineMemory());
  if (bytes > memory) {
    throw InputError(model_->path(), ": cannot make a state of ", batch, " sequences: it takes ",
                     FormatBytes(bytes), " and this machine has ", FormatBytes(memory),
                     "; choose a smaller batch");
  }
  return StateData(*model_, batch);
}

void Engine::Impl::Prefix(StateData& state, std::span<const size_t> sequences,
                          std::span<const size_t> lengths, std::span<const int32_t> tokens,
                          std::span<float> outputs) {
  const size_t batch = sequences.size(), width = output_size();
  std::vector<size_t>& offsets = scratch_.offsets;
  offsets.assign(1, 0);
  for (const size_t length : lengths) offsets.push_back(offsets.back() + length);
  if (batch == 0 || lengths.size() != batch || offsets.back() != tokens.size()) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences with ",
                     lengths.size(), " lengths that add up to ", offsets.back());
  }
  if (!outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats; got ", outputs.size());
  }
  CheckTokens(tokens);
  for (size_t i = 0; i < batch; ++i) {
    CheckPlaces(state, &sequences[i], 1, lengths[i]);
    if (lengths[i] == 0) throw InputError("each sequence must read at least one token");
    CheckFirstPart(state, sequences[i], tokens.subspan(offsets[i], lengths[i]));
  }
  CheckPlaces(state, sequences.data(), batch, 0);
  const size_t longest = *std::max_element(lengths.begin(), lengths.end());
  const size_t shortest = *std::min_element(lengths.begin(), lengths.end());
  if (shortest == longest) return Read(state, sequences.data(), batch, tokens, longest, outputs);
  // The sequences are read one at a time if one is longer than a block (blocks split it), if there
  // are fewer sequences than threads (all threads together are faster), or if the model keeps its
  // tokens or has an encoder.
  const StateLayout& layout = *model_->packed().layout;
  if (longest > kBlockRows || batch < static_cast<size_t>(pool_.size()) || layout.keeps_tokens ||
      layout.source > 0) {
    for (size_t i = 0; i < batch; ++i) {
      Read(state, &sequences[i], 1, tokens.subspan(offsets[i], lengths[i]), lengths[i],
           outputs.empty() ? outputs : outputs.subspan(i * width, width));
    }
    return;
  }
  size_t furthest = 0;
  for (size_t i = 0; i < batch; ++i) {
    furthest = std::max(furthest, state.positions[sequences[i]] + lengths[i]);
  }
  state.Reserve(furthest);
  ReadUnequal(state, sequences, offsets, tokens, outputs);
}

// Reads prefixes of different lengths, none longer than a block.
void Engine::Impl::ReadUnequal(StateData& state, std::span<const size_t> sequences,
                               std::span<const size_t> offsets, std::span<const int32_t> tokens,
                               std::span<float> outputs) {
  const Model::Packed& model = model_->packed();
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t width = model.outputs;
  scratch_.Prepare(
      model,
      {.rows = std::min(kBlockRows, tokens.size()), .keys = std::max(state.capacity, kBlockRows)},
      /*alone=*/true);
  const size_t* patch_counts = PatchCounts(state);
  const auto walk = [&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    // A sequence belongs to the thread whose share of the rows contains its first row.
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
                        .chosen = sequences.data() + first,
                        .positions = state.positions.data(),
                        .patch_counts = patch_counts,
                        .tokens = tokens.data() + offsets[first],
                        .states = state.data.data(),
                        .state_stride = state.per_sequence(),
                        .capacity = state.capacity,
                        .waiting = state.waiting.data(),
                        .recent = state.recent.data(),
                        .recent_stride = state.tokens(),
                        .outputs = outputs.empty() ? nullptr : outputs.data() + first * width,
                        .sequence_output_stride = width,
                        .only_last = true};
      RunBlock(model, block, scratch_.members[w].work, Team{});
    }
  };
  pool_.Run(walk);
  for (size_t i = 0; i < sequences.size(); ++i) {
    Passed(state, sequences[i], {.tokens = tokens.data() + offsets[i]}, offsets[i + 1] - offsets[i],
           Reading::kPieces);
  }
}

void Engine::Impl::CheckTokens(std::span<const int32_t> tokens) const {
  const ModelSpec& spec = model_->spec();
  if (spec.ReadsFrames()) {
    throw InputError(model_->path(), ": a model of the task '", spec.task,
                     "' reads frames of audio, ",
                     "not tokens; run it with linnet transcribe (from C++: SpeechEncoder)");
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= spec.input.vocabulary) {
      throw InputError(model_->path(), ": token ", token, " is outside its vocabulary 0 .. ",
                       spec.input.vocabulary - 1);
    }
  }
}

// Checks that these sequences exist, are distinct, and have room for `length` more positions.
void Engine::Impl::CheckPlaces(const StateData& state, const size_t* chosen, size_t batch,
                               size_t length) {
  const auto place = [&](size_t i) { return chosen ? chosen[i] : i; };
  size_t furthest = 0;
  std::vector<uint8_t>& named = scratch_.named;  // all zero between calls
  if (chosen) named.resize(std::max(named.size(), state.batch()));
  size_t twice = SIZE_MAX;
  for (size_t i = 0; i < batch; ++i) {
    if (place(i) >= state.batch()) break;  // refused below
    if (chosen && std::exchange(named[chosen[i]], 1) != 0) twice = chosen[i];
  }
  for (size_t i = 0; chosen && i < batch && chosen[i] < named.size(); ++i) named[chosen[i]] = 0;
  for (size_t i = 0; i < batch; ++i) {
    state.CheckSequence(place(i));
    furthest = std::max(furthest, state.positions[place(i)]);
  }
  // Otherwise two threads might write the same sequence's state.
  if (twice != SIZE_MAX) throw InputError("sequence ", twice, " is chosen twice");
  const std::optional<size_t> most = model_->most_positions();
  if (most && (furthest > *most || length > *most - furthest)) {
    throw InputError(model_->path(), ": the model has ", *most, " positions; ", furthest,
                     " are read and ", length, " more do not fit");
  }
  constexpr size_t kMost = SIZE_MAX >> 4;
  if (length > kMost - furthest) {
    throw InputError("the length exceeds ", kMost, " positions; pass a smaller one");
  }
}

bool Engine::Impl::CheckOutputs(size_t batch, size_t length, std::span<const float> outputs) const {
  const size_t width = output_size();
  const bool every = outputs.size() == batch * length * width;
  if (!every && !outputs.empty() && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats (last position) or ", batch,
                     " x ", length, " x ", width, " (all positions); got ", outputs.size());
  }
  return every;
}

// Checks that the encoder has room for the tokens before the separator.
void Engine::Impl::CheckFirstPart(StateData& state, size_t place,
                                  std::span<const int32_t> tokens) const {
  const size_t most = model_->packed().layout->source;
  if (most == 0 || state.source_length(place) >= 0) return;
  const auto end = std::find(tokens.begin(), tokens.end(), Vocabulary::kSeparator);
  const size_t length = state.positions[place] + static_cast<size_t>(end - tokens.begin());
  if (length > most) {
    throw InputError(model_->path(), ": ", length, " tokens before the separator exceed the ", most,
                     " positions of the encoder");
  }
}

// Updates a sequence's position, its number of waiting keys and its recent tokens after a call.
void Engine::Impl::Passed(StateData& state, size_t place, Source source, size_t length,
                          Reading reading) const {
  const Model::Packed& model = model_->packed();
  const size_t reach = model.layout->source > 0 ? 0 : model.layout->reach;
  for (size_t t = length - std::min(length, reach); t < length; ++t) {
    state.recent[place * reach + (state.positions[place] + t) % reach] = source.tokens[t];
  }
  size_t& position = state.positions[place];
  const size_t before = position;
  position += length;
  // Positions that mixers read, if they read them as steps.
  const PatchCount& count = model.layout->patches;
  const size_t steps = count.Before(position) - count.Before(before);
  uint8_t& waiting = state.waiting[place];
  waiting = model.spec.patches() || reading == Reading::kSteps
                ? static_cast<uint8_t>((waiting + steps) % model.layout->fold_keys)
                : 0;
}

void Engine::Impl::Read(StateData& state, const size_t* chosen, size_t batch,
                        std::span<const int32_t> tokens, size_t length, std::span<float> outputs,
                        Reading reading) {
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences of ", length,
                     " each");
  }
  CheckPlaces(state, chosen, batch, length);
  CheckOutputs(batch, length, outputs);
  CheckTokens(tokens);
  const StateLayout& layout = *model_->packed().layout;
  for (size_t i = 0; layout.source > 0 && i < batch; ++i) {
    CheckFirstPart(state, chosen ? chosen[i] : i, tokens.subspan(i * length, length));
  }
  size_t furthest = 0;
  for (size_t i = 0; i < batch; ++i) {
    furthest = std::max(furthest, state.positions[chosen ? chosen[i] : i]);
  }
  state.Reserve(furthest + length);
  if (layout.keeps_tokens && length > 1 && reading == Reading::kSteps) {
    return StepAgain(state, chosen, batch, tokens, length, outputs);
  }
  if (layout.keeps_tokens) return ReadAgain(state, chosen, batch, tokens, length, outputs);
  if (layout.source > 0) return ReadPair(state, chosen, batch, tokens, length, outputs, reading);
  ReadRows(state, chosen, batch, {.tokens = tokens.data()}, length, outputs, reading);
}

Engine::Impl::Division Engine::Impl::Divide(size_t batch, size_t length) {
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t few = kAloneRows * threads;
  if (threads == 1 || (length == 1 ? batch >= few : batch >= 4 * threads || batch % threads == 0)) {
    return {.threads = threads, .alone = true};
  }
  const size_t rows = batch * length;
  if (rows > kBlockRows) return {.threads = threads, .alone = false};
  Crowd& crowd = rows < few ? scratch_.crowds[rows] : scratch_.prefixes[std::bit_width(rows) - 1];
  const bool one = crowd.Alone();
  return {.threads = one ? 1 : threads, .alone = one, .crowd = &crowd, .rows = rows};
}

void Engine::Impl::RunOn(const Division& division, FunctionRef<void(int)> walk) {
  const ThreadPool::Waits before = pool_.waits();
  const auto began = Crowd::Clock::now();
  if (division.threads == 1) {
    walk(0);
  } else {
    pool_.Run(walk);
  }
  if (division.crowd != nullptr) {
    const std::chrono::duration<double> took = Crowd::Clock::now() - began;
    division.crowd->Stepped(division.threads == 1,
                            took.count() / static_cast<double>(division.rows), before,
                            pool_.waits());
  }
}

// Continues from the state: reads tokens or frames with the decoder or, in a model without an
// encoder, with the model's only stack.
void Engine::Impl::ReadRows(StateData& state, const size_t* chosen, size_t batch, Source source,
                            size_t length, std::span<float> outputs, Reading reading) {
  const Model::Packed& model = model_->packed();
  const size_t width = model.outputs;
  const bool every = outputs.size() == batch * length * width;
  const size_t* positions = Positions(state);
  const size_t* memory_lengths =
      model.layout->source > 0 ? scratch_.memory_lengths.data() : nullptr;
  const size_t* patch_counts = PatchCounts(state);
  const Blocks blocks = Cut(state, chosen, batch, length);
  if (blocks.most == 0) return ReadApart(state, chosen, batch, source, length, outputs, reading);
  const Division division = Divide(batch, length);
  const size_t threads = division.threads;
  const bool alone = division.alone;
  scratch_.Prepare(model,
                   {.rows = blocks.most * blocks.length,
                    .keys = std::max({state.capacity, kBlockRows, model.layout->source})},
                   alone);
  const auto walk = [&](int worker) {
    const size_t w = static_cast<size_t>(worker);
    const Team team = alone ? Team{} : Team{&pool_, w, threads};
    const size_t begin = alone ? batch * w / threads : 0;
    const size_t end = alone ? batch * (w + 1) / threads : batch;
    const size_t groups = (end - begin + blocks.most - 1) / blocks.most;
    for (size_t g = 0; g < groups; ++g) {
      const size_t first = begin + (end - begin) * g / groups;
      const size_t last = begin + (end - begin) * (g + 1) / groups;
      for (size_t t = 0, count = blocks.first; t < length; t += count, count = blocks.length) {
        count = std::min(count, length - t);
        const Source here = source.From(first * length + t);
        Block block{.sequences = last - first,
                    .length = count,
                    .first = first,
                    .chosen = chosen ? chosen + first : nullptr,
                    .positions = positions,
                    .patch_counts = patch_counts,
                    .ahead = t,
                    .tokens = here.tokens,
                    .frames = here.frames,
                    .input_stride = length,
                    .step = length == 1 && reading == Reading::kSteps,
                    .by_steps = length > 1 && reading == Reading::kSteps,
                    .states = state.data.data(),
                    .state_stride = state.per_sequence(),
                    .capacity = state.capacity,
                    .waiting = state.waiting.data(),
                    .recent = state.recent.data(),
                    .recent_stride = state.tokens(),
                    .memory_lengths = memory_lengths};
        if (every) {
          block.outputs = outputs.data() + (first * length + t) * width;
          block.sequence_output_stride = length * width;
        } else if (!outputs.empty() && t + block.length == length) {
          block.outputs = outputs.data() + first * width;
          block.sequence_output_stride = width;
          block.only_last = true;
        }
        RunBlock(model, block, scratch_.members[w].work, team);
      }
    }
  };
  RunOn(division, walk);
  for (size_t i = 0; i < batch; ++i) {
    Passed(state, chosen ? chosen[i] : i, source.From(i * length), length, reading);
  }
}

Engine::Impl::Blocks Engine::Impl::Cut(const StateData& state, const size_t* chosen, size_t batch,
                                       size_t length) const {
  const size_t count = (length + kBlockRows - 1) / kBlockRows;
  const size_t equal = (length + count - 1) / count;
  if (count == 1) return {equal, equal, std::min(batch, kBlockRows / equal)};
  // Patches are read one by one, wherever blocks end; but see Patches::layers().
  const bool patches = model_->spec().patches();
  const size_t step = patches ? model_->packed().patch.tokens : kCutPositions;
  const auto phase = [&](size_t i) { return state.positions[chosen ? chosen[i] : i] % step; };
  for (size_t i = 1; i < batch; ++i) {
    if (phase(i) != phase(0)) return {};
  }
  if (patches) return {equal, equal, std::min(batch, kBlockRows / equal)};
  const size_t rounded = RoundUp(equal, kCutPositions);
  return {rounded - phase(0), rounded, std::min(batch, kBlockRows / rounded)};
}

// ReadRows() for each sequence on its own.
void Engine::Impl::ReadApart(StateData& state, const size_t* chosen, size_t batch, Source source,
                             size_t length, std::span<float> outputs, Reading reading) {
  const size_t each = outputs.size() / batch;
  for (size_t i = 0; i < batch; ++i) {
    const size_t place = chosen ? chosen[i] : i;
    ReadRows(state, &place, 1, source.From(i * length), length, outputs.subspan(i * each, each),
             reading);
  }
}

const size_t* Engine::Impl::Positions(StateData& state) {
  if (model_->packed().layout->source == 0) return state.positions.data();
  scratch_.positions.resize(state.batch());
  scratch_.memory_lengths.resize(state.batch());
  for (size_t i = 0; i < state.batch(); ++i) {
    const auto first = static_cast<size_t>(std::max(state.source_length(i), 0));
    scratch_.positions[i] = state.positions[i] - first;
    scratch_.memory_lengths[i] = first;
  }
  return scratch_.positions.data();
}

const size_t* Engine::Impl::PatchCounts(const StateData& state) {
  if (!model_->spec().patches()) return nullptr;
  scratch_.patch_counts.resize(state.batch());
  for (size_t i = 0; i < state.batch(); ++i) {
    scratch_.patch_counts[i] = state.layout->patches.Before(state.positions[i]);
  }
  return scratch_.patch_counts.data();
}

// For models without recurrent state: their StateData holds the tokens. Reads all tokens again and
// returns the outputs of the new ones.
void Engine::Impl::ReadAgain(StateData& state, const size_t* chosen, size_t batch,
                             std::span<const int32_t> tokens, size_t length,
                             std::span<float> outputs) {
  const size_t width = output_size(), room = state.tokens();
  const bool every = outputs.size() == batch * length * width;
  size_t floats = 0;
  std::vector<Sequence>& sequences = scratch_.sequences;
  sequences.clear();
  for (size_t i = 0; i < batch; ++i) {
    const size_t place = chosen ? chosen[i] : i, before = state.positions[place];
    int32_t* kept = state.recent.data() + place * room;
    std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(i * length), length, kept + before);
    state.positions[place] += length;
    sequences.push_back({{.tokens = kept}, before + length, nullptr, !every});
    floats += (every ? before + length : 1) * width;
  }
  if (outputs.empty()) return;
  scratch_.outputs.resize(floats);
  float* to = scratch_.outputs.data();
  for (Sequence& sequence : sequences) {
    sequence.outputs = to;
    to += (every ? sequence.length : 1) * width;
  }
  ReadWhole(sequences);
  const size_t rows = every ? length : 1;
  for (size_t i = 0; i < batch; ++i) {
    const Sequence& sequence = sequences[i];
    const float* last = sequence.outputs + ((every ? sequence.length : 1) - rows) * width;
    std::copy_n(last, rows * width, outputs.data() + i * rows * width);
  }
}

// Calls ReadAgain() once per position, because outputs may depend on the number of tokens so far.
void Engine::Impl::StepAgain(StateData& state, const size_t* chosen, size_t batch,
                             std::span<const int32_t> tokens, size_t length,
                             std::span<float> outputs) {
  const size_t width = output_size(), rows = outputs.size() / batch / width;
  std::vector<int32_t> step(batch);
  std::vector<float> found(outputs.empty() ? 0 : batch * width);
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < batch; ++i) step[i] = tokens[i * length + t];
    ReadAgain(state, chosen, batch, step, 1, found);
    if (t + rows < length) continue;
    for (size_t i = 0; i < batch; ++i) {
      std::copy_n(found.data() + i * width, width,
                  outputs.data() + (i * rows + t - (length - rows)) * width);
    }
  }
}

// Encoder-decoders: stores the tokens before the separator, encodes them when it arrives, then
// decodes from the separator on.
void Engine::Impl::ReadPair(StateData& state, const size_t* chosen, size_t batch,
                            std::span<const int32_t> tokens, size_t length,
                            std::span<float> outputs, Reading reading) {
  const auto place = [&](size_t i) { return chosen ? chosen[i] : i; };
  bool decoding = true;
  for (size_t i = 0; i < batch; ++i) decoding = decoding && state.source_length(place(i)) >= 0;
  if (decoding) {
    return ReadRows(state, chosen, batch, {.tokens = tokens.data()}, length, outputs, reading);
  }
  const size_t width = output_size(), rows = outputs.size() == batch * length * width ? length : 1;
  std::fill(outputs.begin(), outputs.end(), 0.0f);
  for (size_t i = 0; i < batch; ++i) {
    const size_t at = place(i);
    const auto own = tokens.subspan(i * length, length);
    size_t t = 0;
    for (; t < length && state.source_length(at) < 0; ++t) {
      if (own[t] == Vocabulary::kSeparator) {
        state.source_length(at) = static_cast<int32_t>(state.positions[at]);
        Encode(state, at);
        break;
      }
      state.source(at)[state.positions[at]++] = own[t];
    }
    if (t == length) continue;
    // If the caller wants the outputs of all positions, the outputs before the separator stay 0.
    const size_t skipped = rows == length ? t : 0;
    ReadRows(state, &at, 1, {.tokens = own.data() + t}, length - t,
             outputs.empty()
                 ? outputs
                 : outputs.subspan((i * rows + skipped) * width, (rows - skipped) * width),
             reading);
  }
}

// Runs the encoder over a sequence's tokens before the separator.
void Engine::Impl::Encode(StateData& state, size_t place) {
  const auto length = static_cast<size_t>(state.source_length(place));
  if (length == 0) return;  // cross attention over nothing gives 0
  const Model::Packed& model = model_->packed();
  scratch_.zeros.resize(std::max(scratch_.zeros.size(), state.batch()));
  scratch_.Prepare(model, {.rows = length, .keys = std::max(state.capacity, length)},
                   /*alone=*/true);
  const Block block{.sequences = 1,
                    .length = length,
                    .first = place,
                    .positions = scratch_.zeros.data(),
                    .tokens = state.source(place),
                    .input_stride = length,
                    .states = state.data.data(),
                    .state_stride = state.per_sequence(),
                    .capacity = state.capacity};
  RunEncoder(model, block, scratch_.members[0].work);
}

void Engine::Impl::Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
                         std::span<float> outputs) {
  const Model::Packed& model = model_->packed();
  if (model.steps()) {
    StateData state = NewState(batch);
    return Read(state, nullptr, batch, tokens, length, outputs);
  }
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError("cannot read ", tokens.size(), " tokens as ", batch, " sequences of ", length,
                     " each");
  }
  CheckLength(length);
  if (outputs.empty()) return;
  const bool every = CheckOutputs(batch, length, outputs);
  CheckTokens(tokens);
  std::vector<Sequence>& sequences = scratch_.sequences;
  sequences.clear();
  for (size_t i = 0; i < batch; ++i) {
    sequences.push_back({{.tokens = tokens.data() + i * length},
                         length,
                         outputs.data() + i * (every ? length : 1) * model.outputs,
                         !every});
  }
  ReadWhole(sequences);
}

// Checks that the model has this many positions.
void Engine::Impl::CheckLength(size_t length) const {
  const std::optional<size_t> most = model_->most_positions();
  if (most && length > *most) {
    throw InputError(model_->path(), ": the model has ", *most, " positions; ", length,
                     " do not fit");
  }
}

size_t Engine::Impl::CheckFrames(size_t batch, std::span<const float> frames, size_t length,
                                 std::span<const float> outputs) const {
  const SpeechSpec* speech = model_->spec().speech();
  if (speech == nullptr) throw InputError(model_->path(), ": reads tokens, not frames");
  const auto width = static_cast<size_t>(speech->Inputs());
  if (batch == 0 || length == 0 || frames.size() / length / width != batch ||
      frames.size() != batch * length * width) {
    throw InputError(model_->path(), ": ", frames.size(), " floats are not ", batch, " x ", length,
                     " positions of ", width);
  }
  CheckOutputs(batch, length, outputs);
  return width;
}

void Engine::Impl::Prefix(StateData& state, std::span<const float> frames, size_t length,
                          std::span<float> outputs) {
  const size_t width = CheckFrames(state.batch(), frames, length, outputs);
  CheckPlaces(state, nullptr, state.batch(), length);
  size_t furthest = 0;
  for (const size_t position : state.positions) furthest = std::max(furthest, position);
  state.Reserve(furthest + length);
  ReadRows(state, nullptr, state.batch(), {.frames = frames.data(), .width = width}, length,
           outputs, length == 1 ? Reading::kSteps : Reading::kPieces);
}

void Engine::Impl::Whole(size_t batch, std::span<const float> frames, size_t length,
                         std::span<float> outputs) {
  const size_t width = CheckFrames(batch, frames, length, outputs);
  CheckLength(length);
  if (outputs.empty()) return;
  const bool every = outputs.size() == batch * length * output_size();
  std::vector<Sequence>& sequences = scratch_.sequences;
  sequences.clear();
  const Source source{.frames = frames.data(), .width = width};
  for (size_t i = 0; i < batch; ++i) {
    sequences.push_back({source.From(i * length), length,
                         outputs.data() + i * (every ? length : 1) * output_size(), !every});
  }
  ReadWhole(sequences);
}

// Reads whole sequences, one per block. A block is run by one thread, or, if there are few
// sequences, by all threads together.
void Engine::Impl::ReadWhole(std::span<const Sequence> sequences) {
  const Model::Packed& model = model_->packed();
  const size_t batch = sequences.size(), width = model.outputs;
  const auto threads = static_cast<size_t>(pool_.size());
  const bool alone =
      threads == 1 || batch % threads == 0 || batch >= 4 * threads || model.spec.lstm();
  size_t longest = 0;
  for (const Sequence& sequence : sequences) longest = std::max(longest, sequence.length);
  scratch_.Prepare(model, {.rows = longest, .keys = longest}, alone);
  const size_t begin_position = 0;
  const auto walk = [&](int worker) {
    const auto w = static_cast<size_t>(worker);
    const Team team = alone ? Team{} : Team{&pool_, w, threads};
    const size_t end = alone ? batch * (w + 1) / threads : batch;
    for (size_t i = alone ? batch * w / threads : 0; i < end; ++i) {
      const Sequence& sequence = sequences[i];
      const Block block{.sequences = 1,
                        .length = sequence.length,
                        .positions = &begin_position,
                        .patch_counts = &begin_position,
                        .tokens = sequence.source.tokens,
                        .frames = sequence.source.frames,
                        .input_stride = sequence.length,
                        .outputs = sequence.outputs,
                        .sequence_output_stride = width,
                        .only_last = sequence.only_last};
      if (model.spec.lstm()) {
        RunLstm(model, block, scratch_.members[w].work);
      } else {
        RunBlock(model, block, scratch_.members[w].work, team);
      }
    }
  };
  pool_.Run(walk);
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Engine::~Engine() = default;

const Model& Engine::model() const { return impl_->model(); }
int Engine::threads() const { return impl_->pool().size(); }
size_t Engine::output_size() const { return impl_->output_size(); }
ThreadPool& Engine::pool() { return impl_->pool(); }

State Engine::NewState(size_t batch) const { return State(impl_->NewState(batch)); }

void Engine::Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, 1, outputs, Reading::kSteps);
}

void Engine::Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
                  std::span<float> outputs) {
  if (outputs.empty()) throw InputError("a step needs room for its outputs");
  impl_->Read(impl_->Of(state), sequences.data(), sequences.size(), tokens, 1, outputs,
              Reading::kSteps);
}

void Engine::Prefix(State& state, std::span<const int32_t> tokens, size_t length,
                    std::span<float> outputs) {
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, length, outputs);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const int32_t> tokens, size_t length, std::span<float> outputs) {
  impl_->Read(impl_->Of(state), sequences.data(), sequences.size(), tokens, length, outputs);
}

void Engine::Steps(State& state, std::span<const int32_t> tokens, size_t length,
                   std::span<float> outputs) {
  impl_->Read(impl_->Of(state), nullptr, state.batch(), tokens, length, outputs, Reading::kSteps);
}

void Engine::Prefix(State& state, std::span<const size_t> sequences,
                    std::span<const size_t> lengths, std::span<const int32_t> tokens,
                    std::span<float> outputs) {
  impl_->Prefix(impl_->Of(state), sequences, lengths, tokens, outputs);
}

void Engine::Prefix(State& state, std::span<const float> frames, size_t length,
                    std::span<float> outputs) {
  impl_->Prefix(impl_->Of(state), frames, length, outputs);
}

void Engine::Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
                   std::span<float> outputs) {
  impl_->Whole(batch, tokens, length, outputs);
}

void Engine::Whole(size_t batch, std::span<const float> frames, size_t length,
                   std::span<float> outputs) {
  impl_->Whole(batch, frames, length, outputs);
}

}  // namespace linnet
