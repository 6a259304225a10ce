#include "linnet/runtime/reader.h"

#include <algorithm>
#include <chrono>

#include "linnet/engine.h"

namespace linnet {
namespace {

// With at least this many sequences per thread, threads step faster separately, each with its own
// sequences, than as a team that splits each layer and waits at barriers.
constexpr size_t kAloneRows = 8;

}  // namespace

SequenceReader::SequenceReader(const Model::Packed& model, int threads)
    : model_(model), pool_(threads) {
  const auto members = static_cast<size_t>(pool_.size());
  members_.resize(members);
  crowds_.resize(kAloneRows * members);
}

void SequenceReader::Read(const ReaderCall& call) {
  StateData& state = call.state;
  const size_t batch = call.batch, length = call.length, width = model_.outputs;
  const bool every = call.outputs.size() == batch * length * width;
  const size_t* positions = Positions(state);
  const size_t* memory_lengths = model_.layout->source > 0 ? memory_lengths_.data() : nullptr;
  const size_t* patch_counts = PatchCounts(state);
  const Blocks blocks = Cut(call);
  if (blocks.most == 0) return ReadApart(call);
  const Division division = Divide(batch, length);
  const size_t threads = division.threads;
  const bool alone = division.alone;
  Prepare({.rows = blocks.most * blocks.length,
           .keys = std::max({state.capacity, kBlockRows, model_.layout->source})},
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
        const ReaderInput here = call.input.From(first * length + t);
        Block block{.sequences = last - first,
                    .length = count,
                    .first = first,
                    .chosen = call.chosen ? call.chosen + first : nullptr,
                    .positions = positions,
                    .patch_counts = patch_counts,
                    .ahead = t,
                    .tokens = here.tokens,
                    .frames = here.frames,
                    .input_stride = length,
                    .step = length == 1 && call.reading == Reading::kSteps,
                    .by_steps = length > 1 && call.reading == Reading::kSteps,
                    .states = state.data.data(),
                    .state_stride = state.per_sequence(),
                    .capacity = state.capacity,
                    .waiting = state.waiting.data(),
                    .recent = state.recent.data(),
                    .recent_stride = state.tokens(),
                    .memory_lengths = memory_lengths};
        if (every) {
          block.outputs = call.outputs.data() + (first * length + t) * width;
          block.sequence_output_stride = length * width;
        } else if (!call.outputs.empty() && t + block.length == length) {
          block.outputs = call.outputs.data() + first * width;
          block.sequence_output_stride = width;
          block.only_last = true;
        }
        RunBlock(model_, block, members_[w].work, team);
      }
    }
  };
  RunOn(division, walk);
  for (size_t i = 0; i < batch; ++i) {
    Passed(state, call.Place(i), call.input.From(i * length), length, call.reading);
  }
}

// Read() for each sequence on its own.
void SequenceReader::ReadApart(const ReaderCall& call) {
  const size_t each = call.outputs.size() / call.batch;
  for (size_t i = 0; i < call.batch; ++i) {
    const size_t place = call.Place(i);
    Read(call.Of(&place, i, 0, call.outputs.subspan(i * each, each)));
  }
}

void SequenceReader::ReadUnequal(StateData& state, std::span<const size_t> sequences,
                                 std::span<const size_t> offsets, std::span<const int32_t> tokens,
                                 std::span<float> outputs) {
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t width = model_.outputs;
  Prepare(
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
      RunBlock(model_, block, members_[w].work, Team{});
    }
  };
  pool_.Run(walk);
  for (size_t i = 0; i < sequences.size(); ++i) {
    Passed(state, sequences[i], {.tokens = tokens.data() + offsets[i]}, offsets[i + 1] - offsets[i],
           Reading::kPieces);
  }
}

void SequenceReader::Encode(StateData& state, size_t place) {
  const auto length = static_cast<size_t>(state.source_length(place));
  if (length == 0) return;  // cross attention over nothing gives 0
  zeros_.resize(std::max(zeros_.size(), state.batch()));
  Prepare({.rows = length, .keys = std::max(state.capacity, length)}, /*alone=*/true);
  const Block block{.sequences = 1,
                    .length = length,
                    .first = place,
                    .positions = zeros_.data(),
                    .tokens = state.source(place),
                    .input_stride = length,
                    .states = state.data.data(),
                    .state_stride = state.per_sequence(),
                    .capacity = state.capacity};
  RunEncoder(model_, block, members_[0].work);
}

