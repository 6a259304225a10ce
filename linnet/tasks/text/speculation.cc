#include "linnet/tasks/text/speculation.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace linnet {
namespace {

// After wrong guesses the state goes back, and the tokens of the text that it had read with them
// are read again with the next guesses. Beyond this number they are read on their own.
constexpr size_t kAgain = 16;

}  // namespace

Speculator::Speculator(Engine& engine, State state, std::vector<int32_t> text, Drafter* drafter,
                       size_t guesses)
    : engine_(engine),
      state_(std::move(state)),
      text_(std::move(text)),
      drafter_(drafter),
      most_(guesses),
      count_(guesses) {
  if (drafter_ != nullptr) before_ = state_.Clone();
}

std::span<const float> Speculator::Step(int32_t token, const ChoiceOptions& choice,
                                        const Philox& rng) {
  text_.push_back(token);
  const size_t next = at_ + 1;
  if (next < piece_.size() && piece_[next] == token) {
    ++accepted_;
    return Row(at_ = next);
  }
  if (next < piece_.size()) {
    state_.Assign(0, before_);
    piece_.resize(next);
    if (next == 1) count_ = std::max<size_t>(1, count_ / 2);
  } else {
    piece_.clear();
    count_ = std::min(most_, count_ + 1);
  }
  if (piece_.size() > kAgain) {
    engine_.Steps(state_, piece_, piece_.size(), {});
    piece_.clear();
  }
  at_ = piece_.size();
  piece_.push_back(token);
  const std::optional<size_t> most = engine_.model().most_positions();
  const size_t count = most ? std::min(count_, *most - text_.size()) : count_;
  if (drafter_ != nullptr && count > 0) {
    const std::vector<int32_t> guesses = drafter_->Guess(text_, count, choice, rng);
    guessed_ += guesses.size();
    piece_.insert(piece_.end(), guesses.begin(), guesses.end());
    if (!guesses.empty()) before_.Assign(0, state_);
  }
  outputs_.resize(piece_.size() * engine_.output_size());
  engine_.Steps(state_, piece_, piece_.size(), outputs_);
  return Row(at_);
}

}  // namespace linnet
