#include "linnet/runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/runtime/block_runner.h"
#include "linnet/runtime/crowd.h"

namespace linnet {
namespace {

// Rows (positions or sequences) that go through the layers together: enough to make matrix products
// of them, few enough that what lies between two products stays in a second-level cache.
constexpr size_t kBlockRows = 192;
// A thread with at least this many sequences of its own to step does better alone than in a team
// that shares the weights and waits at barriers.
constexpr size_t kAloneRows = 8;

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
  if (!model_->steps()) {
    throw InputError(
        model_->path(), ": attention '", model_->spec().attention.kind,
        "' is no RNN: it cannot be stepped, only read whole sequences, as linnet eval, "
        "sample and complete do with images");
  }
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
      RunBlock(model, block, scratch_->members[w].work, Team{});
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
        RunBlock(model, block, scratch_->members[w].work, team);
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

void Engine::Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
                   std::span<float> outputs) {
  if (model_->steps()) {
    State state = NewState(batch);
    return Prefix(state, tokens, length, outputs);
  }
  const Model::Packed& model = model_->packed();
  const size_t width = model.outputs;
  if (batch == 0 || length == 0 || tokens.size() / length != batch || tokens.size() % length != 0) {
    throw InputError(batch, " sequences cannot read ", tokens.size(), " symbols as ", length,
                     " each");
  }
  const auto positions = static_cast<size_t>(model.spec.max_length);
  if (length > positions) {
    throw InputError(model_->path(), ": the model has ", positions, " positions; ", length,
                     " do not fit");
  }
  const bool every = outputs.size() == batch * length * width;
  if (!every && outputs.size() != batch * width) {
    throw InputError("outputs need ", batch, " x ", width, " floats, or that times ", length,
                     "; got ", outputs.size());
  }
  CheckTokens(tokens);
  // Hashing sorts a whole sequence: one is a block, walked by one thread, or by all where they are few.
  const auto threads = static_cast<size_t>(pool_.size());
  const bool alone = threads == 1 || batch % threads == 0 || batch >= 4 * threads;
  scratch_->Prepare(model, length, alone);
  const std::vector<size_t> begins(batch, 0);
  const auto walk = [&](int worker) {
    const auto w = static_cast<size_t>(worker);
    const Team team = alone ? Team{} : Team{&pool_, w, threads};
    const size_t end = alone ? batch * (w + 1) / threads : batch;
    for (size_t i = alone ? batch * w / threads : 0; i < end; ++i) {
      RunBlock(model,
               {.sequences = 1,
                .length = length,
                .first = i,
                .positions = begins.data(),
                .tokens = tokens.data() + i * length,
                .token_stride = length,
                .outputs = outputs.data() + i * (every ? length : 1) * width,
                .sequence_output_stride = width,
                .only_last = !every},
               scratch_->members[w].work, team);
    }
  };
  pool_.Run(walk);
}

}  // namespace linnet
