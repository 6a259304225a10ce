// Speculative decoding: a drafter guesses the next tokens, and the model reads them in one pass. If
// the model chooses another token, its state goes back to before the guesses. The text is the same,
// to the byte, as without a drafter, because Engine::Steps() gives the same bits as single steps.
//
//   Speculator speculator(engine, std::move(state), prompt, &drafter, /*guesses=*/2);
//   logits = speculator.Step(token, most, draft.choice(), draft.rng());  // replaces Engine::Step()
#ifndef LINNET_TASKS_TEXT_SPECULATION_H_
#define LINNET_TASKS_TEXT_SPECULATION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/text.h"

namespace linnet {

// Decides how many tokens to guess in a pass: half as many if the first guess of the pass before
// was wrong, one more if all its guesses were right. While single guesses are wrong, it pauses
// after each of them for a growing number of passes: 0, 1, 3, 7, 15, then always 31.
class GuessCount {
 public:
  explicit GuessCount(size_t most) : most_(most), count_(most) {}

  // The number of tokens to guess in the next pass.
  size_t Next();
  // Records how many of the tokens guessed in the last pass were right.
  void Guessed(size_t guesses, size_t right);

 private:
  static constexpr size_t kLongestPause = 31;

  const size_t most_;
  size_t count_;
  size_t pause_ = 0;       // passes left without guesses
  size_t next_pause_ = 0;  // length of the pause after the next wrong guess
};

// Continues one sequence, like Engine::Step().
class Speculator {
 public:
  // state: has read `text`. guesses: the maximum number of tokens guessed at a time. Without a
  // drafter (null), every token is a step. The engine and the drafter must outlive this object.
  Speculator(Engine& engine, State state, std::vector<int32_t> text, Drafter* drafter,
             size_t guesses);

  // Reads a token. Returns the head's outputs for the next one, valid until the next call. most:
  // the maximum number of tokens that will be read after this one. choice, rng: the options and the
  // random numbers by which the caller will choose the next tokens.
  std::span<const float> Step(int32_t token, size_t most, const ChoiceOptions& choice,
                              const Philox& rng);

  size_t position() const { return text_.size(); }
  size_t guessed() const { return guessed_; }
  size_t accepted() const { return accepted_; }

 private:
  std::span<const float> Row(size_t row) const {
    return std::span(outputs_).subspan(row * engine_.output_size(), engine_.output_size());
  }

  Engine& engine_;
  Drafter* const drafter_;
  GuessCount count_;
  State state_;   // has read piece_
  State before_;  // the state before piece_; valid if piece_ ends with guesses
  std::vector<int32_t> text_;
  // The tokens of the last pass: tokens of the text that were read again, the new token, guesses.
  std::vector<int32_t> piece_;
  size_t first_ = 0;            // index of the first guess in piece_
  size_t at_ = 0;               // index of the text's last token in piece_
  std::vector<float> outputs_;  // at each token of piece_
  size_t guessed_ = 0, accepted_ = 0;
};

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_SPECULATION_H_
