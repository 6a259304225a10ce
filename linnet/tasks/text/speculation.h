// Speculative decoding: a drafter guesses the next tokens, and the model reads them in one pass. If
// the model chooses another token, its state goes back to before the guesses. So the text is the
// same, to the byte, as without a drafter.
//
//   Speculator speculator(engine, std::move(state), prompt, &drafter, /*guesses=*/2);
//   logits = speculator.Step(token, draft.choice(), draft.rng());      // instead of Engine::Step()
#ifndef LINNET_TASKS_TEXT_SPECULATION_H_
#define LINNET_TASKS_TEXT_SPECULATION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/text.h"

namespace linnet {

// Continues one sequence, like Engine::Step().
class Speculator {
 public:
  // state: has read `text`. drafter: null: none, every token is a step. The engine and the drafter
  // must outlive this object.
  Speculator(Engine& engine, State state, std::vector<int32_t> text, Drafter* drafter,
             size_t guesses);

  // Reads a token. Returns the head's outputs for the next one, valid until the next call. choice,
  // rng: those by which the caller will choose the next tokens.
  std::span<const float> Step(int32_t token, const ChoiceOptions& choice, const Philox& rng);

  size_t position() const { return text_.size(); }
  size_t guessed() const { return guessed_; }
  size_t accepted() const { return accepted_; }

 private:
  std::span<const float> Row(size_t row) const {
    return std::span(outputs_).subspan(row * engine_.output_size(), engine_.output_size());
  }

  Engine& engine_;
  State state_, before_;  // after piece_; before it, if it ends with guesses
  std::vector<int32_t> text_, piece_;
  size_t at_ = 0;               // piece_[0 .. at_] ends the text; the tokens behind it are guesses
  std::vector<float> outputs_;  // at each token of piece_
  Drafter* const drafter_;
  const size_t most_;  // guesses
  size_t count_;       // guesses at a time; fewer after wrong ones
  size_t guessed_ = 0, accepted_ = 0;
};

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_SPECULATION_H_
