#include "linnet/tasks/text/speculation.h"

#include <algorithm>
#include <utility>

namespace linnet {
namespace {

// After a wrong guess, the state is the one before the last pass, so the right tokens of that pass
// are read again, together with the next guesses. If they are more than this number, they are read
// in a pass of their own. The number is not tuned: it is estimated from the times of passes over
// several tokens in docs/decisions/052.
constexpr size_t kMostAgain = 4;

}  // namespace

size_t GuessCount::Next() {
  if (pause_ == 0) return count_;
  --pause_;
  return 0;
}

void GuessCount::Guessed(size_t guesses, size_t right) {
  if (right > 0) {
    next_pause_ = 0;
    if (right == guesses) count_ = std::min(most_, count_ + 1);
  } else if (count_ > 1) {
    count_ /= 2;
  } else {
    pause_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_ + 1, kLongestPause);
  }
}

Speculator::Speculator(Engine& engine, State state, std::vector<int32_t> text, Drafter* drafter,
                       size_t guesses)
    : engine_(engine),
      drafter_(drafter),
      count_(guesses),
      state_(std::move(state)),
      text_(std::move(text)) {
  if (drafter_ != nullptr) before_ = state_.Clone();
}

std::span<const float> Speculator::Step(int32_t token, size_t most, const ChoiceOptions& choice,
                                        const Philox& rng) {
  text_.push_back(token);
  const size_t next = at_ + 1;
  // If the token was guessed, the last pass has already computed its outputs.
  if (next < piece_.size() && piece_[next] == token) {
    ++accepted_;
    return Row(at_ = next);
  }
  if (first_ < piece_.size()) count_.Guessed(piece_.size() - first_, next - first_);
  if (next < piece_.size()) {  // the last pass read a wrong guess
    state_.Assign(0, before_);
    piece_.resize(next);
  } else {
    piece_.clear();
  }
  if (piece_.size() > kMostAgain) {
    engine_.Steps(state_, piece_, piece_.size(), {});
    piece_.clear();
  }
  at_ = piece_.size();
  piece_.push_back(token);
  first_ = piece_.size();
  const size_t count = drafter_ == nullptr || most == 0 ? 0 : std::min(count_.Next(), most);
  if (count > 0) {
    const std::vector<int32_t> guesses = drafter_->Guess(text_, count, choice, rng);
    const size_t taken = std::min(count, guesses.size());
    piece_.insert(piece_.end(), guesses.begin(), guesses.begin() + static_cast<ptrdiff_t>(taken));
    guessed_ += taken;
    if (taken > 0) before_.Assign(0, state_);
  }
  outputs_.resize(piece_.size() * engine_.output_size());
  engine_.Steps(state_, piece_, piece_.size(), outputs_);
  return Row(at_);
}

}  // namespace linnet