void SequenceReader::ReadWhole(std::span<const WholeSequence> sequences) {
  const size_t batch = sequences.size(), width = model_.outputs;
  const auto threads = static_cast<size_t>(pool_.size());
  const bool alone =
      threads == 1 || batch % threads == 0 || batch >= 4 * threads || model_.spec.lstm();
  size_t longest = 0;
  for (const WholeSequence& sequence : sequences) longest = std::max(longest, sequence.length);
  Prepare({.rows = longest, .keys = longest}, alone);
  const size_t begin_position = 0;
  const auto walk = [&](int worker) {
    const auto w = static_cast<size_t>(worker);
    const Team team = alone ? Team{} : Team{&pool_, w, threads};
    const size_t end = alone ? batch * (w + 1) / threads : batch;
    for (size_t i = alone ? batch * w / threads : 0; i < end; ++i) {
      const WholeSequence& sequence = sequences[i];
      const Block block{.sequences = 1,
                        .length = sequence.length,
                        .positions = &begin_position,
                        .patch_counts = &begin_position,
                        .tokens = sequence.input.tokens,
                        .frames = sequence.input.frames,
                        .input_stride = sequence.length,
                        .outputs = sequence.outputs,
                        .sequence_output_stride = width,
                        .only_last = sequence.only_last};
      if (model_.spec.lstm()) {
        RunLstm(model_, block, members_[w].work);
      } else {
        RunBlock(model_, block, members_[w].work, team);
      }
    }
  };
  pool_.Run(walk);
}

SequenceReader::Division SequenceReader::Divide(size_t batch, size_t length) {
  const auto threads = static_cast<size_t>(pool_.size());
  const size_t few = kAloneRows * threads;
  if (threads == 1 || (length == 1 ? batch >= few : batch >= 4 * threads || batch % threads == 0)) {
    return {.threads = threads, .alone = true};
  }
  const size_t rows = batch * length;
  if (rows > kBlockRows) return {.threads = threads, .alone = false};
  Crowd& crowd = rows < few ? crowds_[rows] : prefixes_[std::bit_width(rows) - 1];
  const bool one = crowd.Alone();
  return {.threads = one ? 1 : threads, .alone = one, .crowd = &crowd, .rows = rows};
}

SequenceReader::Blocks SequenceReader::Cut(const ReaderCall& call) const {
  const size_t batch = call.batch, length = call.length;
  const size_t count = (length + kBlockRows - 1) / kBlockRows;
  const size_t equal = (length + count - 1) / count;
  if (count == 1) return {equal, equal, std::min(batch, kBlockRows / equal)};
  // Patches are read one by one, wherever blocks end; but see Patches::layers().
  const bool patches = model_.spec.patches();
  const size_t step = patches ? model_.patch.tokens : Engine::kCutPositions;
  const auto phase = [&](size_t i) { return call.state.positions[call.Place(i)] % step; };
  for (size_t i = 1; i < batch; ++i) {
    if (phase(i) != phase(0)) return {};
  }
  if (patches) return {equal, equal, std::min(batch, kBlockRows / equal)};
  const size_t rounded = RoundUp(equal, Engine::kCutPositions);
  return {rounded - phase(0), rounded, std::min(batch, kBlockRows / rounded)};
}

void SequenceReader::RunOn(const Division& division, FunctionRef<void(int)> walk) {
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

void SequenceReader::Prepare(const BlockSize& size, bool alone) {
  if (size == prepared_ && alone == prepared_alone_) return;
  prepared_ = {};  // until all allocations have succeeded
  Workspace common{};
  if (!alone) {
    Allocate(shared_, [&](Pieces& p) { TakeShared(model_, size, p, common); });
  }
  for (Member& member : members_) {
    if (!alone) {
      // Room for members that work alone. A later step may need it, but must not allocate.
      Workspace unused{};
      Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model_, size, true, p, unused); });
    }
    member.work = common;
    Allocate(member.buffer, [&](Pieces& p) { TakeOwn(model_, size, alone, p, member.work); });
  }
  prepared_ = size, prepared_alone_ = alone;
}

const size_t* SequenceReader::Positions(StateData& state) {
  if (model_.layout->source == 0) return state.positions.data();
  positions_.resize(state.batch());
  memory_lengths_.resize(state.batch());
  for (size_t i = 0; i < state.batch(); ++i) {
    const auto first = static_cast<size_t>(std::max(state.source_length(i), 0));
    positions_[i] = state.positions[i] - first;
    memory_lengths_[i] = first;
  }
  return positions_.data();
}

const size_t* SequenceReader::PatchCounts(const StateData& state) {
  if (!model_.spec.patches()) return nullptr;
  patch_counts_.resize(state.batch());
  for (size_t i = 0; i < state.batch(); ++i) {
    patch_counts_[i] = state.layout->patches.Before(state.positions[i]);
  }
  return patch_counts_.data();
}

void SequenceReader::Passed(StateData& state, size_t place, const ReaderInput& input, size_t length,
                            Reading reading) const {
  const StateLayout& layout = *model_.layout;
  const size_t reach = layout.source > 0 ? 0 : layout.reach;
  for (size_t t = length - std::min(length, reach); t < length; ++t) {
    state.recent[place * reach + (state.positions[place] + t) % reach] = input.tokens[t];
  }
  size_t& position = state.positions[place];
  const size_t before = position;
  position += length;
  // Positions that mixers read, if they read them as steps.
  const size_t steps = layout.patches.Before(position) - layout.patches.Before(before);
  uint8_t& waiting = state.waiting[place];
  waiting = model_.spec.patches() || reading == Reading::kSteps
                ? static_cast<uint8_t>((waiting + steps) % layout.fold_keys)
                : 0;
}

}  // namespace linnet
