#include "linnet/history.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "linnet/error.h"

namespace linnet {
namespace {

constexpr size_t kMost = SIZE_MAX / 4;  // for both options: no sum overflows

}  // namespace

History::History(Engine& engine, State state, const HistoryOptions& options)
    : engine_(engine),
      depth_(std::min(options.depth, kMost)),
      every_(std::min(options.every, kMost)),
      state_(std::move(state)),
      outputs_(engine.output_size()) {
  if (state_.batch() != 1) {
    throw InputError("a history needs the state of one sequence; this state has ", state_.batch(),
                     " sequences");
  }
  if (options.depth == 0 || options.every == 0) {
    throw InputError("a history needs a depth and a distance of its copies of at least 1");
  }
  copies_.push_back({0, state_.Clone()});
}

std::span<const float> History::Step(int32_t token) {
  Keep(every_);
  engine_.Step(state_, std::span(&token, 1), outputs_);
  tokens_.push_back({token, ReadBy::kStep});
  ++read_;
  Forget();
  return outputs_;
}

std::span<const float> History::Prefix(std::span<const int32_t> tokens) {
  if (tokens.empty()) throw InputError("a prefix needs at least one token");
  // Within a prefix, only states at multiples of kCutPositions continue it bit for bit.
  constexpr size_t kCut = Engine::kCutPositions;
  const size_t begin = read_, distance = std::max(every_, kCut);
  Keep(every_);
  try {
    for (size_t at = 0; at < tokens.size();) {
      if (at > 0) Keep(distance);
      const size_t rest = tokens.size() - at;
      // Copies further back than the depth are not needed, except one.
      const size_t skipped = rest - std::min(rest, depth_ + 1 + distance);
      const size_t position = state_.position();
      const size_t cut = (position + skipped + distance) / kCut * kCut;
      const size_t piece = std::min(rest, cut - position);
      const std::span<float> last(outputs_.data(), piece == rest ? outputs_.size() : 0);
      engine_.Prefix(state_, tokens.subspan(at, piece), piece, last);
      at += piece, read_ += piece;
    }
  } catch (...) {  // takes back the pieces before the one that the engine refuses
    if (read_ > begin) Return(begin);
    throw;
  }
  for (const int32_t token : tokens) tokens_.push_back({token, ReadBy::kSamePrefix});
  tokens_[tokens_.size() - tokens.size()].by = ReadBy::kPrefix;
  Forget();
  return outputs_;
}

std::span<const float> History::Undo(size_t count) {
  if (count > undoable()) {
    throw InputError("cannot take back ", count, " tokens; ", undoable(), " are possible");
  }
  if (count > 0) {
    Return(read_ - count);
    tokens_.resize(read_ - copies_.front().at);
  }
  return std::span(outputs_).first(read_ > 0 ? outputs_.size() : 0);
}

size_t History::undoable() const {
  // The outputs at the last remaining token are computed from a copy before it.
  const size_t first = copies_.front().at;
  return std::min(depth_, first == 0 ? read_ : read_ - first - 1);
}

size_t History::bytes() const {
  size_t bytes = tokens_.size() * sizeof(Token);
  for (const Copy& copy : copies_) bytes += copy.state.bytes();
  return bytes;
}

void History::Keep(size_t distance) {
  if (read_ - copies_.back().at >= distance) copies_.push_back({read_, state_.Clone()});
}

void History::Forget() {
  while (copies_.size() > 1 && read_ - copies_[1].at > depth_) {
    const size_t forgotten = copies_[1].at - copies_[0].at;
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(forgotten));
    copies_.pop_front();
  }
}

void History::Return(size_t target) {
  while (copies_.back().at > target) copies_.pop_back();
  size_t from = copies_.size() - 1;
  if (from > 0 && copies_[from].at == target) --from;  // to compute the outputs, too
  state_.Assign(0, copies_[from].state);
  ReadAgain(copies_[from].at, target);
  read_ = target;
}

void History::ReadAgain(size_t begin, size_t end) {
  const size_t first = copies_.front().at;
  std::vector<int32_t> run;
  for (size_t i = begin; i < end;) {
    const ReadBy by = tokens_[i - first].by;
    run.clear();
    do {
      run.push_back(tokens_[i++ - first].token);
    } while (i < end &&
             tokens_[i - first].by == (by == ReadBy::kStep ? ReadBy::kStep : ReadBy::kSamePrefix));
    if (by == ReadBy::kStep) {
      engine_.Steps(state_, run, run.size(), outputs_);
    } else {
      engine_.Prefix(state_, run, run.size(), outputs_);
    }
  }
}

}  // namespace linnet
